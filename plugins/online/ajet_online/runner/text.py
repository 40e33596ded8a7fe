"""The text of what agents take and return, in any framework."""

from __future__ import annotations

from typing import Any

_METHODS = ("get_text_content", "to_text")
_PLACES = ("final_output", "messages", "text", "content")


def text_of(value: Any) -> str:
    """The text of a message, of the last of several, or of a framework's result; ``str(value)`` of anything else."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list | tuple):
        return text_of(value[-1]) if value else ""
    for name in _METHODS:
        if hasattr(value, name):
            return text_of(getattr(value, name)())
    for name in _PLACES:
        if isinstance(value, dict) and name in value:
            return text_of(value[name])
        if hasattr(value, name):
            return text_of(getattr(value, name))
    return str(value)
