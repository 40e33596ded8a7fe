"""Recorded replies, found by what was asked: the same request gets the same reply, in whatever order requests come.

A request is compared as parts of text, in a normal form: an assistant's name and reasoning, tool-call ids, UUIDs and other
random numbers of 128 bits do not count, but where an id occurs again does. A request that was recorded several times gets
its replies in their order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Generic, NamedTuple, TypeVar

from ajet.chat.messages import BadMessage, canonical_tool_arguments, normalise, spoken, text_of
from ajet.interfaces.wire import Refused

T = TypeVar("T")
RECORD_AGAIN = "Undo the change, or record again."
_RANDOM = re.compile(
    r"(?<![0-9a-zA-Z])(?:[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})(?![0-9a-zA-Z])"
)
_BEFORE, _AFTER = 24, 48
"""Characters that an error shows before and after the first difference."""


class NotRecorded(Refused):
    """A request that no recorded reply answers; the message says what is different."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}. {RECORD_AGAIN}", code="not_recorded")


class Part(NamedTuple):
    """A piece of a request: its name for people, such as ``message 2 (user)``, and its text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class NormalRequest:
    """A request in its normal form."""

    parts: tuple[Part, ...]
    """The messages, or the text to continue."""
    others: tuple[Part, ...] = ()
    """The tools, or the other fields of a body."""


@dataclass(slots=True)
class Form:
    """Makes the normal form of one request; ``ignore`` are patterns of text that does not count."""

    ignore: Sequence[re.Pattern[str]] = ()
    _ids: dict[str, int] = field(default_factory=dict)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> NormalRequest:
        """A request with messages, in any form of the chat completions API. Raises BadMessage."""
        parts = [self._message(normalise(m, i), i) for i, m in enumerate(messages)]
        return NormalRequest(tuple(parts), (Part("the list of tools", self._json(list(tools))),))

    def text(self, prompt: str | Sequence[int]) -> NormalRequest:
        """A request that continues text or token ids."""
        text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
        return NormalRequest((Part("the prompt", self._plain(text)),))

    def body(self, body: Any) -> NormalRequest:
        """A request to any endpoint, by its JSON."""
        if not isinstance(body, Mapping):
            return NormalRequest((Part("the body", self._plain(str(body))),))
        messages = body.get("messages")
        given = messages if isinstance(messages, list) else []
        parts = tuple(Part(f"message {i}", self._json(message)) for i, message in enumerate(given, 1))
        rest = {k: v for k, v in sorted(body.items()) if not (k == "messages" and parts)}
        return NormalRequest(parts, tuple(Part(f"the field {k!r}", self._json(v)) for k, v in rest.items()))

    def _message(self, message: Mapping[str, Any], index: int) -> Part:
        role = message["role"]
        name = f" {message['name']}" if message.get("name") and role != "assistant" else ""
        answered = message.get("tool_call_id")
        result = f" of call {self._number(answered)}" if answered else ""
        calls = [
            f"\ncall {self._number(call['id'])}: {call['function']['name']}"
            f"({self._plain(canonical_tool_arguments(call['function']['arguments']))})"
            for call in message.get("tool_calls") or ()
        ]
        said = spoken(message).strip() if role == "assistant" else text_of(message)
        return Part(f"message {index + 1} ({role}{name}{result})", self._plain(said) + "".join(calls))

    def _json(self, value: Any) -> str:
        return json.dumps(self._inside(value), sort_keys=True, ensure_ascii=False, default=str)

    def _inside(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._plain(value)
        if isinstance(value, Mapping):
            return {key: self._inside(inner) for key, inner in value.items()}
        return [self._inside(inner) for inner in value] if isinstance(value, list | tuple) else value

    def _plain(self, text: str) -> str:
        for pattern in self.ignore:
            text = pattern.sub("…", text)
        return _RANDOM.sub(lambda match: f"<id {self._number(match[0].lower())}>", text)

    def _number(self, id_: str) -> int:
        return self._ids.setdefault(id_, len(self._ids) + 1)


@dataclass(slots=True)
class _Entry(Generic[T]):
    request: NormalRequest
    agent: str
    reply: T
    is_taken: bool = False


class Replies(Generic[T]):
    """The replies of one episode. ``recorded`` holds (agent, request, reply) in the order of the calls."""

    def __init__(
        self, recorded: Iterable[tuple[str, NormalRequest, T]], ignore: Sequence[re.Pattern[str]] = ()
    ) -> None:
        self._entries = [_Entry(request, agent, reply) for agent, request, reply in recorded]
        self.ignore = ignore
        self.missing: list[str] = []
        """What is different in each request that no reply answered, in one line each."""

    def __contains__(self, request: NormalRequest) -> bool:
        return any(entry.request == request for entry in self._entries)

    def take(self, agent: str, request: NormalRequest) -> T:
        """The next reply to a request; among equal requests, those of the same agent come first. Raises NotRecorded."""
        equal = [entry for entry in self._entries if entry.request == request]
        free = [entry for entry in equal if not entry.is_taken]
        if free:
            entry = next((e for e in free if e.agent == agent), free[0])
            entry.is_taken = True
            return entry.reply
        if equal:
            error = f"it is sent {_times(len(equal) + 1)}, and was recorded {_times(len(equal))}"
        elif self._entries:
            error, _ = self.nearest(agent, request)
        else:
            error = "the recording has none"
        who = f"of agent {agent!r} " if agent else ""
        self.missing.append(f"a request {who}is not in the recording: {error}")
        raise NotRecorded(self.missing[-1])

    @property
    def unused(self) -> list[str]:
        """The recorded requests that were not sent: the agent and the last message of each."""
        left = [entry for entry in self._entries if not entry.is_taken]
        return [
            f"{e.agent!r}, {e.request.parts[-1].name} {_shown(e.request.parts[-1].text, 0)}" for e in left
        ]

    def nearest(self, agent: str, request: NormalRequest) -> tuple[str, T]:
        """How a request differs from the recorded one that is most like it, in words (empty if it does not), and that one's
        reply. There must be one."""

        def likeness(entry: _Entry[T]) -> tuple[int, int, bool, bool]:
            equal = _shared(request.parts, entry.request.parts)
            after = [
                parts[equal].text for parts in (request.parts, entry.request.parts) if len(parts) > equal
            ]
            letters = _shared(*after) if len(after) == 2 else 0
            return equal, letters, entry.agent == agent, not entry.is_taken

        entry = max(self._entries, key=likeness)
        was = entry.request
        return _compared(request.parts, was.parts) or _compared(request.others, was.others), entry.reply


def request_of(
    form: Form, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], prompt: Any
) -> NormalRequest:
    """The request of a call: ``prompt`` is None if it has messages. Raises NotRecorded for messages that are not valid."""
    try:
        return form.chat(messages, tools) if prompt is None else form.text(prompt)
    except BadMessage as error:
        raise NotRecorded(f"a request is not valid: {error}") from None


def _compared(now: Sequence[Part], recorded: Sequence[Part]) -> str:
    """The first difference in words; empty if there is none."""
    at = _shared(now, recorded)
    if at == len(now) == len(recorded):
        return ""
    if at == len(now):
        return f"the recorded one goes on with {recorded[at].name}, {_shown(recorded[at].text, 0)}"
    if at == len(recorded):
        return f"it goes on with {now[at].name}, {_shown(now[at].text, 0)}, where the recorded one ends"
    one, two = now[at], recorded[at]
    place = first_difference(one.text, two.text)
    was = "" if one.name == two.name else f" of {two.name}"
    return f"{one.name} is now {_shown(one.text, place)}, and was {_shown(two.text, place)}{was}"


def difference(now: str, recorded: str) -> str:
    """Where two texts begin to differ: ``"…is 3 + 5?", recorded "…is 3 + 4?"``."""
    place = first_difference(now, recorded)
    return f"{_shown(now, place)}, recorded {_shown(recorded, place)}"


def first_difference(one: str, two: str) -> int:
    """The index of the first character in which two texts differ."""
    return _shared(one, two)


def _shared(one: Sequence[Any], two: Sequence[Any]) -> int:
    """How many items at the beginning are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False)))


def _shown(text: str, place: int) -> str:
    """The text around a place, in quotes and in one line, from the beginning of a word."""
    start = max(place - _BEFORE, 0)
    if start:
        spaces = [i for i in range(start, place) if text[i : i + 1].isspace()]
        start = spaces[0] + 1 if spaces else start
    end = place + _AFTER
    shown = f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
    return json.dumps(shown, ensure_ascii=False)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
