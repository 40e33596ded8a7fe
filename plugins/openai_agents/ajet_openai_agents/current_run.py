"""The run whose turn it is: `patches` sets it, the label of a call reads it."""

from __future__ import annotations

from contextvars import ContextVar

running: ContextVar[dict[str, str] | None] = ContextVar("ajet_openai_agents_run", default=None)
"""``{"agent": name}`` of the innermost run. It is a dict that hooks write to, because the SDK runs hooks in tasks of
their own, which cannot set a context variable of the run."""
