"""The GPUs of the machine on which `ajet run` composes verl's configuration."""

from __future__ import annotations

import os


def on_gpus() -> bool:
    """Whether the job is for GPUs: verl reads another platform from VERL_PLATFORM."""
    return "VERL_PLATFORM" not in os.environ


def gpu_count() -> int:
    """How many GPUs this machine has."""
    if not on_gpus():
        return 0
    import torch

    return torch.cuda.device_count()


def gpu_memory() -> int | None:
    """Bytes of this machine's first GPU, None without one."""
    if not gpu_count():
        return None
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory)
