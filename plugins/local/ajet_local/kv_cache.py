"""Keys and values of prefixes: a radix tree over token ids, in which every token is computed once.

A node has a run of tokens with their keys and values; its path from the root is a prefix. Prompts are added before
they are computed, so requests that arrive together share even those tokens. Unused nodes are evicted from the
leaves inwards, the least recently used first. The clock is logical, so equal runs evict equally. Each adapter has
its own tree; they share only the size limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ajet.interfaces.engine import Int32


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of keys and values: their tensors are ``[layers, 2, heads, tokens, head_dim]``."""

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
        """A zero tensor [layers, 2, *slots, heads, tokens, head_dim]."""
        shape = (self.layers, 2, *slots, self.heads, tokens, self.head_dim)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


@dataclass(slots=True, eq=False)
class CacheNode:
    """The tokens ``[start, end)`` of every sequence whose path includes this node."""

    ids: Int32
    kv: torch.Tensor
    """[layers, 2, heads, len(ids), head_dim]; the first ``filled`` tokens are computed."""
    parent: CacheNode | None
    end: int
    filled: int = 0
    children: dict[int, CacheNode] = field(default_factory=dict)
    users: int = 0
    """How many running completions have a context that ends in this node or below it."""
    used_at: int = 0

    @property
    def start(self) -> int:
        return self.end - len(self.ids)

    @property
    def ready(self) -> bool:
        return self.filled == len(self.ids)

    def path(self) -> Iterator[CacheNode]:
        """The node and its ancestors, from the deepest up, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class PrefixCache:
    """The trees of all adapters. ``tokens`` is the number of tokens in all of them."""

    def __init__(self, layout: KVLayout) -> None:
        self.layout = layout
        self.tokens = 0
        self._roots: dict[str | None, CacheNode] = {}
        self._clock = 0

    def find(self, adapter: str | None, ids: Int32) -> CacheNode:
        """The deepest node whose path is a prefix of ``ids`` (int32[T]); splits a node that matches only in part."""
        if adapter not in self._roots:
            self._roots[adapter] = CacheNode(np.zeros(0, np.int32), self.layout.zeros(tokens=0), None, 0)
        return self._descend(self._roots[adapter], ids)

    def _descend(self, node: CacheNode, ids: Int32) -> CacheNode:
        """The deepest node below ``node`` that ``ids`` reach."""
        while len(ids) and (child := node.children.get(int(ids[0]))):
            common = _common(child.ids, ids)
            if common < len(child.ids):
                return self._split(child, common)
            node, ids = child, ids[common:]
        return node

    def add(self, parent: CacheNode, ids: Int32, kv: torch.Tensor | None = None) -> CacheNode:
        """Add a leaf for ``ids`` (int32[T], T ≥ 1) below ``parent``, which has no child with the same first token.
        Without ``kv`` the leaf is not computed yet."""
        room = self.layout.zeros(tokens=len(ids)) if kv is None else kv
        node = CacheNode(ids, room, parent, parent.end + len(ids), 0 if kv is None else len(ids))
        parent.children[int(ids[0])] = node
        self.tokens += len(ids)
        self._clock += 1
        node.used_at = self._clock
        return node

    def insert(self, parent: CacheNode, ids: Int32, kv: torch.Tensor) -> CacheNode:
        """Store the part of ``kv`` ([layers, 2, heads, T, head_dim]) of ``ids`` (int32[T]) below ``parent`` that is not
        stored yet; returns the deepest node that ``ids`` reach. The cache takes over ``kv``."""
        node = self._descend(parent, ids)
        known = node.end - parent.end
        if known == len(ids) or not node.ready:  # a computed node must not be below one that is not computed
            return node
        return self.add(node, ids[known:], kv[..., known:, :].contiguous())

    def pin(self, node: CacheNode) -> None:
        """Count one more completion on this path, which keeps it from being evicted."""
        self._count(node, 1)

    def unpin(self, node: CacheNode) -> None:
        """Undo one `pin`."""
        self._count(node, -1)

    def _count(self, node: CacheNode, change: int) -> None:
        self._clock += 1
        for ancestor in node.path():
            ancestor.users += change
            ancestor.used_at = self._clock

    def merge(self, node: CacheNode) -> None:
        """Join a leaf with its ancestors that have no other child, while these are not more than twice as long. A
        conversation then stays a few nodes, and each of its tokens is copied a few times."""
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

    def remove(self, node: CacheNode) -> None:
        """Remove a leaf."""
        assert node.parent is not None and not node.children
        del node.parent.children[int(node.ids[0])]
        self.tokens -= len(node.ids)

    def evict(self, tokens: int) -> None:
        """Remove at least ``tokens`` tokens, if that many are unused."""
        # Evict a sixteenth more, so that not every new token needs a search for leaves.
        target = self.tokens - tokens - self.tokens // 16
        leaves = [(n.used_at, id(n), n) for n in self._nodes() if not n.children and not n.users]
        heapq.heapify(leaves)
        while leaves and self.tokens > target:
            leaf = heapq.heappop(leaves)[2]
            self.remove(leaf)
            parent = leaf.parent
            if parent is not None and parent.parent is not None and not parent.children and not parent.users:
                heapq.heappush(leaves, (parent.used_at, id(parent), parent))

    def clear(self) -> None:
        """Remove everything. Running completions must be admitted again."""
        self._roots.clear()
        self.tokens = 0

    def _nodes(self) -> Iterator[CacheNode]:
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _split(self, node: CacheNode, at: int) -> CacheNode:
        """Split a node after ``at`` tokens and return the new upper part. ``node`` becomes the lower part, so
        references to it still mean the same prefix."""
        assert node.parent is not None
        upper = CacheNode(node.ids[:at], node.kv[..., :at, :].clone(), node.parent, node.start + at)
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
