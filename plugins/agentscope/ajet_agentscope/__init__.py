"""AgentScope 1.x and 2.x: agent labels, an explicit chat model, prompts without the time of day.

The core records AgentScope's models that use the OpenAI client (OpenAI, DashScope in 2.x, DeepSeek, Moonshot, …),
at the HTTP transport.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import ssl
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
    headers = tuner.headers(agent=agent, target=target)
    return chat_model(tuner.base_url, tuner.api_key, target or "policy", headers, **options)


def chat_model(base_url: str, api_key: str, model: str, headers: Mapping[str, str], **options: Any) -> Any:
    """An ``agentscope.model.OpenAIChatModel``; ``options`` are its own in the installed AgentScope."""
    import openai
    from agentscope.model import OpenAIChatModel

    sent = {
        "default_headers": dict(headers),
        "http_client": openai.DefaultAsyncHttpxClient(verify=_tls()),
    }
    if importlib.util.find_spec("agentscope.credential") is None:  # 1.x
        address = {"base_url": base_url, **sent}
        return OpenAIChatModel(api_key=api_key, client_kwargs=address, **{"model_name": model, **options})
    from agentscope.credential import OpenAICredential

    credential = OpenAICredential(api_key=api_key, base_url=base_url)
    return OpenAIChatModel(credential=credential, client_kwargs=sent, **{"model": model, **options})


@functools.cache
def _tls() -> ssl.SSLContext:
    """One context for all models: reading the certificates takes longer than an episode's other work."""
    return ssl.create_default_context()


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
