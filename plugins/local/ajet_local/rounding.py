"""Weights that are at each moment what bfloat16 holds of them, though small updates add up.

A model is sampled and computed in bfloat16, whose numbers lie 2⁻⁸ to 2⁻⁷ of their size apart. Rounded to the nearest of them, an
update of a learning rate of 3e-5 vanishes in a weight of 0.1, and so do those after it, until their sum reaches half of the distance:
the policy does not move for the first steps of a run, and then all weights jump at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

LOW = 0xFFFF
"""The bits of a float32 that bfloat16 lacks."""
PART = 1 << 24
"""About how many weights are rounded at a time; it bounds the memory that this takes."""
PART_ON_CPU = 1 << 18
"""As `PART`; so few stay in the processor's cache."""


def round_after_steps(optimizer: torch.optim.Optimizer, weights: Iterable[torch.nn.Parameter]) -> None:
    """From now on, ``optimizer`` leaves float32 ``weights`` as numbers that bfloat16 holds. The 16 bits that this takes from
    each are ``low_bits`` in its state, so that its next step begins with the exact weights.

    Of weights at the same place between two neighbours, as many are rounded up as the place says, so that the sum of many
    moves with each update (stochastic rounding: Croci et al., doi:10.1098/rsos.211631). Which are the first is decided once for
    each weight, by its indices: a weight that has not changed does not move, a run gives the same bits again, and the noise does
    not grow with the steps.
    """
    weights = [weight for weight in weights if weight.dim()]
    thresholds = [list(_thresholds(weight, seed)) for seed, weight in enumerate(weights)]

    def restore(*_: Any) -> None:
        for weight, own in zip(weights, thresholds, strict=True):
            if (low_bits := optimizer.state.get(weight, {}).get("low_bits")) is not None:
                _restore(weight.data, low_bits, own)

    def round_(*_: Any) -> None:
        for weight, own in zip(weights, thresholds, strict=True):
            if state := optimizer.state.get(weight):  # else it had no gradient, so no step
                state["low_bits"] = _round(weight.data, own)

    optimizer.register_step_pre_hook(restore)
    optimizer.register_step_post_hook(round_)


def _thresholds(weight: torch.Tensor, seed: int) -> Iterator[torch.Tensor]:
    """For each dimension int32[1, …, n, …, 1]; the low bits of their sum are a weight's threshold: uniform, and independent
    for any two weights."""
    generator = torch.Generator().manual_seed(seed)
    for dimension, size in enumerate(weight.shape):
        numbers = torch.randint(0, LOW + 1, (size,), generator=generator, dtype=torch.int32)
        shape = [1] * weight.dim()
        shape[dimension] = size
        yield numbers.view(shape).to(weight.device)


def _round(weight: torch.Tensor, thresholds: Sequence[torch.Tensor]) -> torch.Tensor:
    """Round float32 in place; returns its low bits before, int16 of the same shape."""
    kept = torch.empty_like(weight, dtype=torch.int16)
    for part, bits, threshold in _parts(weight, thresholds):
        kept[part] = bits  # the high bits do not fit
        # Sign and size are apart in a float's bits: from the threshold on, the sum carries into the high bits.
        bits.add_(threshold).bitwise_and_(~LOW)
    return kept


def _restore(weight: torch.Tensor, kept: torch.Tensor, thresholds: Sequence[torch.Tensor]) -> None:
    """What `_round` was given, in place. ``kept`` may be float32, as a loaded optimizer has it."""
    for part, bits, threshold in _parts(weight, thresholds):
        low = kept[part].to(torch.int32) & LOW
        bits.sub_((low + threshold) & ~LOW).bitwise_or_(low)


def _parts(
    weight: torch.Tensor, thresholds: Sequence[torch.Tensor]
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Slices of the first dimension, the weights' bits there and their thresholds, both int32."""
    size = PART_ON_CPU if weight.device.type == "cpu" else PART
    rows = max(size * len(weight) // max(weight.numel(), 1), 1)
    for start in range(0, len(weight), rows):
        part = slice(start, start + rows)
        first, *others = thresholds
        yield part, weight[part].view(torch.int32), sum(others, first[part]) & LOW
