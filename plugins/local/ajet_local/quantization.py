"""bitsandbytes: whether it is installed, weights of 4 bits, and what must be kept of their layers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from transformers import BitsAndBytesConfig

from ajet import AjetError


def check_bitsandbytes(key: str) -> None:
    """Raise AjetError, which names the key of ``backbone.local``, if bitsandbytes is not installed."""
    if find_spec("bitsandbytes") is None:
        raise AjetError(
            f"backbone.local.{key}", "needs bitsandbytes: pip install 'ajet-plugin-local[quantize]'."
        )


def nf4(dtype: torch.dtype | str) -> BitsAndBytesConfig:
    """How weights are quantized, for computations in ``dtype``. Raises AjetError without bitsandbytes."""
    check_bitsandbytes("quantize")
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def keep_exact(model: Any) -> None:
    """Let a quantized model's linear layers always compute as in training. In eval mode, bitsandbytes repacks their weights for
    bfloat16 on some CPUs, after which no gradients flow and logprobs are others."""
    from bitsandbytes.nn import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.train()
