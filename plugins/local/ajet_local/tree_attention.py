"""Attention over a token tree: every token attends to its ancestors and itself, block by block.

The tree's tokens lie in preorder, a token's longest way down first. So they are *paths*: runs of tokens
each of which is the parent of the next; what leaves a path begins paths of its own further on. All that
leaves path A after its first p tokens lies together, and attends to just these p tokens of A: a
rectangle of attention without a mask, on slices of the packed queries, keys and values. What remains is
causal attention within paths; they are cut into chunks of at most `CHUNK` tokens, each of which attends
to its path's earlier ones by a rectangle, and to itself. The chunks' own triangles are batched.

Each block gives an output and the logarithm of its softmax's sum, and blocks are merged exactly by the
latter (as in FlashAttention, Dao et al., arXiv:2205.14135). Backward, each block needs only the merged
two. Both come from the kernels behind torch's `scaled_dot_product_attention` on CPUs. On CUDA, all of it
is one call of torch's `flex_attention` with the layout's block mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ajet.types import Int32

NAME = "ajet_tree"
"""Attention implementation of models that can compute trees: `sdpa` unless a `TreeLayout` is given."""
CHUNK = 128
"""Most tokens of a causal block. The kernel computes short causal blocks in full and throws half away."""
DENSE = 256
"""Up to so many tokens, one block of all pairs under a mask costs less than the tree's blocks."""
PADDING = 0.25
"""Chunks are batched with those that have up to this share of tokens fewer."""
MOVED_PAIRS = 20
"""Merging a block's results costs as much for each token as computing so many pairs."""
UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
"""What models may ask of an attention function that trees are not attended with."""

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True)
class Triangles:
    """Chunks of a path that attend to themselves, padded to one length."""

    index: torch.Tensor
    """int64[B, T]: their tokens; a padded place repeats the chunk's last one."""
    padded: torch.Tensor | None
    """int64[P]: the padded places among the B · T; None if there are none."""
    kept: torch.Tensor | None
    """int64[B · T - P]: the other places; None if nothing is padded."""
    tokens: torch.Tensor
    """int64[B · T - P]: the tokens of those places."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Tokens ``[start, stop)`` attend to all of ``[key_start, key_stop)``."""

    start: int
    stop: int
    key_start: int
    key_stop: int


@dataclass(frozen=True, slots=True)
class Work:
    """What attention costs: a part for each pair of query and key, and one for each block."""

    pairs: int
    blocks: int


