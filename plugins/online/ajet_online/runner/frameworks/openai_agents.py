"""Tools of the OpenAI Agents SDK."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

from ajet.types import AjetError
from ajet.utils.patching import replaced
from ajet_online.runner.shadow import current_shadow
from ajet_online.runner.tools import is_read_only

INVOKE = "_invoke_function_tool_with_metadata"
ACTIONS = {
    "LocalShellAction": ("call", "local_shell_tool"),
    "ShellAction": ("call", "shell_tool"),
    "ApplyPatchAction": ("call", "apply_patch_tool"),
    "ComputerAction": ("action", "computer_tool"),
    "CustomToolAction": ("call", "custom_tool"),
}
"""Tools that are not functions, which only the Responses wire has: the class that runs them, its parameter with the call, and
the call's attribute with the tool."""


@contextmanager
def openai_agents_tools_guarded(agents: ModuleType) -> Iterator[None]:
    """Refuse tools in shadow runs."""
    if not hasattr(agents, "FunctionTool"):
        yield  # another package of this name
        return
    execution = importlib.import_module("agents.run_internal.tool_execution")
    actions = importlib.import_module("agents.run_internal.tool_actions")
    invoke = _refusing(getattr(agents.tool, INVOKE), agents.tool)
    with ExitStack() as undo:
        for module in (agents.tool, execution):
            undo.enter_context(replaced(module, **{INVOKE: invoke}))
        for name, (parameter, attribute) in ACTIONS.items():
            cls = getattr(actions, name)
            execute = classmethod(_ending(vars(cls)["execute"].__func__, parameter, attribute))
            undo.enter_context(replaced(cls, execute=execute))
        yield


def _refusing(original: Callable[..., Awaitable[Any]], module: ModuleType) -> Callable[..., Awaitable[Any]]:
    @wraps(original)
    async def invoke(*, function_tool: Any, **kwargs: Any) -> Any:
        shadow = current_shadow.get()
        # An agent as a tool only calls models, and each tool of that agent is checked.
        declared = getattr(function_tool, "_is_agent_tool", False) or is_read_only(function_tool)
        text = shadow.refuse(function_tool.name, declared) if shadow else None
        if text is None:
            return await original(function_tool=function_tool, **kwargs)
        return module._FunctionToolInvocationResult(text, is_sdk_generated_error=True)

    return invoke


def _ending(
    original: Callable[..., Awaitable[Any]], parameter: str, attribute: str
) -> Callable[..., Awaitable[Any]]:
    """End the shadow run: each of these tools has an output of its own form, which has no place for a refusal."""

    @wraps(original)
    async def execute(cls: Any, **kwargs: Any) -> Any:
        shadow = current_shadow.get()
        text = shadow.refuse(getattr(kwargs[parameter], attribute).name, False) if shadow else None
        if text is not None:
            raise AjetError(text)
        return await original(cls, **kwargs)

    return execute
