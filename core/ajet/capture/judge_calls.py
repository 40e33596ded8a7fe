"""The LLM calls of judges: kept as they are answered, so that a recording can answer them again.

Judges call their models themselves, outside of capture. Calls by clients built on httpx or httpx2 are kept, which covers the
SDKs of OpenAI and Anthropic and `ajet.services.llm_client`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ajet.capture.replies import Form, Replies


@dataclass(frozen=True, slots=True)
class JudgeCall:
    """A call that was answered. Headers are not kept, because they hold API keys, nor is the query of the address."""

    url: str
    request: Any
    """The body: JSON, or text."""
    response: Any
    """JSON; text for a stream of events."""


@dataclass(slots=True)
class JudgeCalls:
    """The calls for one verdict, or for the verdicts on a group."""

    replies: Replies[JudgeCall] | None = None
    """The recorded ones, which answer in place of the endpoints."""
    made: list[JudgeCall] = field(default_factory=list)

    def add(self, url: str, request: Any, response: Any) -> None:
        """Keep a call."""
        parts = urlsplit(url)
        address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self.made.append(JudgeCall(address, request, response))

    def reply(self, body: bytes) -> Any:
        """The recorded response to a request. Raises NotRecorded."""
        assert self.replies is not None
        request = as_json(body)
        reply = self.replies.take("judge", Form(self.replies.ignore).body(request))
        self.made.append(reply)
        return reply.response


judge_calls: ContextVar[JudgeCalls | None] = ContextVar("ajet_judge_calls", default=None)
"""The calls of the judge that runs in this context."""


@contextmanager
def keeping(calls: JudgeCalls) -> Iterator[None]:
    """A block whose LLM calls are those of a judge."""
    outer = judge_calls.get()
    judge_calls.set(calls)
    try:
        yield
    finally:
        judge_calls.set(outer)


def as_json(body: bytes) -> Any:
    """A body as JSON, or as text if it is not JSON."""
    text = body.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
