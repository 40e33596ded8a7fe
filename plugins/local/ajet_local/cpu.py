"""What the cores of a CPU do well: which type they multiply fastest, and how threads wait for each other.

Importing this module imports no torch: how its threads wait and what it keeps are decided before.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

SMALL = 10_000_000
"""Parameters below which a model has one thread and computes in float32. Threads wait for each other after each operation, and one of
a small model is so short that where other work uses the cores, two threads were twenty times slower than one."""
NATIVE = ("amx_bf16", "avx512_bf16", "bf16")
"""Instructions that multiply in bfloat16, by their names in /proc/cpuinfo: Intel's, AMD's and Intel's, ARM's. Without them bfloat16 is
converted and slower than float32."""
ROWS, WIDEST, SECONDS = 64, 1024, 0.1
"""Of the product that is timed: tokens that are sampled together, the most numbers of each, and how long it is repeated."""
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables with which a user says how threads of OpenMP wait."""

KERNELS, MOST_KERNELS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), 256
"""Variables with which a user says how many kernels oneDNN keeps, and PyTorch's layer over it; and how many both keep here."""


def sleep_while_waiting() -> None:
    """Let OpenMP's threads sleep while they wait, here and in processes that are started from now on; not if the user has said how they
    wait. OpenMP reads this once, when torch is imported.

    By default they spin. A model has hundreds of operations a token, after each of which threads wait for the last one; where another
    program has that one's core, the others waste theirs, and two threads took 5 to 17 times as long as one.
    """
    if not os.environ.keys() & set(WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def keep_few_kernels() -> None:
    """Let oneDNN keep fewer kernels, here and in processes that are started from now on; not if the user has said how many.

    It computes in bfloat16, makes a kernel for each shape, and keeps 1,024 twice. Episodes have ever new lengths, so these were 600 MB.
    """
    for variable in KERNELS:
        os.environ.setdefault(variable, str(MOST_KERNELS))


def crowded() -> str:
    """The load and the cores of this process, such as "15 on 2 cores", if the load is higher, and not only of what has just ended;
    else ""."""
    if not hasattr(os, "getloadavg"):
        return ""
    load, cores = round(os.getloadavg()[0]), available_cores()
    return f"{load} on {cores} cores" if load > cores and running() > cores else ""


def running() -> float:
    """How many threads of the machine compute now or wait for a core; infinity where the system does not say."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except OSError:
        return float("inf")


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bfloat16(hidden: int, inner: int, *, measured: bool) -> tuple[bool, str]:
    """Whether a model of this width computes in bfloat16 on this CPU, and why. Not ``measured``, it depends on nothing but the CPU and
    torch, so that a run can be repeated bit for bit."""
    import torch

    instructions = native_bfloat16()
    if not instructions:
        return False, "this CPU has no instructions for bfloat16"
    if not torch.backends.mkldnn.is_available():
        return False, f"this CPU has {instructions}, but this build of torch does not use it"
    if not measured:
        return True, f"this CPU has {instructions}"
    gain = _gain(min(hidden, WIDEST), min(inner, WIDEST))
    if gain <= 1:
        return False, f"this CPU has {instructions}, but multiplies faster in float32"
    return True, f"this CPU has {instructions} and multiplies {gain:.1f} times as fast with it"


def native_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The instructions of this CPU that multiply in bfloat16; "" if it has none, or the system does not say."""
    if not cpuinfo.is_file():
        return ""
    lines = (line.partition(":") for line in cpuinfo.read_text().splitlines())
    words = next((text.split() for name, _, text in lines if name.strip() in ("flags", "Features")), [])
    return next((name for name in NATIVE if name in words), "")


@cache
def _gain(hidden: int, inner: int) -> float:
    """How many times as long a product of a layer takes in float32 as in bfloat16. The shortest of many tries: other work makes some
    longer."""
    import torch

    def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(ROWS, hidden, dtype=dtype), torch.ones(inner, hidden, dtype=dtype)

    pairs = {dtype: operands(dtype) for dtype in (torch.float32, torch.bfloat16)}
    shortest = dict.fromkeys(pairs, float("inf"))
    with torch.inference_mode():
        for rows, weight in pairs.values():  # the first call prepares the kernel
            torch.nn.functional.linear(rows, weight)
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            for dtype, (rows, weight) in pairs.items():
                begin = time.perf_counter()
                torch.nn.functional.linear(rows, weight)
                shortest[dtype] = min(shortest[dtype], time.perf_counter() - begin)
    return shortest[torch.float32] / shortest[torch.bfloat16]
