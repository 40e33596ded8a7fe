"""Calls of LangGraph's compiled graphs, prebuilt agents among them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from types import ModuleType
from typing import Any

from ajet.utils.patching import replaced_in_all
from ajet_online.runner.watching import Repeatable, watched

THREAD = "shadow"


@contextmanager
def graphs_watched(module: ModuleType) -> Iterator[None]:
    """Repeat calls of graphs."""
    from langgraph.types import Command

    with replaced_in_all(
        module.Pregel,
        {
            name: partial(watched, describe=partial(_call, Command, name.startswith("a")))
            for name in ("invoke", "ainvoke", "stream", "astream")
        },
    ):
        yield


def _call(
    command: type,
    is_async: bool,
    graph: Any,
    input: Any,
    config: Any = None,
    *,
    context: Any = None,
    **options: Any,
) -> Repeatable | None:
    """A call that begins a turn; not one that resumes after an interrupt."""
    if input is None or isinstance(input, command):
        return None
    started = datetime.now(UTC)
    takes_text = isinstance(input, str)  # as functions with @entrypoint do
    # Callbacks are left out: they may stream to the user.
    own = {
        name: (config or {})[name] for name in ("configurable", "recursion_limit") if name in (config or {})
    }

    def begin(response: Any) -> Callable[[Any], Any]:
        twin = graph
        mine = {**own, "configurable": {**own.get("configurable", {}), "thread_id": THREAD}}
        if graph.checkpointer:
            twin = _with_own_thread(graph, config, mine, started)
        turns: list[Any] = []

        def call(said: Any) -> Any:
            if isinstance(said, str) and not takes_text:
                earlier = [] if graph.checkpointer else turns[-1]["messages"]
                said = {"messages": [*earlier, ("user", said)]}
            return answered_async(said) if is_async else keep(twin.invoke(said, mine, context=context))

        async def answered_async(said: Any) -> Any:
            return keep(await twin.ainvoke(said, mine, context=context))

        def keep(state: Any) -> Any:
            turns.append(state)
            return state

        return call

    return Repeatable(graph.name, copy.deepcopy(input), begin)


def _with_own_thread(graph: Any, config: Any, mine: Any, started: datetime) -> Any:
    """The graph with a checkpointer of its own, which has the state that the thread had when the call began."""
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import START

    twin = graph.copy(update={"checkpointer": InMemorySaver()})
    thread = {"configurable": {"thread_id": config["configurable"]["thread_id"]}}
    # In this thread no event loop runs, so async checkpointers answer too.
    for state in graph.get_state_history(thread):
        if datetime.fromisoformat(state.created_at) < started:
            twin.update_state(mine, state.values, as_node=START)
            break
    return twin
