"""AgentScope's tools, 2.x and 1.x."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

from ajet.utils.patching import replaced
from ajet_online.runner.shadow import current_shadow
from ajet_online.runner.tools import is_read_only


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
