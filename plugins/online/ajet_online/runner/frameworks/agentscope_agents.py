"""Calls of AgentScope's agents, 2.x and 1.x."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from types import MethodType, ModuleType
from typing import Any

from ajet.utils.patching import replaced_in_all
from ajet_online.runner.shadow import in_shadow_run
from ajet_online.runner.started import current_watcher
from ajet_online.runner.state import state_of, with_state
from ajet_online.runner.watching import Describe, Repeatable, watched


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
    wrap = partial(watched, describe=describe, watcher=current_watcher)
    return replaced_in_all(base, dict.fromkeys(methods, wrap))


def _call(agent: Any, inputs: Any = None, *args: Any, **options: Any) -> Repeatable:
    """``agent.reply`` and ``agent.reply_stream`` of 2.x."""
    from agentscope.message import UserMsg

    state = {"state": agent.state.model_copy(deep=True)}
    options.pop("yield_final_msg", None)

    def begin(response: Any) -> Callable[[Any], Any]:
        twin = with_state(agent, state)
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
