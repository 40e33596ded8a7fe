"""The agent that is replying: `patches` sets it, the label of a call reads it."""

from __future__ import annotations

from contextvars import ContextVar

replying: ContextVar[str | None] = ContextVar("ajet_agentscope_agent", default=None)
"""The ``name`` of the innermost agent that is replying; None outside any agent."""
