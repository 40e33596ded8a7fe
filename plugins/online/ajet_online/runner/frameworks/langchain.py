"""LangChain's tools, which LangGraph and its prebuilt agents use too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

from ajet.utils.patching import replaced_in_all
from ajet_online.runner.shadow import current_shadow
from ajet_online.runner.tools import is_read_only

METHODS = ("invoke", "ainvoke", "run", "arun")
"""The ways to call a tool. They call each other, and the outermost one refuses."""


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
