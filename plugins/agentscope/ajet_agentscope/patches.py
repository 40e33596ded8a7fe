"""Patches of AgentScope while a job runs: calls know their agent, and prompts do not contain the time of day."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import ModuleType
from typing import Any

from ajet.interfaces.helpers import replaced, replaced_in_all, steps_with

replying: ContextVar[str | None] = ContextVar("ajet_agentscope_agent", default=None)
"""The ``name`` of the innermost agent that is replying; None outside any agent."""


@contextmanager
def agents_named(module: ModuleType) -> Iterator[None]:
    """Note which agent is replying, in 1.x and 2.x."""
    if hasattr(module, "Agent"):
        cls = module.Agent
        entry_points = {
            "reply": _named(cls.reply),
            "reply_stream": _named_steps(cls.reply_stream),
            "compress_context": _named(cls.compress_context),
        }
        with replaced(cls, **entry_points):
            yield
    else:
        # Each class of agents has a `reply` of its own, which programs call directly, too.
        with replaced_in_all(module.AgentBase, {"reply": _named}):
            yield


@contextmanager
def prompts_without_clock(module: ModuleType) -> Iterator[None]:
    """Keep the time of day out of prompts; 2.x writes it there by default."""
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
    """With the time in it, no two episodes share a prompt, and training depends on when it runs. An agent whose
    configuration sets ``inject_runtime_state`` keeps it."""

    @wraps(original)
    async def inject(self: Any) -> AsyncGenerator[Any]:
        if "inject_runtime_state" in self.injection_config.model_fields_set:
            async for event in original(self):
                yield event

    return inject
