"""Weights whose small updates bfloat16 shows.

A model is sampled and computed in bfloat16, whose numbers lie 2⁻⁸ to 2⁻⁷ of their size apart. Rounded to the nearest of them, an
update of a learning rate of 3e-5 vanishes in a weight of 0.1, and so do those after it, until their sum reaches half of the distance:
the policy does not move for the first steps of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

HALF = 1 << 15
"""Half of the distance between neighbours in bfloat16, in units of the last bit of a float32 between them."""
SIZE = 0x7FFF0000
"""The bits of a number's size that bfloat16 has. Numbers without them are zero or next to it."""
PART = 1 << 24
"""About how many weights are moved at a time; it bounds the memory that this takes."""
PART_ON_CPU = 1 << 18
"""As `PART`; so few stay in the processor's cache."""


def show_small_updates(optimizer: torch.optim.Optimizer, weights: Iterable[torch.nn.Parameter]) -> None:
    """From now on, each step leaves every one of the float32 ``weights`` moved by a distance of its own, between minus and plus half
    of that to its neighbours in bfloat16; the next step begins by moving it back, bit by bit.

    Of weights at the same place between two neighbours, as many are then rounded up, by whatever converts them, as the place says: the
    sum of many moves with each update (stochastic rounding: Croci et al., doi:10.1098/rsos.211631). As a weight keeps its distance,
    one that has not changed is rounded as before, a run gives the same bits again, and the noise does not grow with the steps.
    The optimizer's state says that weights are moved, so a checkpoint of both goes on exactly.
    """
    weights = list(weights)
    distances = [list(_distances(weight, seed)) for seed, weight in enumerate(weights)]
    (group, *_) = optimizer.param_groups

    def move(sign: int) -> None:
        for weight, own in zip(weights, distances, strict=True):
            _move(weight.data, own, sign)

    def back(*_: Any) -> None:
        if optimizer.param_groups[0].get("moved"):
            move(-1)

    def away(*_: Any) -> None:
        move(1)
        optimizer.param_groups[0]["moved"] = True

    group["moved"] = False
    optimizer.register_step_pre_hook(back)
    optimizer.register_step_post_hook(away)


def _distances(weight: torch.Tensor, seed: int) -> Iterator[torch.Tensor]:
    """For each dimension int32[1, …, n, …, 1]; the low 16 bits of their sum are uniform, and independent for any two weights."""
    generator = torch.Generator().manual_seed(seed)
    for dimension, size in enumerate(weight.shape):
        numbers = torch.randint(0, 2 * HALF, (size,), generator=generator, dtype=torch.int32)
        shape = [1] * weight.dim()
        shape[dimension] = size
        yield numbers.view(shape).to(weight.device)


def _move(weight: torch.Tensor, distances: Sequence[torch.Tensor], sign: int) -> None:
    """Add or subtract the distances, in place. Sign and size are apart in a float's bits, so size is what they add to."""
    if not weight.dim():
        return
    first, *others = distances
    on_cpu = weight.device.type == "cpu"
    rows = max((PART_ON_CPU if on_cpu else PART) * len(weight) // max(weight.numel(), 1), 1)
    for start in range(0, len(weight), rows):
        part = slice(start, start + rows)
        bits = weight[part].view(torch.int32)
        # Odd, so that a weight that bfloat16 holds never gets to the middle between two.
        distance = (sum(others, first[part]) & (2 * HALF - 1) | 1) - HALF
        bits.add_(distance * ((bits & SIZE) != 0), alpha=sign)