class TreeLayout:
    """What attention needs to know of a tree, for all layers.

    ``parents int32[N]`` as in `ajet.types.SampleTree`.
    """

    def __init__(self, parents: Int32) -> None:
        self.parents = parents
        self.uses = 0
        """How many layers' attention has run over it."""
        self.rectangles: list[Rectangle] = []
        self._block_mask: BlockMask | None = None
        count = len(parents)
        self.depths = np.zeros(count, np.int64)
        """int64[N]: how many ancestors each token has."""
        self.ends = np.zeros(count, np.int64)
        """int64[N]: where the descendants of each token, which follow it without a gap, end."""
        starts = np.flatnonzero((parents != np.arange(-1, count - 1)) | (parents < 0))
        stops = np.append(starts[1:], count)
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            parent = int(parents[start])
            first = 0 if parent < 0 else int(self.depths[parent]) + 1
            self.depths[start:stop] = np.arange(first, first + stop - start)
            self.ends[start:stop] = stop
        self._chunks: list[tuple[int, int]] = []
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            for chunk in range(start, stop, CHUNK):
                self._chunks.append((chunk, min(chunk + CHUNK, stop)))
                if chunk > start:
                    self.rectangles.append(Rectangle(*self._chunks[-1], start, chunk))
        self._add_forks(starts, stops)

    @cached_property
    def triangles(self) -> list[Triangles]:
        """The chunks, batched with others of about their length."""
        batches: list[list[tuple[int, int]]] = []
        shortest = np.inf
        for start, stop in sorted(self._chunks, key=lambda chunk: (chunk[0] - chunk[1], chunk[0])):
            if stop - start < shortest:
                batches.append([])
                shortest = (1 - PADDING) * (stop - start)
            batches[-1].append((start, stop))
        return [_triangles(batch) for batch in batches]

    @cached_property
    def dense(self) -> bool:
        """Whether it is computed as one block under a mask."""
        return len(self.parents) <= DENSE and len(self.triangles) + len(self.rectangles) > 2

    @cached_property
    def mask(self) -> torch.Tensor:
        """bool[N, N]: which tokens (columns) each token attends to."""
        places = np.arange(len(self.ends))
        return torch.as_tensor((places <= places[:, None]) & (places[:, None] < self.ends))

    @property
    def work(self) -> Work:
        """What attention over it costs."""
        if self.dense:
            return Work(len(self.parents) ** 2, 1)
        pairs = sum(t.index.shape[0] * t.index.shape[1] ** 2 for t in self.triangles)
        moved = len(self.parents)
        for r in self.rectangles:
            pairs += (r.stop - r.start) * (r.key_stop - r.key_start)
            moved += (r.stop - r.start) + (r.key_stop - r.key_start)
        return Work(pairs + MOVED_PAIRS * moved, len(self.triangles) + len(self.rectangles))

    def block_mask(self, device: torch.device) -> BlockMask:
        """For `flex_attention`: a token's descendants attend to it. Made once, for the first device asked."""
        if self._block_mask is None:
            ends = torch.as_tensor(self.ends, device=device)

            def attends(batch: Any, head: Any, query: Any, key: Any) -> Any:
                return (key <= query) & (query < ends[key])

            count = len(self.ends)
            self._block_mask = create_block_mask(attends, None, None, count, count, device=device)
        return self._block_mask

    def _add_forks(self, starts: np.ndarray, stops: np.ndarray) -> None:
        ends = stops.tolist()  # of what descends from each path
        forks: dict[int, tuple[int, int]] = {}
        for path in reversed(range(len(starts))):
            start, fork = int(starts[path]), int(self.parents[starts[path]])
            if fork < 0:
                continue
            parent = int(np.searchsorted(starts, fork, side="right")) - 1
            ends[parent] = max(ends[parent], ends[path])
            forks[fork] = (start, max(ends[path], forks.get(fork, (0, 0))[1]))
        for fork, (start, end) in sorted(forks.items()):
            path = int(np.searchsorted(starts, fork, side="right")) - 1
            self.rectangles.append(Rectangle(start, end, int(starts[path]), fork + 1))
            self.ends[starts[path] : fork + 1] = np.maximum(self.ends[starts[path] : fork + 1], end)


def _triangles(chunks: list[tuple[int, int]]) -> Triangles:
    longest = max(stop - start for start, stop in chunks)
    places = np.array([start for start, _ in chunks])[:, None] + np.arange(longest)
    last = np.array([stop - 1 for _, stop in chunks])[:, None]
    index = torch.as_tensor(np.minimum(places, last))
    padded = np.flatnonzero(places > last)
    kept = np.flatnonzero(places <= last)
    return Triangles(
        index,
        torch.as_tensor(padded) if len(padded) else None,
        torch.as_tensor(kept) if len(padded) else None,
        index.flatten()[kept],
    )


