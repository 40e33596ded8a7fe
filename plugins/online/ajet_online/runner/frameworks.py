"""Changes to agent frameworks, so that their tools are refused in shadow runs. Outside of them nothing changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

from ajet.utils.patching import Patch, replaced, when_imported
from ajet_online.runner.tools import current_shadow


@contextmanager
def langchain_tools_refused(base: ModuleType) -> Iterator[None]:
    """Refuse LangChain's tools in shadow runs, which LangGraph uses."""
    from langchain_core.messages import ToolMessage

    tool = base.BaseTool

    def refusal(self: Any, call: str | None) -> Any:
        shadow = current_shadow()
        said = shadow and shadow.refusal(
            self.name, self, getattr(self, "func", None), getattr(self, "coroutine", None)
        )
        if not said or call is None:
            return said
        return ToolMessage(content=said, tool_call_id=call, name=self.name, status="error")

    run, arun = tool.run, tool.arun

    @wraps(run)
    def guarded(self: Any, *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
        return refusal(self, tool_call_id) or run(self, *args, tool_call_id=tool_call_id, **kwargs)

    @wraps(arun)
    async def guarded_async(self: Any, *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
        found = refusal(self, tool_call_id)
        return found or await arun(self, *args, tool_call_id=tool_call_id, **kwargs)

    with replaced(tool, run=guarded, arun=guarded_async):
        yield


@contextmanager
def agentscope_tools_refused(tool: ModuleType) -> Iterator[None]:
    """Refuse AgentScope's tools in shadow runs."""
    from agentscope.message import TextBlock, ToolResultState

    call_tool = tool.Toolkit.call_tool

    @wraps(call_tool)
    async def guarded(self: Any, tool_call: Any, state: Any) -> AsyncIterator[Any]:
        shadow = current_shadow()
        if shadow:
            found = await self.get_tool(tool_call.name)
            is_read_only = (
                found is None or found.is_read_only
            )  # a tool that does not exist is an error anyway
            said = None if is_read_only else shadow.refusal(tool_call.name, getattr(found, "func", None))
            if said:
                chunk = tool.ToolChunk(content=[TextBlock(text=said)], state=ToolResultState.ERROR)
                yield chunk
                yield tool.ToolResponse(id=tool_call.id).append_chunk(chunk)
                return
        async for piece in call_tool(self, tool_call, state):
            yield piece

    with replaced(tool.Toolkit, call_tool=guarded):
        yield


@contextmanager
def openai_agents_tools_refused(tool: ModuleType) -> Iterator[None]:
    """Refuse function tools of the OpenAI Agents SDK in shadow runs."""
    owner, name, mine = tool.FunctionTool, "on_invoke_tool", "__ajet_refused__"

    def read(self: Any) -> Any:
        shadow = current_shadow()
        if shadow is None or self.name in shadow.read_only or getattr(self, "__ajet_read_only__", False):
            return vars(self)[name]
        if mine not in vars(self):  # always the same function: the SDK compares it before it calls it

            async def refused(context: Any, arguments: str) -> Any:
                shadow = current_shadow()
                return shadow.refusal(self.name) if shadow else await vars(self)[name](context, arguments)

            vars(self)[mine] = refused
        return vars(self)[mine]

    def write(self: Any, value: Any) -> None:
        vars(self)[name] = value

    setattr(owner, name, property(read, write))
    try:
        yield
    finally:
        delattr(owner, name)


PATCHES: dict[str, Patch] = {
    "langchain_core.tools.base": langchain_tools_refused,
    "agentscope.tool": agentscope_tools_refused,
    "agents.tool": openai_agents_tools_refused,
}


def guard_frameworks() -> Callable[[], None]:
    """Change the frameworks that are imported, now or later; the returned function undoes it."""
    with ExitStack() as undo:
        for module, patch in PATCHES.items():
            undo.callback(when_imported(module, patch))
        return undo.pop_all().close
