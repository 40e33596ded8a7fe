"""Attention over a tree of samples: every token attends to its ancestors and itself, block by block.

The tokens are in preorder, the longest branch first. So they form *paths*: runs of tokens, each the parent of the
next; branches off a path are later paths. All branches that leave path A after its first p tokens are contiguous, and
attend to exactly these p tokens of A. This is a rectangle of attention without a mask, on slices of the packed
queries, keys and values. What remains is causal attention within paths. These are cut into chunks of at most `CHUNK`
tokens, each of which attends to the path's earlier chunks (a rectangle) and to itself (a triangle). Triangles are
batched.

Each block gives an output and the logarithm of its softmax's sum; with the latter, blocks are merged exactly (as in
FlashAttention, Dao et al., arXiv:2205.14135). The backward pass of a block needs only the merged output and logarithm.
On CPUs, the kernels behind torch's `scaled_dot_product_attention` compute both passes. On CUDA, everything is one
call of torch's `flex_attention` with the layout's block mask, over tokens padded to whole blocks: so torch compiles few
variants, and none for few queries, which has no backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ajet.interfaces.engine import Int32

NAME = "ajet_tree"
"""Attention implementation of models that can compute trees: `sdpa` unless a `TreeLayout` is given."""
CHUNK = 128
"""Maximum tokens of a causal block. The kernel computes all pairs of a short causal block and discards half."""
DENSE = 256
"""Up to this many tokens, one block of all pairs with a mask costs less than the tree's blocks."""
PADDING = 0.25
"""A chunk is batched with others that are shorter by at most this share of its tokens."""
MOVED_PAIRS = 20
"""Merging a block's results costs as much per token as computing this many pairs."""
MASKED = 128
"""Tokens of a block of `flex_attention`. It has another kernel below this many queries, so there are at least two blocks."""
UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments of transformers' attention functions that attention over trees does not support."""

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True)
class Triangles:
    """Chunks that attend to themselves, padded to the same length: B chunks of T positions, P of them padding."""

    index: torch.Tensor
    """int64[B, T]: their tokens; padding repeats the chunk's last token."""
    padded: torch.Tensor | None
    """int64[P]: the padding among the B · T positions; None if there is none."""
    kept: torch.Tensor | None
    """int64[B · T - P]: the other positions; None if there is no padding."""
    tokens: torch.Tensor
    """int64[B · T - P]: the tokens at these other positions."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Tokens ``[start, stop)`` attend to all of ``[key_start, key_stop)``."""

    start: int
    stop: int
    key_start: int
    key_stop: int


@dataclass(frozen=True, slots=True)
class Work:
    """The cost of attention: pairs of query and key, and a fixed cost for each block."""

    pairs: int
    blocks: int


class TreeLayout:
    """The blocks of attention over a tree, the same for all layers.

    ``parents`` is int32[N], as in `ajet.types.SampleTree`.
    """

    def __init__(self, parents: Int32) -> None:
        self.parents = parents
        self.uses = 0
        """How many calls of attention have used this layout."""
        self.rectangles: list[Rectangle] = []
        self._block_mask: BlockMask | None = None
        count = len(parents)
        self.depths = np.zeros(count, np.int64)
        """int64[N]: the number of ancestors of each token."""
        self.ends = np.zeros(count, np.int64)
        """int64[N]: the index after each token's last descendant; descendants follow their token without a gap."""
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
        """The chunks, batched by similar length."""
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
        """Whether the tree is computed as one block with a mask."""
        return len(self.parents) <= DENSE and len(self.triangles) + len(self.rectangles) > 2

    @cached_property
    def mask(self) -> torch.Tensor:
        """bool[N, N]: which tokens (columns) each token attends to."""
        tokens = np.arange(len(self.ends))
        return torch.as_tensor((tokens <= tokens[:, None]) & (tokens[:, None] < self.ends))

    @property
    def work(self) -> Work:
        """The cost of attention over the tree."""
        if self.dense:
            return Work(len(self.parents) ** 2, 1)
        pairs = sum(t.index.shape[0] * t.index.shape[1] ** 2 for t in self.triangles)
        moved = len(self.parents)
        for r in self.rectangles:
            pairs += (r.stop - r.start) * (r.key_stop - r.key_start)
            moved += (r.stop - r.start) + (r.key_stop - r.key_start)
        return Work(pairs + MOVED_PAIRS * moved, len(self.triangles) + len(self.rectangles))

    def block_mask(self, device: torch.device) -> BlockMask:
        """The mask of `flex_attention` over the tokens, padded to whole blocks. Built once, on the first ``device``."""
        if self._block_mask is None:
            self._block_mask = _block_mask(self.ends, device)
        return self._block_mask

    def _add_forks(self, starts: np.ndarray, stops: np.ndarray) -> None:
        ends = stops.tolist()  # for each path, the index after its last descendant
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


