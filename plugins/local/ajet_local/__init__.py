"""The local backbone: samples and trains Hugging Face models in this process.

Importing this package imports neither torch nor transformers; its modules import them when a job runs.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterable

from ajet import Finding, Plugin, hookimpl
from ajet_local.backbone import Local, LocalEnginePlugin
from ajet_local.cpu import crowded, keep_few_kernels, native_bfloat16, sleep_while_waiting
from ajet_local.gguf import Gguf
from ajet_local.smollm2.recipe import SmolLM2
from ajet_local.smollm2.tools import SmolLM2Tools
from ajet_local.starter.calculator import Calculator
from ajet_local.starter.recipe import Starter
from ajet_local.starter.vision import StarterVision

# Where bitsandbytes is installed, peft imports it, and on some CPUs it then warns of an optional kernel that it lacks.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
# Before any module imports torch.
sleep_while_waiting()
keep_few_kernels()


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    return [Local, LocalEnginePlugin, Starter, Calculator, StarterVision, SmolLM2, SmolLM2Tools, Gguf]


@hookimpl
def ajet_doctor() -> Iterable[tuple[str, str, str] | Finding]:
    """The version of torch, the device that the local backbone would use, and what slows it down."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return [("local backbone", "torch is not installed", "pip install torch")]
    import torch

    device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    instructions = native_bfloat16() if device == "cpu" else ""
    native = f", bfloat16 by {instructions}" if instructions else ""
    findings: list[tuple[str, str, str] | Finding] = [
        ("local backbone", f"torch {version}, device {device}, {torch.get_num_threads()} threads{native}", "")
    ]
    findings.append(
        (
            "models",
            "smollm2 and smollm2-tools, 93 MB on first use; starter and calculator, trained here from scratch",
            "",
        )
    )
    if device == "cpu" and (load := crowded()):
        findings.append(
            Finding("load", load, "other programs compute, and runs beside them take longer", optional=True)
        )
    from ajet_local.modeling import failing_kernels

    for name in failing_kernels():
        remedy = f"models with recurrent layers cannot be computed without an NVIDIA GPU while it is there: pip uninstall {name}"
        findings.append(Finding(name, importlib.metadata.version(name), remedy, optional=True))
    return findings
