"""What is changed of AgentScope while a job runs: agents say who they are, and prompts hold no clock."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

from ajet.utils.patching import replaced, steps_with
from ajet_agentscope import replying


@contextmanager
def agents_named(module: ModuleType) -> Iterator[None]:
    """Tell the agents apart, of 1.x or 2.x."""
    if hasattr(module, "Agent"):
        cls = module.Agent
        ways_in = {
            "reply": _named(cls.reply),
            "reply_stream": _named_steps(cls.reply_stream),
            "compress_context": _named(cls.compress_context),
        }
    else:
        cls = module.AgentBase
        ways_in = {"__call__": _named(cls.__call__)}
    with replaced(cls, **ways_in):
        yield


@contextmanager
def prompts_without_clock(module: ModuleType) -> Iterator[None]:
    """Keep the time of day out of prompts, where 2.x writes it by default."""
    if hasattr(module, "Agent"):
        cls = module.Agent
        with replaced(cls, _inject_runtime_state=_unless_asked(cls._inject_runtime_state)):
            yield
    else:
        yield


def _named(original: Any) -> Any:
    @wraps(original)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = replying.set(self.name)
        try:
            return await original(self, *args, **kwargs)
        finally:
            replying.reset(token)

    return call


def _named_steps(original: Any) -> Any:
    @wraps(original)
    def stream(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        return steps_with(replying, self.name, original(self, *args, **kwargs))

    return stream


def _unless_asked(original: Any) -> Any:
    """No two episodes would share a prompt, and what is trained would depend on when. An agent whose
    configuration asks for the runtime state by name still has it."""

    @wraps(original)
    async def inject(self: Any) -> AsyncGenerator[Any]:
        if "inject_runtime_state" in self.injection_config.model_fields_set:
            async for event in original(self):
                yield event

    return inject
