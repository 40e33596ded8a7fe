"""LangGraph and LangChain: agent labels, an explicit chat model, and graphs as workflows.

Plain use of ``ChatOpenAI`` inside a workflow does not need this plugin: the core records it at the HTTP
transport. LangGraph itself is not patched.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ajet import hookimpl

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

    from ajet import Tuner
    from ajet.interfaces.workflow import LoadedWorkflow

__all__ = ["as_langchain_model"]


def as_langchain_model(
    tuner: Tuner, *, agent: str | None = None, target: str | None = None, **options: Any
) -> ChatOpenAI:
    """A ``ChatOpenAI`` whose calls this episode answers, from any thread or task.

    ``agent`` and ``target`` label every call that the model makes; ``options`` are those of ``ChatOpenAI``
    (``max_tokens``, ``stop``, ``use_responses_api``, …).
    """
    from langchain_openai import ChatOpenAI

    options = {"model": "policy", **options}
    return ChatOpenAI(
        base_url=tuner.base_url,
        api_key=tuner.api_key,
        default_headers=tuner.headers(agent=agent, target=target),
        **options,
    )


@hookimpl
def ajet_handles() -> Mapping[str, Callable[..., Any]]:
    return {"as_langchain_model": as_langchain_model}


@hookimpl
def ajet_resolve_agent(episode: str, request: Mapping[str, Any]) -> str | None:
    """The innermost user-given name among the agents and nodes around the call."""
    runnables = sys.modules.get("langchain_core.runnables.config")
    config = runnables and runnables.var_child_runnable_config.get()
    return agent_name((config or {}).get("metadata") or {})


@hookimpl
def ajet_workflows(workflow: Any) -> LoadedWorkflow | None:
    """A compiled graph as a workflow: it gets the task's messages and returns the text of the last message."""
    pregel = sys.modules.get("langgraph.pregel")
    if pregel is None or not isinstance(workflow, pregel.Pregel):
        return None
    from ajet_langgraph.graphs import graph_workflow

    return graph_workflow(workflow)


@hookimpl
def ajet_doctor() -> Iterable[tuple[str, str, str]]:
    for package in ("langgraph", "langchain-openai"):
        try:
            yield package, importlib.metadata.version(package), ""
        except importlib.metadata.PackageNotFoundError:
            yield package, "not installed", f"pip install {package}"


_OF_CREATE_AGENT = ("model", "tools")
_OF_HOOKS = (".before_agent", ".before_model", ".after_model", ".after_agent")
_OF_PREBUILT = (
    *_OF_CREATE_AGENT,
    *("agent", "generate_structured_response", "pre_model_hook", "post_model_hook"),
)
"""Names that `create_agent` and `create_react_agent` give to nodes."""


def agent_name(metadata: Mapping[str, Any]) -> str | None:
    """The innermost name that the user gave to an agent, or to the node that makes the call. None outside any
    graph.

    ``langgraph_checkpoint_ns`` lists the nodes from the outermost graph inwards, ``supervisor:<id>|agent:<id>``. The
    ``name`` given to `create_agent` is in ``lc_agent_name``, which the graphs that this agent calls inherit. So it names
    the caller only if a node of `create_agent` itself makes the call.
    """
    space, node = metadata.get("langgraph_checkpoint_ns"), metadata.get("langgraph_node")
    nodes = (
        [part.partition(":")[0] for part in str(space).split("|")] if space else [str(node)] if node else []
    )
    given = metadata.get("lc_agent_name")
    if given and (not nodes or nodes[-1] in _OF_CREATE_AGENT or nodes[-1].endswith(_OF_HOOKS)):
        return str(given)
    users = (name for name in reversed(nodes) if name not in _OF_PREBUILT and not name.endswith(_OF_HOOKS))
    return next(users, None) or (str(given) if given else nodes[-1] if nodes else None)
