"""AgentScope 1.x and 2.x: agent labels, an explicit chat model, prompts without the time of day.

The core records AgentScope's models that use the OpenAI client (OpenAI, DashScope in 2.x, DeepSeek, Moonshot, …),
at the HTTP transport.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ajet import LoadedWorkflow, Plugin, hookimpl
from ajet.interfaces.helpers import when_imported
from ajet_agentscope.layout import Layout
from ajet_agentscope.patches import agents_named, prompts_without_clock, replying
from ajet_agentscope.studio import AgentScopeStudio

if TYPE_CHECKING:
    from ajet import Tuner

__all__ = ["as_agentscope_model"]


def as_agentscope_model(
    tuner: Tuner, *, agent: str | None = None, target: str | None = None, **options: Any
) -> Any:
    """An ``agentscope.model.OpenAIChatModel`` whose calls this episode answers, from any thread or task.

    ``agent`` and ``target`` label every call that the model makes; ``options`` are those of
    ``OpenAIChatModel`` in the installed AgentScope, 1.x or 2.x (``stream``, ``context_size``, …).
    """
    from ajet_agentscope.models import chat_model

    headers = tuner.headers(agent=agent, target=target)
    return chat_model(tuner.base_url, tuner.api_key, target or "policy", headers, **options)


@hookimpl
def ajet_handles() -> Mapping[str, Callable[..., Any]]:
    return {"as_agentscope_model": as_agentscope_model}


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    return [AgentScopeStudio, Layout]


@hookimpl
def ajet_workflows(workflow: Any) -> LoadedWorkflow | None:
    """A workflow function written for AgentScope's tuner, as a workflow; None for anything else."""
    from ajet_agentscope.tuner.functions import tuner_workflow

    return tuner_workflow(workflow)


@hookimpl
def ajet_resolve_agent(episode: str, request: Mapping[str, Any]) -> str | None:
    """The ``name`` of the innermost agent that is replying."""
    return replying.get()


@hookimpl
def ajet_capture_install(capture: Any) -> Callable[[], None]:
    with ExitStack() as undo:
        undo.callback(when_imported("agentscope.agent", agents_named))
        undo.callback(when_imported("agentscope.agent", prompts_without_clock))
        return undo.pop_all().close


@hookimpl
def ajet_doctor() -> Iterable[tuple[str, str, str]]:
    try:
        return [("agentscope", importlib.metadata.version("agentscope"), "")]
    except importlib.metadata.PackageNotFoundError:
        return [("agentscope", "not installed", "pip install agentscope")]
