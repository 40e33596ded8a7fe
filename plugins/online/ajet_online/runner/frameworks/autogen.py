"""Tools and assistants of AutoGen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import Any

from ajet.interfaces.helpers import replaced_in_all
from ajet_online.runner.shadow import current_shadow, is_read_only
from ajet_online.runner.watching import Repeatable, state_of, watched, with_state


@contextmanager
def autogen_tools_guarded(module: ModuleType) -> Iterator[None]:
    """Refuse tools in shadow runs."""
    with (
        replaced_in_all(module.BaseTool, {"run_json": _refusing}),
        replaced_in_all(module.Workbench, {"call_tool": partial(_refusing_workbench, module)}),
    ):
        yield


@contextmanager
def assistants_watched(module: ModuleType) -> Iterator[None]:
    """Repeat runs of assistants."""
    wrap = partial(watched, describe=partial(_run, module.AssistantAgent))
    with replaced_in_all(module.BaseChatAgent, {"run": wrap, "run_stream": wrap}):
        yield


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    async def run_json(self: Any, *args: Any, **kwargs: Any) -> Any:
        shadow = current_shadow.get()
        declared = is_read_only(self) or is_read_only(getattr(self, "_func", None))
        text = shadow.refuse(self.name, declared) if shadow else None
        return await original(self, *args, **kwargs) if text is None else text

    return run_json


def _refusing_workbench(module: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    """Of a workbench whose tools are not objects, such as that of an MCP server."""

    @wraps(original)
    async def call_tool(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        shadow = None if isinstance(self, module.StaticWorkbench) else current_shadow.get()
        text = shadow.refuse(name, False) if shadow else None
        if text is None:
            return await original(self, name, *args, **kwargs)
        return module.ToolResult(name=name, result=[module.TextResultContent(content=text)], is_error=True)

    return call_tool


def _run(assistant: Any, agent: Any, *, task: Any = None, **options: Any) -> Repeatable | None:
    """A run of an assistant. Other agents execute code or ask people, which is not guarded."""
    if not isinstance(agent, assistant):
        return None
    from autogen_core.model_context import ChatCompletionContext

    state = state_of(agent, ChatCompletionContext)

    def begin(response: Any) -> Callable[[Any], Any]:
        twin = with_state(agent, state)
        return lambda said: twin.run(task=said)

    return Repeatable(agent.name, copy.deepcopy(task), begin)
