"""AutoGen AgentChat: agent labels.

The core records the calls of its OpenAI model client, at the HTTP transport.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ajet import hookimpl
from ajet.interfaces.helpers import when_imported
from ajet_autogen.patches import agents_named, current_handler, working


@hookimpl
def ajet_resolve_agent(episode: str, request: Mapping[str, Any]) -> str | None:
    """The ``name`` of the agent at work, or else of the runtime's handler: a custom agent, or a group chat's manager
    that asks a model which agent speaks next."""
    handler = current_handler()
    name, its_handler = working.get() or (None, None)
    if handler is None or (name and its_handler == handler):
        return name
    # Members of a team are registered as `name_<id of the team>`, with that id as key.
    return str(handler.type).removesuffix(f"_{handler.key}")


@hookimpl
def ajet_capture_install(capture: Any) -> Callable[[], None]:
    return when_imported("autogen_agentchat.agents", agents_named)


@hookimpl
def ajet_doctor() -> Iterable[tuple[str, str, str]]:
    for package in ("autogen-agentchat", "autogen-ext"):
        try:
            yield package, importlib.metadata.version(package), ""
        except importlib.metadata.PackageNotFoundError:
            yield package, "not installed", f"pip install {package}[openai]"
