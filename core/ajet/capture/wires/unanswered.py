"""Paths beside the LLM calls of a dialect: refused by name, so that none of them reaches a paid API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from ajet.capture.wires import Answer, ChatRequest, Events, Refused, Wire


class Unanswered:
    """A `Wire` that refuses every request, in the words of a dialect."""

    def __init__(self, path: str, dialect: Wire) -> None:
        self.path = path
        self._dialect = dialect

    def parse(self, body: bytes) -> NoReturn:
        """Raises Refused."""
        raise Refused(
            f"{self.path} is not captured; during an episode only calls that generate are answered. If this one is to reach "
            "its own endpoint, make it inside `with ajet.passthrough():`",
            code="unsupported_wire",
        )

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        return self._dialect.reply(request, answers, reply_id)

    def events(self, request: ChatRequest, reply_id: str) -> Events:
        return self._dialect.events(request, reply_id)

    def error(self, error: Refused) -> dict[str, Any]:
        return self._dialect.error(error)
