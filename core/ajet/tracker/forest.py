"""Calls to token trees for trainers: every unique token once, each call's credit separate.

A tree holds only tokens on the way to a sampled token, so a prompt without an answer costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ajet.tracker.call import Call
from ajet.tracker.tree import SIZE, Branch, Node
from ajet.types import Int32


@dataclass(frozen=True, slots=True)
class FlatTree:
    """Branches of a token tree as flat arrays, each token once. ``token_ids int32[N]``; ``parents int32[N]``, the index of the token
    before, smaller than a token's own, -1 at the root; ``offsets``, the index of each branch's first token."""

    token_ids: Int32
    parents: Int32
    offsets: dict[Branch, int]

    def indices(self, end: Node, start: int = 0) -> Int32:
        """The indices of a sequence's tokens from ``start`` on, ``int32[end.length - start]``."""
        indices = np.empty(max(end.length - start, 0), np.int32)
        branch: Branch | None = end.branch
        stop = end.length
        while branch is not None and stop > start:
            first = max(start, branch.start)
            if stop > first:
                offset = self.offsets[branch] - branch.start
                indices[first - start : stop - start] = np.arange(offset + first, offset + stop)
                stop = first
            branch = branch.parent
        return indices


def flatten(branches: Iterable[tuple[Branch, int]]) -> FlatTree:
    """Branches, parents first, each with the length up to which its sequence is kept."""
    ids, parents = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    offsets: dict[Branch, int] = {}
    total = 0
    for branch, end in branches:
        length = end - branch.start
        offsets[branch] = total
        ids.append(np.frombuffer(branch.data[: length * SIZE], np.int32))
        before = np.arange(total - 1, total + length - 1, dtype=np.int32)
        if length:
            before[0] = _index(branch.parent, branch.start - 1, offsets)
        parents.append(before)
        total += length
    return FlatTree(np.concatenate(ids), np.concatenate(parents), offsets)


def _index(branch: Branch | None, position: int, offsets: dict[Branch, int]) -> int:
    """The index of the token at a position of the sequence on ``branch``; -1 before the first."""
    while branch is not None and position < branch.start:
        branch = branch.parent
    return -1 if branch is None else offsets[branch] + position - branch.start


@dataclass(frozen=True, slots=True)
class TokenForest:
    """Unique tokens with their parents, and where each call's sampled tokens are.

    ``token_ids int32[N]``; ``parents int32[N]``, the index of the token before, smaller than a token's
    own, -1 at the root; ``spans[i] int32[T_i]`` are the indices of the tokens that ``calls[i]`` sampled.
    """

    token_ids: Int32
    parents: Int32
    calls: tuple[Call, ...]
    spans: tuple[Int32, ...]


def forest(calls: Sequence[Call]) -> TokenForest:
    """The tree of calls of one merging key."""
    used = _used_lengths(calls)
    flat = flatten(sorted(used.items(), key=lambda item: item[0].number))  # a parent has the smaller number
    spans = tuple(flat.indices(call.end, call.prompt.length) for call in calls)
    return TokenForest(flat.token_ids, flat.parents, tuple(calls), spans)


def _used_lengths(calls: Sequence[Call]) -> dict[Branch, int]:
    """The length up to which each branch is on the way to a sampled token."""
    used: dict[Branch, int] = {}
    for call in calls:
        branch: Branch | None = call.end.branch if call.end != call.prompt else None
        length = call.end.length
        while branch is not None and used.get(branch, -1) < length:
            used[branch] = length
            length, branch = branch.start, branch.parent
    return used
