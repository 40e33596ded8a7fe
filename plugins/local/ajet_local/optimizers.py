"""AdamW with moments of 32 or of 8 bits, and weights whose small updates bfloat16 shows.

A model is sampled and computed in bfloat16, whose numbers lie 2⁻⁸ to 2⁻⁷ of their size apart. Rounded to the nearest of them, an
update of a learning rate of 3e-5 vanishes in a weight of 0.1, and so do those after it, until their sum reaches half of the distance:
the policy does not move for the first steps of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch

from ajet_local.quantization import check_bitsandbytes

OptimizerName = Literal["adamw", "adamw_8bit"]


def make_optimizer(
    name: OptimizerName,
    groups: Iterable[dict[str, Any]],
    *,
    betas: tuple[float, float],
    weight_decay: float,
    epsilon: float,
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter, arXiv:1711.05101) on groups of parameters, all on one device.

    ``adamw_8bit`` stores the moments of tensors with at least 4096 numbers in 8 bits, with a scale for each block of 256
    (Dettmers et al., arXiv:2110.02861). Raises AjetError for it without bitsandbytes.
    """
    groups = list(groups)
    settings: dict[str, Any] = {"betas": betas, "weight_decay": weight_decay, "eps": epsilon}
    if name == "adamw_8bit":
        check_bitsandbytes("optimizer")
        from bitsandbytes.optim import AdamW8bit

        eight_bits: torch.optim.Optimizer = AdamW8bit(groups, **settings)
        return eight_bits
    devices = {p.device.type for group in groups for p in group["params"]}
    return torch.optim.AdamW(groups, fused=devices <= {"cpu", "cuda"}, **settings)


HALF = 1 << 15
"""Half of the distance between neighbours in bfloat16, in units of the last bit of a float32 between them."""
SIZE = 0x7FFF0000
"""The bits of a number's size that bfloat16 has. Numbers without them are zero or next to it."""
PART = 1 << 24
"""About how many weights get their dither at a time; it bounds the memory that this takes."""
PART_ON_CPU = 1 << 18
"""As `PART`; so few stay in the processor's cache."""


def show_small_updates(optimizer: torch.optim.Optimizer, weights: Iterable[torch.nn.Parameter]) -> None:
    """From now on, each step of ``optimizer`` adds a fixed dither to the float32 ``weights``: to each weight its own part of the
    distance to its neighbours in bfloat16, from minus to plus half of it. The next step first subtracts it, bit by bit.

    Whatever converts the weights then rounds up, of those at the same place between two neighbours, as many as the place says: their
    mean follows each update (stochastic rounding: Croci et al., doi:10.1098/rsos.211631). As the dither is fixed,
    a weight that has not changed is rounded as before, a run gives the same bits again, and the noise does not grow with the steps.
    The optimizer's state says whether the weights have it, so a checkpoint of both goes on exactly. Weights without it are first
    rounded to what was sampled with: those that begin another run have the dither of an earlier one, and two would move the policy.
    """
    weights = list(weights)
    dithers = [list(_dither(weight, seed)) for seed, weight in enumerate(weights)]

    def add(sign: int) -> None:
        for weight, dither in zip(weights, dithers, strict=True):
            _add(weight.data, dither, sign)

    def before(*_: Any) -> None:
        if optimizer.param_groups[0].get("dithered"):
            add(-1)
            return
        for weight in weights:
            weight.data.copy_(weight.data.bfloat16())

    def after(*_: Any) -> None:
        add(1)
        optimizer.param_groups[0]["dithered"] = True

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def _dither(weight: torch.Tensor, seed: int) -> Iterator[torch.Tensor]:
    """For each dimension int32[1, …, n, …, 1]; the low 16 bits of their sum are uniform, and independent for any two weights."""
    generator = torch.Generator().manual_seed(seed)
    for dimension, size in enumerate(weight.shape):
        numbers = torch.randint(0, 2 * HALF, (size,), generator=generator, dtype=torch.int32)
        shape = [1] * weight.dim()
        shape[dimension] = size
        yield numbers.view(shape).to(weight.device)


def _add(weight: torch.Tensor, dither: Sequence[torch.Tensor], sign: int) -> None:
    """Add or subtract a dither, in place. Sign and size are apart in a float's bits, so size is what they add to."""
    if not weight.dim():
        return
    first, *others = dither
    on_cpu = weight.device.type == "cpu"
    rows = max((PART_ON_CPU if on_cpu else PART) * len(weight) // max(weight.numel(), 1), 1)
    for start in range(0, len(weight), rows):
        part = slice(start, start + rows)
        bits = weight[part].view(torch.int32)
        # Odd, so that a weight that bfloat16 holds never gets to the middle between two.
        own = (sum(others, first[part]) & (2 * HALF - 1) | 1) - HALF
        bits.add_(own * ((bits & SIZE) != 0), alpha=sign)
