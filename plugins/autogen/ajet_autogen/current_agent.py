"""The agent at work: `patches` sets it, the label of a call reads it."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import Any

working: ContextVar[tuple[str, Any] | None] = ContextVar("ajet_autogen_agent", default=None)
"""(name of the agent at work, id of the runtime's handler in which it works)."""


def current_handler() -> Any:
    """The id of the runtime's agent that handles a message in this context, or None."""
    core = sys.modules.get("autogen_core")
    try:
        return core.MessageHandlerContext.agent_id() if core else None
    except RuntimeError:
        return None
