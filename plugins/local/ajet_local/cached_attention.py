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

from ajet_local.kv_cache import CacheNode
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
        self._foreign: torch.Tensor | None = foreign if bank.size > 1 or foreign.any() else None
        self._biases: dict[int | None, torch.Tensor | None] = {}

    def bias(self, window: int | None) -> torch.Tensor | None:
        """[families, 1, size, width]: minus infinity where a member must not read a column, which is another's or not among the
        last ``window`` of its tokens; None if all members read all columns."""
        if window is not None and self.width <= window:
            window = None
        if window not in self._biases:
            foreign = self._foreign
            if window is not None:
                foreign = self.bank.foreign(self.families, self.width)
                tokens = (~foreign).cumsum(-1)  # a member's columns are in the order of its tokens
                foreign |= tokens <= tokens[..., -1:] - window
            self._biases[window] = None if foreign is None else _minus_infinity(foreign, self.bank.kv.dtype)
        return self._biases[window]

    def read(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: Attention
    ) -> torch.Tensor:
        """Store the new keys and values, and attend: [n, H, D] for ``q`` [n, H, D], ``k``, ``v`` [n, heads, D]."""
        keys, values = self.bank.kv[layer, :, : self.families]
        keys[self.slots, :, self.columns] = k
        values[self.slots, :, self.columns] = v
        keys, values = keys[:, :, : self.width], values[:, :, : self.width]
        if self.rows is not None:
            q = q.new_zeros(self.families * self.bank.size, *q.shape[1:]).index_copy_(0, self.rows, q)
        size, heads, head_dim = self.bank.size, k.shape[1], q.shape[2]
        group = q.shape[1] // heads
        q = q.reshape(-1, size, heads, group, head_dim).transpose(1, 2)
        bias = self.bias(how.window)
        if size == 1 and how.sinks is None:
            out = _read_one(q[:, :, 0], keys, values, bias, how.scaling)
        else:
            if bias is not None and group > 1:
                bias = bias.repeat_interleave(group, dim=2)
            q = q.reshape(self.families, heads, size * group, head_dim)
            if how.sinks is None:
                out = scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=how.scaling)
            else:
                sinks = how.sinks.view(heads, 1, group).expand(-1, size, -1).reshape(heads, -1, 1)
                out = _beside_sinks(q, keys, values, bias, how.scaling, sinks)
        out = out.view(self.families, heads, size, group, head_dim).transpose(1, 2)
        out = out.reshape(self.families * size, heads * group, head_dim)
        return out if self.rows is None else out[self.rows]


class NodeChunk:
    """The ``count`` next tokens of a node, which this pass computes as its tokens from ``start`` on."""

    def __init__(self, node: CacheNode, count: int, start: int) -> None:
        self.node = node
        self.count = count
        self.span = slice(start, start + count)
        self._masks: dict[int | None, torch.Tensor | None] = {}

    def mask(self, window: int | None) -> torch.Tensor | None:
        """bool[count, keys]: which of the path's keys each token attends to, the last ``window`` if that is given; None if these are
        the chunk's own up to the token itself."""
        before = self.node.start + self.node.filled
        if window is not None and before + self.count <= window:
            window = None
        if window not in self._masks:
            every = torch.ones(self.count, before + self.count, dtype=torch.bool, device=self.node.kv.device)
            seen = every.tril(before) if window is None else every.tril(before).triu(before - window + 1)
            self._masks[window] = seen if before or window is not None else None
        return self._masks[window]

    def attend(self, layer: int, q: torch.Tensor, how: Attention) -> torch.Tensor:
        """Attention of the chunk's tokens to their path: [count, H, D] for ``q`` [count, H, D]."""
        q, keys, values = q.transpose(0, 1), self.path(layer, 0), self.path(layer, 1)
        mask = self.mask(how.window)
        if how.sinks is None:
            out = scaled_dot_product_attention(
                q[None],
                keys[None],
                values[None],
                attn_mask=mask,
                is_causal=mask is None,
                scale=how.scaling,
                enable_gqa=len(q) != len(keys),
            )[0]
        else:
            if mask is None:
                mask = torch.ones(self.count, self.count, dtype=torch.bool, device=q.device).tril()
            group = len(q) // len(keys)
            bias = _minus_infinity(~mask, q.dtype).repeat(group, 1)
            sinks = how.sinks.repeat_interleave(self.count).view(len(keys), -1, 1)
            rows = q.reshape(len(keys), -1, q.shape[-1])
            out = _beside_sinks(rows, keys, values, bias, how.scaling, sinks).view_as(q)
        return out.transpose(0, 1)

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
class Attention:
    """How a layer attends."""

    scaling: float
    window: int | None = None
    """How many of the last tokens a token attends to, itself among them; None: all."""
    sinks: torch.Tensor | None = None
    """float[H]: a score of each head that takes its share of the softmax and has no value (Xiao et al., arXiv:2309.17453; gpt-oss)."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The parts of one forward pass."""

    decoding: Sequence[Decoding]
    chunks: Sequence[NodeChunk]


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
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers: stores keys and values of the N tokens of ``cached``, and attends.

    ``query`` is [1, H, N, D], ``key`` and ``value`` are [1, heads, N, D]; returns [1, N, H, D]. Raises NotImplementedError for
    softcap, and for a layer that slides but does not say how far.
    """
    layer = module.layer_idx
    kinds = getattr(module.config, "layer_types", None) or {layer: ""}
    if softcap is not None or (kinds[layer] == "sliding_attention" and sliding_window is None):
        raise NotImplementedError("its attention has a cap on scores, or a window that it does not tell")
    how = Attention(scaling, sliding_window, s_aux)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for part in cached.decoding:
        span = part.span
        out[span] = part.read(layer, q[span], k[span], v[span], how)
    for chunk in cached.chunks:
        chunk.keep(layer, k, v)
        out[chunk.span] = chunk.attend(layer, q[chunk.span], how)
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


def _beside_sinks(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    scaling: float,
    sinks: torch.Tensor,
) -> torch.Tensor:
    """Attention with ``sinks`` [heads, rows, 1]: ``q`` is [..., heads, rows, D], ``keys``, ``values`` are [..., heads, S, D]."""
    scores = (q @ keys.mT) * scaling
    if bias is not None:
        scores = scores + bias
    scores = torch.cat([scores, sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)], dim=-1)
    shares = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return shares[..., :-1].to(values.dtype) @ values


def _minus_infinity(where: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(where.shape, dtype=dtype, device=where.device).masked_fill_(where, float("-inf"))


AttentionInterface.register(ATTENTION, attend)
