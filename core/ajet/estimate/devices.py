"""GPUs by name: how much memory they have, and how fast they read it and multiply."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from ajet.types import ConfigError
from ajet.utils.suggest import nearest

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


def _device(name: str, gib: int, gigabytes: float, teraflops: float) -> tuple[str, Device]:
    return name, Device(name, gib * GIB, gigabytes * 1e9, teraflops * 1e12)


# Memory, bandwidth and dense bfloat16 figures of the manufacturers' data sheets, for the fastest variant (SXM, OAM). The operations of
# A100, H100, H200, B200, L40S and MI300X are also those of verl's table (verl/utils/flops_counter.py).
DEVICES: Mapping[str, Device] = dict(
    (
        _device("A10", 24, 600, 125),
        _device("L4", 24, 300, 121),
        _device("L40S", 48, 864, 362),
        _device("RTX3090", 24, 936, 71),
        _device("RTX4090", 24, 1008, 165),
        _device("RTX5090", 32, 1792, 209),
        _device("A100-40", 40, 1555, 312),
        _device("A100-80", 80, 2039, 312),
        _device("H100", 80, 3350, 989),
        _device("H200", 141, 4800, 989),
        _device("B200", 180, 8000, 2250),
        _device("MI300X", 192, 5300, 1307),
    )
)
"""The GPUs that `parse_gpus` knows, by name."""


def parse_gpus(text: str) -> Gpus:
    """GPUs such as ``H100`` or ``8xH100``. Raises ConfigError."""
    match = re.fullmatch(r"\s*(?:(\d+)\s*[x×*]\s*)?([\w-]+)\s*", text, re.IGNORECASE)
    if match is None or match[1] == "0":
        raise ConfigError(
            f"--gpus {text}: write a number and a name, such as 8xH100, or a name, such as H100."
        )
    names = {name.lower(): name for name in DEVICES}
    name = match[2].lower()
    if name not in names:
        raise ConfigError(
            f"--gpus {text}: unknown GPU{nearest(match[2], DEVICES)}. Known: {', '.join(DEVICES)}."
        )
    return Gpus(int(match[1] or 1), DEVICES[names[name]])


def named(reported: str) -> Device | None:
    """The GPU that a driver reports by a name such as ``NVIDIA A100-SXM4-80GB``; None if it is not in `DEVICES`."""
    words = re.findall(r"[a-z0-9]+", reported.lower())
    names = {*words, *(one + other for one, other in itertools.pairwise(words))}  # also RTX 4090
    for name, device in DEVICES.items():
        model, _, size = name.lower().partition("-")
        if model in names and (not size or f"{size}gb" in names):
            return device
    return None


def reported_gpus(fields: str) -> list[str]:
    """What nvidia-smi reports of each of this machine's GPUs."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in output.splitlines() if line.strip()]