def _block_mask(ends: np.ndarray, device: torch.device) -> BlockMask:
    """A mask in which each token i is seen by the tokens ``[i, ends[i])``. Padding sees itself alone.

    Time and memory are quadratic in the blocks. torch's `create_block_mask` is quadratic in the tokens: 20 GB for 41,000.
    """
    blocks = max(2, -(-len(ends) // MASKED))
    ends = np.concatenate([ends, np.arange(len(ends), blocks * MASKED) + 1])
    of_block = ends.reshape(blocks, MASKED)
    first = np.arange(blocks)[:, None] * MASKED  # query of each block
    earlier = np.tri(blocks, k=-1, dtype=np.bool_)
    full = earlier & (of_block.min(1) >= first + MASKED)
    partial = np.eye(blocks, dtype=np.bool_) | (earlier & ~full & (of_block.max(1) > first))
    ends_on_device = torch.as_tensor(ends, device=device)

    def attends(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query < ends_on_device[key])

    return BlockMask.from_kv_blocks(
        *_listed(partial, device), *_listed(full, device), BLOCK_SIZE=MASKED, mask_mod=attends
    )


def _listed(pairs: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """How many blocks of keys each block of queries has, int32[1, 1, B]; and these first, int32[1, 1, B, B]."""
    order = np.argsort(~pairs, axis=1, kind="stable").astype(np.int32)
    count = pairs.sum(1, dtype=np.int32)
    return torch.as_tensor(count, device=device)[None, None], torch.as_tensor(order, device=device)[
        None, None
    ]


def _triangles(chunks: list[tuple[int, int]]) -> Triangles:
    longest = max(stop - start for start, stop in chunks)
    tokens = np.array([start for start, _ in chunks])[:, None] + np.arange(longest)
    last = np.array([stop - 1 for _, stop in chunks])[:, None]
    index = torch.as_tensor(np.minimum(tokens, last))
    padded = np.flatnonzero(tokens > last)
    kept = np.flatnonzero(tokens <= last)
    return Triangles(
        index,
        torch.as_tensor(padded) if len(padded) else None,
        torch.as_tensor(kept) if len(padded) else None,
        index.flatten()[kept],
    )


class _TreeAttention(torch.autograd.Function):
    """Attention over a layout: queries, keys and values [1, H, N, D] to outputs [1, H, N, D]."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, layout: TreeLayout, scale: float) -> torch.Tensor:
        given = q, k, v
        q, k, v = _exact(given)
        q_NHD, k_NHD, v_NHD = (x[0].transpose(0, 1) for x in (q, k, v))
        sums = torch.empty(q_NHD.shape[:2], dtype=q.dtype)
        out = torch.empty(q_NHD.shape, dtype=q.dtype)
        for batch in layout.triangles:
            parts = [x[batch.index].transpose(1, 2) for x in (q_NHD, k_NHD, v_NHD)]
            block_out, block_sums = _forward(*parts, 0.0, True, scale=scale)
            out[batch.tokens] = _kept(block_out.transpose(1, 2), batch)
            sums[batch.tokens] = _kept(block_sums.transpose(1, 2), batch)
        for r in layout.rectangles:
            queries, keys = slice(r.start, r.stop), slice(r.key_start, r.key_stop)
            block_out, block_sums = _forward(
                q[:, :, queries], k[:, :, keys], v[:, :, keys], 0.0, False, scale=scale
            )
            _merge(out[queries], sums[queries], block_out[0].transpose(0, 1), block_sums[0].T)
        ctx.layout, ctx.scale = layout, scale
        out = out.to(given[0].dtype)
        ctx.save_for_backward(*given, out, sums)
        return out.transpose(0, 1)[None]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        *given, sums = ctx.saved_tensors
        dtype = grad.dtype
        grad, q, k, v, out = _exact([grad, *given])
        heads_first = [x.transpose(0, 1)[None] for x in (out, sums)]
        token_first = [x[0].transpose(0, 1) for x in (grad, q, k, v)] + [out]
        grads = [torch.empty_like(x) for x in token_first[1:4]]
        for batch in ctx.layout.triangles:
            parts = [x[batch.index].transpose(1, 2) for x in token_first]
            block_sums = sums[batch.index]
            if batch.padded is not None:  # exp(-inf) is 0, so padding attends to nothing
                block_sums.view(-1, sums.shape[1])[batch.padded] = torch.inf
            blocks = _backward(*parts, block_sums.transpose(1, 2), 0.0, True, scale=ctx.scale)
            for total, block in zip(grads, blocks, strict=True):
                total[batch.tokens] = _kept(block.transpose(1, 2), batch)
        for r in ctx.layout.rectangles:
            queries, keys = slice(r.start, r.stop), slice(r.key_start, r.key_stop)
            blocks = _backward(
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
            for total, block, span in zip(grads, blocks, (queries, keys, keys), strict=True):
                total[span] += block[0].transpose(0, 1)
        return *(x.to(dtype).transpose(0, 1)[None] for x in grads), None, None


def _exact(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors in float32, or in their type if that is more precise: on CPUs, torch's kernels take up to six times as long for short
    blocks in bfloat16."""
    return [x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors]


def _kept(values: torch.Tensor, batch: Triangles) -> torch.Tensor:
    """[B, T, …] to [tokens, …], without padding."""
    flat = values.reshape(-1, *values.shape[2:])
    return flat if batch.kept is None else flat[batch.kept]


def _merge(out: torch.Tensor, sums: torch.Tensor, more_out: torch.Tensor, more_sums: torch.Tensor) -> None:
    """Merge attention over two disjoint sets of keys into attention over both, in place in ``out`` and ``sums``."""
    share = torch.sigmoid(more_sums - sums)
    out.lerp_(more_out, share[:, :, None])
    torch.logaddexp(sums, more_sums, out=sums)


@torch.compiler.disable  # `ajet_local.fused` compiles what is around it; flex_attention compiles itself
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
    """An attention function of transformers: over ``tree`` if given, else `sdpa`. Raises NotImplementedError for dropout and
    the arguments in `UNSUPPORTED`."""
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
    # Under autocast, rotary positions leave queries and keys in a more precise type.
    query, key = query.to(value.dtype), key.to(value.dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.device.type != "cpu":
        return masked_attention(_compiled(), query, key, value, tree, scale).transpose(1, 2), None
    repeats = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, repeats), repeat_kv(value, repeats)
    if tree.dense:
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=tree.mask, scale=scale
        )
    else:
        out = _TreeAttention.apply(query, key, value, tree, scale)
    return out.transpose(1, 2), None


def masked_attention(
    flex: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tree: TreeLayout, scale: float
) -> torch.Tensor:
    """Attention over ``tree`` by ``flex``, which is `flex_attention` or its compiled form: queries [1, H, N, D], keys and values
    [1, G, N, D], where G divides H, to outputs [1, H, N, D]."""
    count, mask = query.shape[2], tree.block_mask(query.device)
    padding = (0, 0, 0, mask.shape[-1] - count)
    query, key, value = (torch.nn.functional.pad(x, padding) for x in (query, key, value))
    out: torch.Tensor = flex(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
    return out[:, :, :count]


@cache
def _compiled() -> Any:
    # Without fullgraph, torch falls back to a kernel that holds all N² scores, with no more than a warning.
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


AttentionInterface.register(NAME, tree_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
