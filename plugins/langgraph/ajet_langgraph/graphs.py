"""A compiled graph as the workflow: ``workflow: my_agent:graph``."""

from __future__ import annotations

import secrets
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ajet import ConfigError
from ajet.interfaces.workflow import LoadedWorkflow

if TYPE_CHECKING:
    from langgraph.pregel import Pregel

    from ajet import Task


def graph_workflow(graph: Pregel[Any, Any, Any, Any]) -> LoadedWorkflow:
    """A workflow that invokes the graph. Raises ConfigError if the graph's input has no ``messages``."""
    fields = _input_fields(graph)
    if "messages" not in fields:
        raise ConfigError(
            f"this graph takes {', '.join(fields) or 'nothing'}, but no `messages`; name a function `async def run(task)` "
            "that invokes it."
        )

    async def run(task: Task) -> str:
        messages = [dict(m) for m in task.messages] or [{"role": "user", "content": task.query}]
        # With a checkpointer, each attempt is a new thread.
        thread = {"configurable": {"thread_id": secrets.token_hex(8)}}
        state = await graph.ainvoke({"messages": messages}, thread if graph.checkpointer else None)
        return str(state["messages"][-1].text)

    return LoadedWorkflow("a graph", run, is_async=True, arguments=1)


def _input_fields(graph: Pregel[Any, Any, Any, Any]) -> Iterable[str]:
    """The names of a graph's input fields. Not from its JSON schema: before Python 3.12, pydantic cannot make one of
    a ``typing.TypedDict``."""
    builder = getattr(graph, "builder", None)  # a StateGraph has one, a functional graph has not
    schema = builder.input_schema if builder else graph.InputType
    return typing.get_type_hints(schema) if isinstance(schema, type) else ()
