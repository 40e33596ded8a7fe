"""Attention of one forward pass over decoding completions and chunks of prompts together.

The pass is a single row of tokens without padding: first one for each decoding completion, then the
chunks. Only attention distinguishes them; the model's other layers process the row as it is. Models call `attend`
through the attention interface of transformers, under the name `ATTENTION`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from ajet_local.kv_cache import Node
from ajet_local.slots import Bank

ATTENTION = "ajet_cached"


class Decoding:
    """The next token of every completion of a bank, as the pass's tokens ``span``, which begin at ``start``."""

    def __init__(self, bank: Bank, start: int) -> None:
        device = bank.kv.device
        owners = [(slot, member) for slot, family in enumerate(bank.taken) for member in family.alive]
        columns = [family.used + n for family in bank.taken for n in range(len(family.alive))]
        slots, members = torch.tensor(owners, device=device).unbind(1)
        self.bank = bank
        self.span = slice(start, start + len(owners))
        self.families = len(bank.taken)
        self.width = max(columns) + 1
        """How many columns of the slots they read."""
        self.slots = slots
        self.columns = torch.tensor(columns, device=device)
        """int64[n]: the columns of the new tokens."""
        self.rows: torch.Tensor | None = None
        """int64[n]: each completion's row among families * size rows; None if every family is complete."""
        if len(owners) < self.families * bank.size:
            self.rows = slots * bank.size + members
        bank.owner[slots, self.columns] = members.to(torch.int8)
        foreign = bank.foreign(self.families, self.width)
        self.bias: torch.Tensor | None = None
        """[families, 1, size, width]: minus infinity where a member must not read a column; None if all members read all columns."""
        if bank.size > 1 or foreign.any():
            self.bias = torch.zeros(foreign.shape, dtype=bank.kv.dtype, device=device)
            self.bias.masked_fill_(foreign, float("-inf"))

    def read(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Store the new keys and values, and attend to all: [n, H, D] for ``q`` [n, H, D], ``k``, ``v`` [n, heads, D]."""
        keys, values = self.bank.kv[layer, :, : self.families]
        keys[self.slots, :, self.columns] = k
        values[self.slots, :, self.columns] = v
        keys, values = keys[:, :, : self.width], values[:, :, : self.width]
        if self.rows is not None:
            q = q.new_zeros(self.families * self.bank.size, *q.shape[1:]).index_copy_(0, self.rows, q)
        size, heads, head_dim = self.bank.size, k.shape[1], q.shape[2]
        group = q.shape[1] // heads
        q = q.reshape(-1, size, heads, group, head_dim).transpose(1, 2)
        bias = self.bias
        if size == 1:
            out = _read_one(q[:, :, 0], keys, values, bias, scaling)
        else:
            if bias is not None and group > 1:
                bias = bias.repeat_interleave(group, dim=2)
            q = q.reshape(self.families, heads, size * group, head_dim)
            out = scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=scaling)
        out = out.view(self.families, heads, size, group, head_dim).transpose(1, 2)
        out = out.reshape(self.families * size, heads * group, head_dim)
        return out if self.rows is None else out[self.rows]


class Chunk:
    """The ``count`` next tokens of a node, which this pass computes as its tokens from ``start`` on."""

    def __init__(self, node: Node, count: int, start: int) -> None:
        self.node = node
        self.count = count
        self.span = slice(start, start + count)
        before = node.start + node.filled
        self.mask: torch.Tensor | None = None
        """bool[count, keys]: which of the path's keys each token attends to; None if the chunk begins the path."""
        if before:
            every = torch.ones(count, before + count, dtype=torch.bool, device=node.kv.device)
            self.mask = every.tril(before)

    def keep(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store the chunk's part of the pass's keys and values [N, heads, D] in the node."""
        begin, end = self.node.filled, self.node.filled + self.count
        self.node.kv[layer, 0, :, begin:end] = k[self.span].transpose(0, 1)
        self.node.kv[layer, 1, :, begin:end] = v[self.span].transpose(0, 1)

    def path(self, layer: int, part: int) -> torch.Tensor:
        """[heads, tokens, D]: keys (part 0) or values (part 1) from the path's first token to the chunk's last."""
        own = self.node.kv[layer, part, :, : self.node.filled + self.count]
        above = [node.kv[layer, part] for node in self.node.path()][:0:-1]
        return torch.cat([*above, own], dim=1) if above else own


@dataclass(frozen=True, slots=True)
class Pass:
    """The parts of one forward pass."""

    decoding: Sequence[Decoding]
    chunks: Sequence[Chunk]


def forward(
    model: Any, tokens: torch.Tensor, positions: torch.Tensor, cached: Pass, keep: torch.Tensor | int
) -> torch.Tensor:
    """The logits [K, V] of a pass with ``tokens``, ids int64[N] or embeddings float[N, H], at ``positions``, int64[N] or int64[3, N];
    ``keep`` int64[K] are the tokens that get some, 0 means all. Attention stores keys and values in the slots and nodes of
    ``cached``."""
    config = model.config.get_text_config()
    original = config._attn_implementation
    config._attn_implementation = ATTENTION
    try:
        logits: torch.Tensor = model(
            **{"inputs_embeds" if tokens.is_floating_point() else "input_ids": tokens[None]},
            position_ids=positions.unsqueeze(-2),
            use_cache=False,
            logits_to_keep=keep,
            cached=cached,
        ).logits[0]
    finally:
        config._attn_implementation = original
    return logits


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float,
    cached: Pass,
    softcap: float | None = None,
    s_aux: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers: stores keys and values of the N tokens of ``cached``, and attends.

    ``query`` is [1, H, N, D], ``key`` and ``value`` are [1, heads, N, D]; returns [1, N, H, D]. Sliding windows are
    ignored, because the engine bounds contexts to one window. Raises NotImplementedError for softcap and sinks.
    """
    if softcap is not None or s_aux is not None:
        raise NotImplementedError("the local engine samples from models with plain full attention only")
    layer = module.layer_idx
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for part in cached.decoding:
        span = part.span
        out[span] = part.read(layer, q[span], k[span], v[span], scaling)
    for chunk in cached.chunks:
        chunk.keep(layer, k, v)
        out[chunk.span] = scaled_dot_product_attention(
            q[chunk.span].transpose(0, 1)[None],
            chunk.path(layer, 0)[None],
            chunk.path(layer, 1)[None],
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )[0].transpose(0, 1)
    return out[None], None


def _read_one(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Attention with one query token in each slot: ``q`` [B, heads, H / heads, D], ``keys``, ``values`` [B, heads, S, D]."""
    if q.dtype != torch.float32:
        return scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=scaling)
    # Two matrix products are faster than the fused kernel, which is made for many queries.
    scores = torch.bmm((q * scaling).flatten(0, 1), keys.flatten(0, 1).mT).view(*q.shape[:3], -1)
    if bias is not None:
        scores.add_(bias)
    return torch.bmm(torch.softmax(scores, dim=-1).flatten(0, 1), values.flatten(0, 1)).view_as(q)


AttentionInterface.register(ATTENTION, attend)
