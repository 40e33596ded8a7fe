"""Keys and values of prefixes: a radix tree over token ids, in which every token is computed once.

A node holds a run of tokens and their keys and values; its path from the root is a prefix. Prompts are
added before they are computed, so requests that arrive together also share tokens that are not computed yet. Unused
nodes are evicted from the leaves inwards, the least recently used first, by a logical clock, so that equal runs evict
equally. The trees of different adapters share only the size limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ajet.types import Int32

if TYPE_CHECKING:
    from ajet_local.completion import Completion


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What a token's keys and values are: ``[layers, 2, heads, tokens, head_dim]`` is their tensor."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: Any) -> KVLayout:
        """The layout of a Hugging Face causal model."""
        config = model.config.get_text_config()
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return cls(config.num_hidden_layers, heads, head_dim, model.dtype, model.device)

    @property
    def layer_bytes(self) -> int:
        """Bytes of one token in one layer."""
        return 2 * self.heads * self.head_dim * self.dtype.itemsize

    def zeros(self, *slots: int, tokens: int) -> torch.Tensor:
        """Room for ``tokens``: [layers, 2, *slots, heads, tokens, head_dim]."""
        shape = (self.layers, 2, *slots, self.heads, tokens, self.head_dim)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


@dataclass(slots=True, eq=False)
class Node:
    """Tokens ``[start, end)`` of every sequence that runs through it."""

    ids: Int32
    kv: torch.Tensor
    """[layers, 2, heads, len(ids), head_dim]; the first ``filled`` tokens are computed."""
    parent: Node | None
    end: int
    filled: int = 0
    children: dict[int, Node] = field(default_factory=dict)
    users: int = 0
    """Running completions whose context ends in this node or below it."""
    used_at: int = 0
    awaiting: list[Completion] = field(default_factory=list)
    """Those whose context ends with this node, until it is computed."""

    @property
    def start(self) -> int:
        return self.end - len(self.ids)

    @property
    def ready(self) -> bool:
        return self.filled == len(self.ids)

    def path(self) -> Iterator[Node]:
        """The node and its ancestors, up to but without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class PrefixCache:
    """The trees of all adapters. ``tokens`` is how many tokens they hold together."""

    def __init__(self, layout: KVLayout) -> None:
        self.layout = layout
        self.tokens = 0
        self._roots: dict[str | None, Node] = {}
        self._clock = 0

    def find(self, adapter: str | None, ids: Int32) -> Node:
        """The deepest node whose path is a prefix of ``ids`` (int32[T]): splits one that is left midway."""
        if adapter not in self._roots:
            self._roots[adapter] = Node(np.zeros(0, np.int32), self.layout.zeros(tokens=0), None, 0)
        return self._descend(self._roots[adapter], ids)

    def _descend(self, node: Node, ids: Int32) -> Node:
        """The deepest node below ``node`` on the way of ``ids``."""
        while len(ids) and (child := node.children.get(int(ids[0]))):
            common = _common(child.ids, ids)
            if common < len(child.ids):
                return self._split(child, common)
            node, ids = child, ids[common:]
        return node

    def add(self, parent: Node, ids: Int32, kv: torch.Tensor | None = None) -> Node:
        """A new leaf below ``parent`` for ``ids`` (int32[T], T ≥ 1), which no child begins with. Without
        ``kv`` it is still to be computed."""
        room = self.layout.zeros(tokens=len(ids)) if kv is None else kv
        node = Node(ids, room, parent, parent.end + len(ids), 0 if kv is None else len(ids))
        parent.children[int(ids[0])] = node
        self.tokens += len(ids)
        self._clock += 1
        node.used_at = self._clock
        return node

    def insert(self, parent: Node, ids: Int32, kv: torch.Tensor) -> Node:
        """Keep the computed ``kv`` ([layers, 2, heads, T, head_dim]) of ``ids`` (int32[T]) below ``parent``, as
        far as it is not there yet; returns the deepest node on their way. ``kv`` belongs to the cache from now on."""
        node = self._descend(parent, ids)
        known = node.end - parent.end
        if known == len(ids) or not node.ready:  # nothing computed lies below what is still to be computed
            return node
        return self.add(node, ids[known:], kv[..., known:, :].contiguous())

    def pin(self, node: Node) -> None:
        """One more completion runs on this path: it is not evicted."""
        self._count(node, 1)

    def unpin(self, node: Node) -> None:
        """The opposite of `pin`."""
        self._count(node, -1)

    def _count(self, node: Node, change: int) -> None:
        self._clock += 1
        for ancestor in node.path():
            ancestor.users += change
            ancestor.used_at = self._clock

    def merge(self, node: Node) -> None:
        """Make one of a leaf and those above it that lead nowhere else, while they are not much longer: the
        history of a conversation stays a handful of nodes, and each token is copied a handful of times."""
        while (
            (upper := node.parent) is not None
            and upper.parent is not None
            and len(upper.children) == 1
            and not upper.users
            and node.ready
            and not node.children
            and len(upper.ids) <= 2 * len(node.ids)
        ):
            node.ids = np.concatenate([upper.ids, node.ids])
            node.kv = torch.cat([upper.kv, node.kv], dim=-2)
            node.filled, node.parent = len(node.ids), upper.parent
            upper.parent.children[int(node.ids[0])] = node

    def remove(self, node: Node) -> None:
        """Forget a leaf."""
        assert node.parent is not None and not node.children
        del node.parent.children[int(node.ids[0])]
        self.tokens -= len(node.ids)

    def evict(self, tokens: int) -> None:
        """Forget at least ``tokens`` tokens, if so many are in no use."""
        # A sixteenth more than that, so that the search for leaves is not done for every token.
        least = self.tokens - tokens - self.tokens // 16
        leaves = [(n.used_at, id(n), n) for n in self._nodes() if not n.children and not n.users]
        heapq.heapify(leaves)
        while leaves and self.tokens > least:
            leaf = heapq.heappop(leaves)[2]
            self.remove(leaf)
            parent = leaf.parent
            if parent is not None and parent.parent is not None and not parent.children and not parent.users:
                heapq.heappush(leaves, (parent.used_at, id(parent), parent))

    def clear(self) -> None:
        """Forget everything. Completions that run on it must be admitted anew."""
        self._roots.clear()
        self.tokens = 0

    def _nodes(self) -> Iterator[Node]:
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node after ``at`` tokens; returns the new upper part. ``node`` stays the lower one, so those
        who hold it still hold the same prefix."""
        assert node.parent is not None
        upper = Node(node.ids[:at], node.kv[..., :at, :].clone(), node.parent, node.start + at)
        upper.filled, node.filled = min(at, node.filled), max(0, node.filled - at)
        upper.users, upper.used_at = node.users, node.used_at
        upper.children[int(node.ids[at])] = node
        node.parent.children[int(upper.ids[0])] = upper
        node.ids, node.kv, node.parent = node.ids[at:], node.kv[..., at:, :].clone(), upper
        return upper


def _common(one: Int32, other: Int32) -> int:
    """Length of the common prefix."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length
