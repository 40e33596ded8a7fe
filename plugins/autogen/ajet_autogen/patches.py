"""Patches of AutoGen while a job runs: calls know their agent."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from types import ModuleType
from typing import Any

from ajet.interfaces.helpers import replaced, steps_with

working: ContextVar[tuple[str, Any] | None] = ContextVar("ajet_autogen_agent", default=None)
"""(name of the agent at work, id of the runtime's handler in which it works)."""


def current_handler() -> Any:
    """The id of the runtime's agent that handles a message in this context, or None."""
    core = sys.modules.get("autogen_core")
    try:
        return core.MessageHandlerContext.agent_id() if core else None
    except RuntimeError:
        return None


@contextmanager
def agents_named(module: ModuleType) -> Iterator[None]:
    """Make every method that starts an agent's work note its name."""
    base = module.BaseChatAgent
    classes: set[Any] = {c for c in vars(module).values() if isinstance(c, type) and issubclass(c, base)}
    with ExitStack() as changes:
        changes.enter_context(replaced(base, run=_named(base.run), run_stream=_named_steps(base.run_stream)))
        for cls in classes:
            if "on_messages_stream" in vars(cls):
                stream = _named_steps(cls.on_messages_stream)
                changes.enter_context(replaced(cls, on_messages_stream=stream))
        yield


def _named(original: Any) -> Any:
    @wraps(original)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = working.set((self.name, current_handler()))
        try:
            return await original(self, *args, **kwargs)
        finally:
            working.reset(token)

    return call


def _named_steps(original: Any) -> Any:
    @wraps(original)
    def stream(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        steps = original(self, *args, **kwargs)
        return steps_with(working, (self.name, current_handler()), steps)

    return stream
