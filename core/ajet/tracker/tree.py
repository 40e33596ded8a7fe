"""The token tree: sequences that share a prefix store it once, whatever order calls finish in.

The tokens are stored in branches, flat buffers of int32: a branch grows at its end, and where a sequence
leaves it a new branch begins. A `Node` is a position, (branch, length), and represents the sequence from the
root to there. Buffers only grow, so a node always means the same sequence; equal sequences have
equal nodes; and a conversation of a thousand turns is one buffer.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from typing import NamedTuple

import numpy as np

from ajet.types import Int32

SIZE = 4
"""Bytes per token."""


class Branch:
    """Tokens after the first ``start`` ones of a sequence on ``parent``."""

    __slots__ = ("children", "data", "forks", "number", "parent", "start")

    def __init__(self, number: int, parent: Branch | None, start: int) -> None:
        self.number = number
        self.parent = parent
        self.start = start
        self.data = bytearray()
        self.children: dict[tuple[int, int], Branch] = {}
        """Children by the length at which they leave, and their first token."""
        self.forks: list[int] = []
        """The lengths at which children leave, ascending."""

    @property
    def end(self) -> int:
        """The length of the longest sequence that is on this branch."""
        return self.start + len(self.data) // SIZE


class Node(NamedTuple):
    """The sequence of ``length`` tokens from the root to a position on a branch."""

    branch: Branch
    length: int

    def ids(self, start: int = 0) -> Int32:
        """Its tokens from ``start`` on, ``int32[length - start]``."""
        parts = []
        branch: Branch | None = self.branch
        end = self.length
        while branch is not None and end > start:
            first = max(start, branch.start)
            if end > first:
                parts.append(branch.data[(first - branch.start) * SIZE : (end - branch.start) * SIZE])
                end = first
            branch = branch.parent
        return np.frombuffer(bytearray().join(reversed(parts)), np.int32)

    def starts_with(self, other: Node) -> bool:
        """Whether this sequence begins with ``other``."""
        branch, length = self
        while branch is not other.branch:
            if branch.parent is None:
                return False
            branch, length = branch.parent, branch.start
        return other.length <= length


class TokenTree:
    """One tree of an episode: the calls of one merging key."""

    def __init__(self) -> None:
        self.branches = [Branch(0, None, 0)]
        self.root = Node(self.branches[0], 0)
        """The empty sequence."""

    def extend(self, start: Node, tokens: Int32) -> Node:
        """The node of the sequence ``start + tokens`` (``int32[T]``), sharing the tokens that are already stored.

        Costs the tokens given, not the length of ``start``.
        """
        new = np.ascontiguousarray(tokens, np.int32).data
        branch, length = start
        at, stop = 0, len(new)
        while at < stop:
            data, offset = branch.data, (length - branch.start) * SIZE
            held = (len(data) - offset) // SIZE
            if not held:
                data += new[at:]
                return Node(branch, length + stop - at)
            part = new[at : at + held]
            same = len(part)
            if not data.startswith(part, offset):
                branch = self._leave(branch, length, part)
                same = branch.start - length
            at += same
            length += same
        return Node(branch, length)

    def restore(self, parent: int, start: int, data: bytes) -> None:
        """Add a stored branch; restore branches in the order of their numbers, the root first."""
        if parent < 0:
            self.branches[0].data += data
            return
        branch = self.branches[parent]
        child = Branch(len(self.branches), branch, start)
        child.data += data
        self.branches.append(child)
        branch.children[start, int.from_bytes(data[:SIZE], sys.byteorder, signed=True)] = child
        if start not in branch.forks:
            insort(branch.forks, start)

    def unique_tokens(self) -> int:
        """How many tokens the tree holds."""
        return sum(len(branch.data) for branch in self.branches) // SIZE

    def _leave(self, branch: Branch, length: int, tokens: memoryview) -> Branch:
        """The child on which a sequence continues that leaves the branch within these tokens, which follow its first
        ``length``.

        It first tries the positions where others left: most sequences leave there too.
        """
        offset = (length - branch.start) * SIZE
        forks, same = branch.forks, 0
        low, high = bisect_left(forks, length), len(forks)
        while low < high:
            middle = (low + high) // 2
            ahead = forks[middle] - length
            if ahead < len(tokens) and branch.data.startswith(tokens[:ahead], offset):
                same, low = ahead, middle + 1
            else:
                high = middle
        child = branch.children.get((length + same, tokens[same]))
        if child is None:
            rest = branch.data[offset + same * SIZE : offset + len(tokens) * SIZE]
            same += _common(rest, tokens[same:])
            child = Branch(len(self.branches), branch, length + same)
            self.branches.append(child)
            branch.children[child.start, tokens[same]] = child
            if child.start not in forks[low - 1 : low]:
                forks.insert(low, child.start)
        return child


def common_length(a: Int32, b: Int32) -> int:
    """The number of equal tokens at the beginning of two sequences."""
    n = min(len(a), len(b))
    return _common(a[:n].tobytes(), b[:n].tobytes())


def _common(a: bytes | bytearray | memoryview, b: bytes | bytearray | memoryview) -> int:
    """The number of equal tokens at the beginning of two buffers of the same size."""
    different = np.frombuffer(a, np.int32) != np.frombuffer(b, np.int32)
    first = int(different.argmax()) if len(different) else 0
    return first if len(different) and different[first] else len(different)
