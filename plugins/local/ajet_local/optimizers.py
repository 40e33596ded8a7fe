"""AdamW with moments of 32 or of 8 bits."""

from __future__ import annotations

from collections.abc import Iterable
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
