"""A wire behind a real SDK's HTTP client, without network, engine or episode."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

import anthropic
import httpx
import httpx2
import openai
from google import genai

from ajet.chat.messages import canonical, normalise
from ajet.interfaces.wire import Answer, ChatRequest, Piece, Refused, Wire

REPLY_IDS = ("aa01", "bb02", "cc03", "dd04", "ee05")
CALL: dict[str, Any] = {
    "id": "c4ll00001",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1, "b": 2.5}'},
}
CALL_2 = CALL | {"id": "c4ll00002"}


def said(
    content: str | None = None, reasoning: str | None = None, calls: Sequence[Any] = (), cut: bool = False
) -> Answer:
    """An answer as a session gives it."""
    message: dict[str, Any] = {"role": "assistant", "content": content or ""}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return Answer(message, "length" if cut else "tool_calls" if calls else "stop", 7, 5)


def pieces(answer: Answer, choice: int = 0, size: int = 3) -> Iterator[Piece]:
    """The pieces that a session streams of an answer."""
    for kind, key in (("reasoning", "reasoning_content"), ("content", "content")):
        whole = answer.message.get(key) or ""
        for start in range(0, len(whole), size):
            yield Piece(choice, kind, whole[start : start + size])  # type: ignore[arg-type]


class Served:
    """Answers requests to one wire, one of ``script`` after the other; an error fails a stream half-way
    and refuses anything else."""

    def __init__(self, wire: Wire, *script: Answer | Refused | Sequence[Answer]) -> None:
        self.wire = wire
        self.requests: list[ChatRequest] = []
        self.streams: list[bytes] = []
        self._script = list(script)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        assert request.url.path.endswith(self.wire.path)
        try:
            asked = self.wire.parse(request.read())
        except Refused as error:
            return httpx2.Response(error.status, json=self.wire.error(error))
        reply_id = REPLY_IDS[len(self.requests)]
        self.requests.append(asked)
        answer = self._script.pop(0)
        answers = [answer] if isinstance(answer, Answer) else answer
        if asked.stream:
            self.streams.append(stream(self.wire, asked, answers, reply_id))
            return httpx2.Response(
                200, content=self.streams[-1], headers={"content-type": "text/event-stream"}
            )
        if isinstance(answers, Refused):
            return httpx2.Response(answers.status, json=self.wire.error(answers))
        return httpx2.Response(200, json=self.wire.reply(asked, answers, reply_id))

    @property
    def transport(self) -> httpx2.Client:
        return httpx2.Client(transport=httpx2.MockTransport(self))

    @property
    def openai(self) -> openai.OpenAI:
        client: Any = self.transport
        if not issubclass(openai.DefaultHttpxClient, httpx2.Client):  # of the SDK before 3.0
            client = httpx.Client(transport=httpx.MockTransport(self._of_httpx))
        return openai.OpenAI(base_url="http://s/v1", api_key="k", max_retries=0, http_client=client)

    def _of_httpx(self, request: httpx.Request) -> httpx.Response:
        asked = httpx2.Request(request.method, str(request.url), content=request.read())
        answer = self(asked)
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)

    @property
    def anthropic(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(
            base_url="http://s", api_key="k", max_retries=0, http_client=self.transport
        )

    @property
    def google(self) -> genai.Client:
        return genai.Client(
            api_key="k", http_options={"base_url": "http://s", "httpx_client": self.transport}
        )

    def heard(self) -> list[str]:
        """The messages of the last request, as the tracker tells them apart."""
        return identities(self.requests[-1].messages)


def stream(wire: Wire, request: ChatRequest, answers: Sequence[Answer] | Refused, reply_id: str) -> bytes:
    events = wire.events(request, reply_id)
    out = events.begin()
    if isinstance(answers, Refused):
        return out + events.piece(Piece(0, "content", "half")) + events.fail(answers)
    if not request.logprobs:
        answers = [dataclasses.replace(a, logprobs=None) for a in answers]
    for choice, answer in enumerate(answers):
        out += b"".join(events.piece(p) for p in pieces(answer, choice))
    return out + events.end(answers)


def identities(messages: Sequence[Any]) -> list[str]:
    return [canonical(normalise(m, i)) for i, m in enumerate(messages)]


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The events' data; each event has its type as its name."""
    found = []
    for block in stream.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found
