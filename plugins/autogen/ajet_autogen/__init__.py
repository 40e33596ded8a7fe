"""AutoGen AgentChat: agent labels.

Its OpenAI model client is recorded by the core, at the transport.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from ajet import hookimpl
from ajet.utils.patching import when_imported

working: ContextVar[tuple[str, Any] | None] = ContextVar("ajet_autogen_agent", default=None)
"""(name of the agent at work, id of the runtime's handler in which it works)."""


@hookimpl
def ajet_resolve_agent(episode: str, request: Mapping[str, Any]) -> str | None:
    """The ``name`` of the agent at work, else that of the handler in the runtime: a custom agent, or the
    manager of a group chat that asks a model who speaks next."""
    handler = current_handler()
    name, at_work_in = working.get() or (None, None)
    if handler is None or (name and at_work_in == handler):
        return name
    # Members of a team are registered as `name_<id of the team>`, with that id as key.
    return str(handler.type).removesuffix(f"_{handler.key}")


def current_handler() -> Any:
    """The id of the runtime's agent that handles a message in this context, or None."""
    core = sys.modules.get("autogen_core")
    try:
        return core.MessageHandlerContext.agent_id() if core else None
    except RuntimeError:
        return None


@hookimpl
def ajet_capture_install(capture: Any) -> Callable[[], None]:
    from ajet_autogen.patches import agents_named

    return when_imported("autogen_agentchat.agents", agents_named)


@hookimpl
def ajet_doctor() -> Iterable[tuple[str, str, str]]:
    for package in ("autogen-agentchat", "autogen-ext"):
        try:
            yield package, importlib.metadata.version(package), ""
        except importlib.metadata.PackageNotFoundError:
            yield package, "not installed", f"pip install {package}[openai]"
