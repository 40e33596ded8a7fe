"""Weights that leave verl's workers in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def keep_precision() -> None:
    """Replace the function that rounds weights to bfloat16."""
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    def get_per_tensor_param(self: Any, **_: Any) -> tuple[Iterator[tuple[str, torch.Tensor]], None]:
        state = self.module.state_dict()
        whole = ((name, p.full_tensor() if hasattr(p, "full_tensor") else p) for name, p in state.items())
        return whole, None

    FSDPEngine.get_per_tensor_param = get_per_tensor_param
