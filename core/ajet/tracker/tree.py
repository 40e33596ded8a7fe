"""A radix tree over token ids: shared prefixes are stored once, whatever order calls finish in.

A `Node` stands for the sequence from the root to its own end. Ends of prompts and completions are
always ends of nodes, and a node keeps its identity when it is split (the new node goes above it), so
that a reference to a node stays a reference to the same sequence for ever.
"""

from __future__ import annotations

import numpy as np

from ajet.types import Int32

_NONE = np.zeros(0, np.int32)


class Node:
    """Some consecutive tokens (``int32[T]``) below a parent; ``length`` counts from the root to its end."""

    __slots__ = ("children", "length", "parent", "tokens")

    def __init__(self, parent: Node | None, tokens: Int32) -> None:
        self.parent = parent
        self.tokens = tokens
        self.length: int = len(tokens) + (parent.length if parent else 0)
        self.children: dict[int, Node] = {}

    def path(self) -> list[Node]:
        """Nodes from the root to this one."""
        nodes = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def ids(self) -> Int32:
        """The whole sequence, ``int32[length]``."""
        return np.concatenate([node.tokens for node in self.path()])


class TokenTree:
    """One tree of an episode: the calls of one merging key."""

    def __init__(self) -> None:
        self.root = Node(None, _NONE)

    def extend(self, start: Node, tokens: Int32) -> Node:
        """The node of the sequence ``start + tokens``, sharing what is there already.

        Costs the new tokens and the tokens that it matches, not the length of ``start``.
        """
        node = start
        while len(tokens):
            child = node.children.get(int(tokens[0]))
            if child is None:
                child = Node(node, tokens)
                node.children[int(tokens[0])] = child
                return child
            common = _common_prefix(child.tokens, tokens)
            if common < len(child.tokens):
                child = self._split(child, common)
            node, tokens = child, tokens[common:]
        return node

    def unique_tokens(self) -> int:
        """How many tokens the tree holds."""
        total, stack = 0, [self.root]
        while stack:
            node = stack.pop()
            total += len(node.tokens)
            stack.extend(node.children.values())
        return total

    def _split(self, node: Node, at: int) -> Node:
        """Put a new node with the first ``at`` tokens of ``node`` above it."""
        parent = node.parent
        assert parent is not None
        upper = Node(parent, node.tokens[:at])
        parent.children[int(upper.tokens[0])] = upper
        node.parent, node.tokens = upper, node.tokens[at:]
        upper.children[int(node.tokens[0])] = node
        return upper


def _common_prefix(a: Int32, b: Int32) -> int:
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
