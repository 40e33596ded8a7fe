"""AgentScope 2.x and 1.x: its tools, and calls of its agents."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from types import MethodType, ModuleType
from typing import Any

from ajet.interfaces.helpers import replaced, replaced_in_all
from ajet_online.runner.shadow import current_shadow, in_shadow_run, is_read_only
from ajet_online.runner.watching import Describe, Repeatable, state_of, watched, with_state


@contextmanager
def agentscope_tools_guarded(module: ModuleType) -> Iterator[None]:
    """Refuse tools in shadow runs."""
    toolkit = module.Toolkit
    if hasattr(toolkit, "call_tool"):
        with (
            replaced(toolkit, call_tool=_refusing(toolkit.call_tool, module)),
            replaced(module.ToolBase, __call__=_refusing_direct(module.ToolBase.__call__, module)),
        ):
            yield
    else:
        with replaced(toolkit, call_tool_function=_refusing_1(toolkit.call_tool_function, module)):
            yield


def _refusing(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """``Toolkit.call_tool`` of 2.x, through which agents call tools."""

    @wraps(original)
    async def call_tool(self: Any, tool_call: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        shadow = current_shadow.get()
        tool = await self.get_tool(tool_call.name) if shadow else None
        text = shadow.refuse(tool_call.name, _declared(tool)) if shadow and tool else None
        if text is None:
            async for chunk in original(self, tool_call, *args, **kwargs):
                yield chunk
        else:
            chunk = _chunk(text, module)
            yield chunk
            yield module.ToolResponse(id=tool_call.id).append_chunk(chunk)

    return call_tool


def _refusing_direct(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """``await tool(...)`` of 2.x."""

    @wraps(original)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        shadow = current_shadow.get()
        text = shadow.refuse(self.name, _declared(self)) if shadow else None
        return await original(self, *args, **kwargs) if text is None else _chunk(text, module)

    return call


def _refusing_1(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """``Toolkit.call_tool_function`` of 1.x, where tools are functions, and calls are dicts."""

    @wraps(original)
    async def call_tool_function(self: Any, tool_call: Any, *args: Any, **kwargs: Any) -> Any:
        shadow = current_shadow.get()
        tool = self.tools.get(tool_call["name"]) if shadow else None
        text = shadow.refuse(tool_call["name"], is_read_only(tool.original_func)) if shadow and tool else None
        return await original(self, tool_call, *args, **kwargs) if text is None else refused(text)

    async def refused(text: str) -> AsyncGenerator[Any]:
        from agentscope.message import TextBlock

        yield module.ToolResponse(content=[TextBlock(type="text", text=text)])

    return call_tool_function


def _chunk(text: str, module: ModuleType) -> Any:
    from agentscope.message import TextBlock, ToolResultState

    return module.ToolChunk(content=[TextBlock(text=text)], state=ToolResultState.ERROR)


def _declared(tool: Any) -> bool:
    """Whether a tool of 2.x is declared: its function, its class's ``call``, or the object."""
    return any(is_read_only(code) for code in (tool, getattr(tool, "_func", None), type(tool).call))


@contextmanager
def agentscope_agents_watched(module: ModuleType) -> Iterator[None]:
    """Repeat calls of agents."""
    with ExitStack() as undo:
        if hasattr(module, "Agent"):
            undo.enter_context(_watched(module.Agent, _call, "reply", "reply_stream"))
        else:
            from agentscope.memory import LongTermMemoryBase

            undo.enter_context(_watched(module.AgentBase, _call_1, "__call__", "reply"))
            undo.enter_context(replaced_in_all(LongTermMemoryBase, {"record": _not_in_shadow_runs}))
        yield


def _watched(base: Any, describe: Describe, *methods: str) -> Any:
    wrap = partial(watched, describe=describe)
    return replaced_in_all(base, dict.fromkeys(methods, wrap))


def _call(agent: Any, inputs: Any = None, *args: Any, **options: Any) -> Repeatable | None:
    """``agent.reply`` and ``agent.reply_stream`` of 2.x; not a call that resumes, with an event."""
    from agentscope.message import Msg, UserMsg

    if not isinstance(inputs, Msg | list | None):
        return None
    state = {"state": agent.state.model_copy(deep=True)}
    options.pop("yield_final_msg", None)

    def begin(response: Any) -> Callable[[Any], Any]:
        twin = with_state(agent, state)
        # Only the first of ``args``, the schema of the answer: `reply_stream` takes one more, and `reply` does not.
        return lambda said: twin.reply(
            UserMsg("user", said) if isinstance(said, str) else said, *args[:1], **options
        )

    return Repeatable(agent.name, copy.deepcopy(inputs), begin)


def _call_1(agent: Any, msg: Any = None, *args: Any, **options: Any) -> Repeatable:
    """``agent(...)`` and ``agent.reply(...)`` of 1.x."""
    from agentscope.memory import MemoryBase
    from agentscope.message import Msg

    state = state_of(agent, MemoryBase)

    def begin(response: Any) -> Callable[[Any], Any]:
        twin = with_state(agent, state)
        twin.set_console_output_enabled(False)
        twin.set_msg_queue_enabled(False)
        if toolkit := getattr(agent, "toolkit", None):
            vars(twin)["toolkit"] = _own_toolkit(toolkit, agent, twin)
        # Not `twin(...)`, which tells the answer to the other agents of a hub.
        return lambda said: twin.reply(
            Msg("user", said, "user") if isinstance(said, str) else said, *args, **options
        )

    return Repeatable(agent.name, copy.deepcopy(msg), begin)


def _own_toolkit(toolkit: Any, agent: Any, twin: Any) -> Any:
    """A copy of a toolkit of 1.x, because an agent with a structured answer adds a method of its own to it while it replies."""
    own = copy.copy(toolkit)
    own.tools = {name: copy.copy(tool) for name, tool in toolkit.tools.items()}
    for tool in own.tools.values():
        if getattr(tool.original_func, "__self__", None) is agent:
            tool.original_func = MethodType(tool.original_func.__func__, twin)
    return own


def _not_in_shadow_runs(record: Callable[..., Any]) -> Callable[..., Any]:
    """``record`` of a long-term memory of 1.x, which agents call by themselves."""

    @wraps(record)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return None if in_shadow_run() else await record(*args, **kwargs)

    return call
