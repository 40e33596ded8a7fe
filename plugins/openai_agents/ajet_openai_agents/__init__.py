"""The OpenAI Agents SDK: agent labels, no uploaded traces, no websockets.

The core records its calls at the HTTP transport; by default they use the Responses wire.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

from ajet import hookimpl
from ajet.interfaces.helpers import when_imported

running: ContextVar[dict[str, str] | None] = ContextVar("ajet_openai_agents_run", default=None)
"""``{"agent": name}`` of the innermost run, which `patches` sets. It is a dict that hooks write to, because the SDK runs hooks in
tasks of their own, which cannot set a context variable of the run."""


@hookimpl
def ajet_resolve_agent(episode: str, request: Mapping[str, Any]) -> str | None:
    """The ``name`` of the agent whose turn it is in the innermost run."""
    run = running.get()
    return run.get("agent") if run else None


@hookimpl
def ajet_capture_install(capture: Any) -> Callable[[], None]:
    from ajet_openai_agents.patches import PATCHES

    with ExitStack() as undo:
        for patch in PATCHES:
            undo.callback(when_imported("agents", patch))
        return undo.pop_all().close


@hookimpl
def ajet_doctor() -> Iterable[tuple[str, str, str]]:
    try:
        return [("openai-agents", importlib.metadata.version("openai-agents"), "")]
    except importlib.metadata.PackageNotFoundError:
        return [("openai-agents", "not installed", "pip install openai-agents")]
