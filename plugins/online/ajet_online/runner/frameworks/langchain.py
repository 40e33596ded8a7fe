"""LangChain's tools, which LangGraph uses too, and calls of LangGraph's compiled graphs, prebuilt agents among them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial, wraps
from types import ModuleType
from typing import Any

from ajet.interfaces.helpers import replaced_in_all
from ajet_online.runner.shadow import current_shadow, is_read_only
from ajet_online.runner.watching import Repeatable, watched

METHODS = ("invoke", "ainvoke", "run", "arun")
"""The ways to call a tool. They call each other, and the outermost one refuses."""
THREAD = "shadow"


@contextmanager
def langchain_tools_guarded(module: ModuleType) -> Iterator[None]:
    """Refuse tools in shadow runs."""
    with replaced_in_all(module.BaseTool, dict.fromkeys(METHODS, _refusing)):
        yield


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        refused = _refusal(self, args, kwargs)
        return original(self, *args, **kwargs) if refused is None else refused

    @wraps(original)
    async def call_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        refused = _refusal(self, args, kwargs)
        return await original(self, *args, **kwargs) if refused is None else refused

    return call_async if inspect.iscoroutinefunction(original) else call


def _refusal(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a refused call returns: a message if the call has an id, else a text. None if it may run."""
    shadow = current_shadow.get()
    text = shadow.refuse(tool.name, _declared(tool)) if shadow else None
    if text is None:
        return None
    given = args[0] if args else kwargs.get("input", kwargs.get("tool_input"))
    is_call = isinstance(given, dict) and given.get("type") == "tool_call"
    call_id = given.get("id") if is_call and isinstance(given, dict) else kwargs.get("tool_call_id")
    if call_id is None:
        return text
    from langchain_core.messages import ToolMessage

    return ToolMessage(text, name=tool.name, tool_call_id=call_id, status="error")


def _declared(tool: Any) -> bool:
    """Whether the tool is declared, or all code that a call may run: its functions, and the methods that its class
    overrides."""
    code = [getattr(tool, "func", None), getattr(tool, "coroutine", None)]
    methods = [getattr(type(tool), name, None) for name in ("_run", "_arun")]
    code += [
        method for method in methods if not getattr(method, "__module__", "").startswith("langchain_core.")
    ]
    code = [one for one in code if one is not None]
    return is_read_only(tool) or (bool(code) and all(is_read_only(one) for one in code))


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