class _TreeAttention(torch.autograd.Function):
    """Queries, keys and values [1, H, N, D] to outputs [1, H, N, D], over a layout."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, layout: TreeLayout, scale: float) -> torch.Tensor:
        q_NHD, k_NHD, v_NHD = (x[0].transpose(0, 1) for x in (q, k, v))
        sums = torch.empty(q.shape[2], q.shape[1], dtype=torch.promote_types(q.dtype, torch.float32))
        out = torch.empty(q_NHD.shape, dtype=sums.dtype)
        for batch in layout.triangles:
            parts = [x[batch.index].transpose(1, 2) for x in (q_NHD, k_NHD, v_NHD)]
            some_out, some_sums = _forward(*parts, 0.0, True, scale=scale)
            out[batch.tokens] = _kept(some_out.transpose(1, 2), batch).to(out.dtype)
            sums[batch.tokens] = _kept(some_sums.transpose(1, 2), batch)
        for r in layout.rectangles:
            queries, keys = slice(r.start, r.stop), slice(r.key_start, r.key_stop)
            some_out, some_sums = _forward(
                q[:, :, queries], k[:, :, keys], v[:, :, keys], 0.0, False, scale=scale
            )
            _merge(out[queries], sums[queries], some_out[0].transpose(0, 1), some_sums[0].T)
        ctx.layout, ctx.scale = layout, scale
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, sums)
        return out.transpose(0, 1)[None]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        q, k, v, out, sums = ctx.saved_tensors
        heads_first = [x.transpose(0, 1)[None] for x in (out, sums)]
        token_first = [x[0].transpose(0, 1) for x in (grad, q, k, v)] + [out]
        grads = [torch.empty_like(x) for x in token_first[1:4]]
        for batch in ctx.layout.triangles:
            parts = [x[batch.index].transpose(1, 2) for x in token_first]
            some_sums = sums[batch.index]
            if batch.padded is not None:  # exp(-inf): padded places attend to nothing
                some_sums.view(-1, sums.shape[1])[batch.padded] = torch.inf
            found = _backward(*parts, some_sums.transpose(1, 2), 0.0, True, scale=ctx.scale)
            for whole, some in zip(grads, found, strict=True):
                whole[batch.tokens] = _kept(some.transpose(1, 2), batch)
        for r in ctx.layout.rectangles:
            queries, keys = slice(r.start, r.stop), slice(r.key_start, r.key_stop)
            found = _backward(
                grad[:, :, queries],
                q[:, :, queries],
                k[:, :, keys],
                v[:, :, keys],
                heads_first[0][:, :, queries],
                heads_first[1][:, :, queries],
                0.0,
                False,
                scale=ctx.scale,
            )
            for whole, some, place in zip(grads, found, (queries, keys, keys), strict=True):
                whole[place] += some[0].transpose(0, 1)
        return *(x.transpose(0, 1)[None] for x in grads), None, None


def _kept(values: torch.Tensor, batch: Triangles) -> torch.Tensor:
    """[B, T, …] to [tokens, …], without the padded places."""
    flat = values.reshape(-1, *values.shape[2:])
    return flat if batch.kept is None else flat[batch.kept]


def _merge(out: torch.Tensor, sums: torch.Tensor, more_out: torch.Tensor, more_sums: torch.Tensor) -> None:
    """Attention over one set of keys and over another one becomes, in place, that over both."""
    share = torch.sigmoid(more_sums - sums)
    out.lerp_(more_out.to(out.dtype), share[:, :, None])
    torch.logaddexp(sums, more_sums, out=sums)


def tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree: TreeLayout | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers: over ``tree`` if there is one, else `sdpa`."""
    if tree is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    if dropout:
        raise NotImplementedError("its attention has dropout")
    for name in UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"its attention has {name}")
    tree.uses += 1
    query, key = (
        query.to(value.dtype),
        key.to(value.dtype),
    )  # autocast leaves them wider where positions go in
    repeats = query.shape[1] // key.shape[1]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    key, value = repeat_kv(key, repeats), repeat_kv(value, repeats)
    if query.device.type == "cpu" and tree.dense:
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=tree.mask, scale=scale
        )
    elif query.device.type == "cpu":
        out = _TreeAttention.apply(query, key, value, tree, scale)
    else:
        out = _compiled_flex_attention()(
            query, key, value, block_mask=tree.block_mask(query.device), scale=scale
        )
    return out.transpose(1, 2), None


@cache
def _compiled_flex_attention() -> Any:
    return torch.compile(flex_attention, dynamic=True)


AttentionInterface.register(NAME, tree_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
