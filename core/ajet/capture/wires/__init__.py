"""Wires: the HTTP dialects of LLM requests, one file each behind one protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ajet.types import AjetError, FinishReason


class Refused(AjetError):
    """A request that is answered with an error, in one line that the user's framework shows."""

    def __init__(self, message: str, *, code: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request of any wire. ``None`` means that the client did not say."""

    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice: the assistant message in the chat completions form, and what it cost in tokens."""

    message: Mapping[str, Any]
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int


class Wire(Protocol):
    """A dialect: which requests are its own, how they read, how answers look."""

    path: str
    """The end of the URL path, such as ``/chat/completions``."""

    def parse(self, body: bytes) -> ChatRequest:
        """Raises Refused, naming each parameter that cannot be honoured."""
        ...

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]: ...

    def error(self, error: Refused) -> dict[str, Any]: ...
