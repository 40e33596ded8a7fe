"""Calls the user's function that says what may be stored of a message."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ajet.interfaces.wire import Refused
from ajet_online.trace import Message, to_text


class Redaction:
    """Messages as ``function`` lets them be stored."""

    def __init__(self, function: Callable[[Message], Message]) -> None:
        self._function = function

    def __call__(self, message: Message) -> Message:
        """A message as it may be stored. Raises Refused, without what the error says: it may quote the message."""
        try:
            # The function gets a copy: the message in memory continues the conversation.
            redacted = self._function(json.loads(to_text(dict(message))))
            if not isinstance(redacted, Mapping):
                raise _WrongResult(f"it returned {type(redacted).__name__}, not a message")
            if redacted.get("role") != message.get("role"):
                raise _WrongResult("it changed the role")
            stored: dict[str, Any] = json.loads(to_text(dict(redacted)))
        except Exception as error:
            why = str(error) if isinstance(error, _WrongResult) else type(error).__name__
            raise Refused(
                f"nothing was recorded, because the redaction failed: {why}",
                code="redaction_failed",
                status=500,
            ) from error
        return stored

    def text(self, role: str, text: str) -> str:
        """A text of someone with this role, as it may be stored. Raises Refused."""
        content = self({"role": role, "content": text}).get("content")
        return content if isinstance(content, str) else ""


class _WrongResult(Exception):
    """What the function returned cannot be stored."""
