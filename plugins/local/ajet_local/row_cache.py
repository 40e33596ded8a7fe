"""What a model's layers store of a context, in transformers' own caches: keys and values, and states of recurrent layers.

A state summarizes all tokens so far, so it cannot be cut as keys and values can. It is only known where a pass ended.
Several contexts of different lengths are one cache whose rows end together: the shorter ones have columns in front that
a mask hides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

from ajet_local.modeling import recurrent, with_cache


def keeps_states(model: Any) -> bool:
    """Whether a layer of the model keeps more of a context than its keys and values."""
    return recurrent(model.config)


@dataclass(frozen=True, slots=True)
class Stored:
    """What one layer stores of a context; each tensor has one row. ``past`` are keys and values [1, heads, T, D], of the last tokens
    only if the layer has a window; ``states`` are those of a recurrent layer by their index, first of its convolutions, then others."""

    past: tuple[torch.Tensor, torch.Tensor] | None
    states: tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]

    def tensors(self) -> Iterator[torch.Tensor]:
        yield from self.past or ()
        for of_kind in self.states:
            yield from of_kind.values()

    def map(self, change: Any) -> Stored:
        past = (change(self.past[0]), change(self.past[1])) if self.past else None
        convolutions, recurrent = ({i: change(t) for i, t in of_kind.items()} for of_kind in self.states)
        return Stored(past, (convolutions, recurrent))


@dataclass(frozen=True, slots=True)
class CachedRow:
    """A context of ``length`` tokens, as each layer stores it."""

    length: int
    layers: Sequence[Stored]

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for layer in self.layers for tensor in layer.tensors())

    def clone(self) -> CachedRow:
        """A copy that later passes do not change."""
        return CachedRow(self.length, [layer.map(torch.clone) for layer in self.layers])


EMPTY = CachedRow(0, ())
"""A context without tokens."""


class CachedRows:
    """Contexts that are computed together: one cache of transformers, whose row i ends with the last of ``lengths[i]`` tokens."""

    def __init__(self, model: Any, rows: Sequence[CachedRow]) -> None:
        self.model = model
        self.lengths = [row.length for row in rows]
        self.cache = DynamicCache(config=model.config)
        if self.width:
            for index, layers in enumerate(zip(*(row.layers for row in rows), strict=True)):
                _fill(self.cache, index, layers, self.width)

    @property
    def width(self) -> int:
        """How many columns the longest context has."""
        return max(self.lengths, default=0)

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Add the tokens int64[B, T] to the contexts: float[B, V], the logits of the last ones."""
        device, count = ids.device, ids.shape[1]
        lengths = torch.tensor(self.lengths, device=device)[:, None]
        inputs: dict[str, Any] = {"position_ids": lengths + torch.arange(count, device=device)}
        if min(self.lengths) < self.width:
            columns = torch.arange(self.width + count, device=device)
            inputs["attention_mask"] = (columns >= self.width - lengths).long()
        logits: torch.Tensor = self.model(
            input_ids=ids, **inputs, **with_cache(self.model, self.cache), logits_to_keep=1
        ).logits[:, -1]
        self.lengths = [length + count for length in self.lengths]
        return logits

    def __getitem__(self, index: int) -> CachedRow:
        """A context. Its tensors are those of the cache, which the next pass may change."""
        length = self.lengths[index]
        own = slice(index, index + 1)

        def of(layer: Any) -> Stored:
            past = None
            if getattr(layer, "keys", None) is not None:
                kept = min(length, layer.keys.shape[-2])
                start = layer.keys.shape[-2] - kept
                past = (layer.keys[own, :, start:], layer.values[own, :, start:])
            return Stored(past, (_states(layer, "conv_states", own), _states(layer, "recurrent_states", own)))

        return CachedRow(length, [of(layer) for layer in self.cache.layers])


def _states(layer: Any, name: str, own: slice) -> dict[int, torch.Tensor]:
    states = getattr(layer, name, None) or {}
    return {index: state[own] for index, state in states.items() if state is not None}


def _fill(cache: Any, index: int, rows: Sequence[Stored], width: int) -> None:
    """Put what a layer stores of several contexts into an empty cache."""
    layer = cache.layers[index]
    if rows[0].past is not None:
        columns = max(row.past[0].shape[-2] for row in rows if row.past)
        keys, values = (
            torch.cat(
                [pad(row.past[n], (0, 0, columns - row.past[n].shape[-2], 0)) for row in rows if row.past]
            )
            for n in (0, 1)
        )
        layer.update(keys, values)
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = width  # a window has dropped the first ones
    convolutions, recurrent = ([row.states[kind] for row in rows] for kind in (0, 1))
    for state in convolutions[0]:
        layer.update_conv_state(torch.cat([states[state] for states in convolutions]), state_idx=state)
    for state in recurrent[0]:
        layer.update_recurrent_state(torch.cat([states[state] for states in recurrent]), state_idx=state)
