"""Training on trees beside rows, and the local engine's generation (`bench/gpu.py`)."""

from __future__ import annotations

import asyncio
from typing import Any

import gpu
import torch

from ajet_local.modeling import load_model
from prove.part import Options, main


def run(options: Options) -> dict[str, Any]:
    """The figures of `gpu.training` and `gpu.generation`."""
    sizes = gpu.Sizes(2, 3, 64, 16, 1, 4) if options.reduced else gpu.Sizes()
    model = load_model(options.large, options.device, torch.float32)[0]
    figures = gpu.training(model, sizes, gpu.matmul_flops(options.device, 256 if options.reduced else 8192))
    figures |= asyncio.run(gpu.generation(model.to(torch.bfloat16), sizes))
    return {name: round(value, 4) for name, value in figures.items()}


if __name__ == "__main__":
    main(run, __doc__)
