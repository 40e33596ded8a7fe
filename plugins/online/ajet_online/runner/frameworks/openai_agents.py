"""The OpenAI Agents SDK: its tools, and runs of its agents."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

from ajet import AjetError
from ajet.interfaces.helpers import replaced
from ajet_online.runner.shadow import current_shadow, is_read_only
from ajet_online.runner.watching import Repeatable, watched

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
        code = function_tool, getattr(function_tool, "__wrapped__", None)
        declared = getattr(function_tool, "_is_agent_tool", False) or any(map(is_read_only, code))
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


RUNS = ("run", "run_sync", "run_streamed")


@contextmanager
def runs_watched(agents: ModuleType) -> Iterator[None]:
    """Repeat runs of agents."""
    if not hasattr(agents, "FunctionTool"):
        yield  # another package of this name
        return

    def wrapped(name: str) -> Any:
        steps = "stream_events" if name == "run_streamed" else ""
        return classmethod(watched(vars(agents.Runner)[name].__func__, _run, steps=steps))

    with replaced(agents.Runner, **{name: wrapped(name) for name in RUNS}):
        yield


def _run(
    runner: Any,
    starting_agent: Any,
    input: Any,
    context: Any = None,
    *,
    session: Any = None,
    hooks: Any = None,
    **options: Any,
) -> Repeatable | None:
    """A run that begins with texts or items; not one that resumes after an interruption. Its hooks are left out: they may tell the
    user."""
    if not isinstance(input, str | list):
        return None

    def begin(response: Any) -> Callable[[Any], Any]:
        # With a session, what it had is a part of the input by now. The session itself gets nothing.
        first = response.input if session is not None else None
        earlier: list[Any] = []

        async def call(said: Any) -> Any:
            if earlier:
                said = [*earlier[-1].to_input_list(), {"role": "user", "content": said}]
            elif first is not None:
                said = copy.deepcopy(first)
            result = await runner.run(starting_agent, said, context=context, **options)
            earlier.append(result)
            return result

        return call

    return Repeatable(starting_agent.name, copy.deepcopy(input), begin)
