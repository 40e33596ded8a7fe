"""Installed packages whose kernels need an NVIDIA GPU, and which transformers computes recurrent layers with wherever it finds them."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import torch
from transformers import DynamicCache

from ajet import AjetError

NEED_CUDA = {
    "flash-linear-attention": "triton",
    "fla-core": "triton",
    "causal-conv1d": "",
    "mamba-ssm": "",
}
"""Distributions, and without which other one they cannot be imported, so that they break nothing."""


def recurrent(config: Any) -> bool:
    """Whether a model with this configuration has layers that keep more of a context than keys and values."""
    return any(hasattr(layer, "recurrent_states") for layer in DynamicCache(config=config).layers)


def failing_kernels() -> list[str]:
    """The installed distributions of `NEED_CUDA`, on a machine without CUDA."""
    if torch.cuda.is_available():
        return []
    return [
        name for name, with_ in NEED_CUDA.items() if _installed(name) and (not with_ or _installed(with_))
    ]


def check_kernels(source: str, config: Any) -> None:
    """Raise AjetError if an installed package breaks the recurrent layers of a model with this configuration."""
    broken = failing_kernels()
    if broken and recurrent(config):
        raise AjetError(
            f"model {source}",
            f"transformers computes its recurrent layers with {', '.join(broken)}, which fails without an NVIDIA GPU; torch computes "
            f"them without it: pip uninstall {' '.join(broken)}",
        )


def _installed(distribution: str) -> bool:
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False
