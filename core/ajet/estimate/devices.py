"""GPUs: how much memory they have, and how fast they read it and multiply; those of this machine."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

GIB = 1 << 30
USABLE = 0.95
"""Share of a GPU's memory for the tensors of a job. The rest is for CUDA's context, cuBLAS and blocks that its allocator cannot
use."""
ASLEEP = int(6.4 * GIB)
"""Bytes that a vLLM which sleeps for the update keeps, at most, as measured on an H100: CUDA's context and graphs, and what NCCL
allocates. While it samples, it has these besides its weights and cache."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU."""

    name: str
    memory: int
    """Bytes."""
    bandwidth: float
    """Bytes that it reads from its memory in a second."""
    flops: float
    """Operations that it does in a second on dense bfloat16 matrices, accumulated in float32."""

    @property
    def usable(self) -> int:
        """Bytes for the tensors of a job."""
        return int(self.memory * USABLE)


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of one kind, on one machine or several."""

    count: int
    device: Device

    def __str__(self) -> str:
        return f"{self.count} × {self.device.name}"


def reported_gpus(fields: str) -> list[str]:
    """What nvidia-smi reports of each of this machine's GPUs."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in output.splitlines() if line.strip()]
