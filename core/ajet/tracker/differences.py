"""Finds out how a recorded chat was changed when it came back: a cause from two message lists.

Pure functions of messages in normal form. ``recorded`` is a chat with its answer, ``sent`` a later
prompt that should have continued it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ajet.chat.messages import canonical, canonical_tool_arguments, loose, spoken, text_of, thoughts

Message = Mapping[str, Any]

CAUSES = {
    "thinking stripped": "Send answers back with their reasoning, or set rollout.merge: text.",
    "reasoning edited": "Send an answer's reasoning back unchanged, or leave it out.",
    "whitespace changed": "Send messages back unchanged (look for .strip() in the agent); rollout.merge: text helps for answers.",
    "arguments re-serialised": "Send tool-call arguments back as the original JSON text, not parsed and serialised again.",
    "tool-call ids changed": "Send tool calls and results back with their ids; rollout.merge: text helps for answers.",
    "prefill sent apart": "Send a prefill and the answer that continues it back as one assistant message.",
    "tool list changed": "Offer the same tools, in the same order down to their keys, in every call of a conversation.",
    "history summarised": "Nothing is wrong: the model now sees other text. Summarise less often to train longer timelines.",
    "window slid": "Nothing is wrong: the oldest turns are gone. Keep more turns, or drop many at once instead of one by one.",
    "turns removed": "Nothing is wrong: the agent cut messages out. The filter discarded_attempts leaves such attempts untrained.",
    "system prompt changed": "Keep what changes (time, memory, state) out of the system prompt; put it into the newest message.",
    "message edited": "Append new messages instead of editing earlier ones.",
    "answer edited": "Send answers back unchanged; put corrections into a new message.",
    "stop string hidden": "Nothing is wrong: the answer continues what the agent saw, which ends before the stop string.",
    "retokenised": "The same text became other tokens. Please report this: the recorded tokens should have been continued.",
    "template drops thinking": "The chat template omits earlier reasoning. Set rollout.merge: text, or use a template that keeps it.",
    "template drops answer": "The chat template omits part of the answer. Use a chat template that writes answers in full.",
    "template moves tools": "The chat template moves the tool list. Use a chat template that writes it once, before the messages.",
    "template rewrites history": "The chat template rewrites earlier messages. Use a chat template that only appends.",
    "not renderable": "The chat template refuses the chat with its recorded answers. Use a chat template that accepts them.",
}
"""Every cause of a break, with its remedy."""

SAME_ANSWER = frozenset(
    {
        "thinking stripped",
        "reasoning edited",
        "whitespace changed",
        "arguments re-serialised",
        "tool-call ids changed",
    }
)
"""Causes that leave the meaning of a message unchanged."""

WIDTH = 80
"""Characters of an excerpt."""

_EDITED = {"assistant": "answer edited", "system": "system prompt changed"}


class _ToolCall(NamedTuple):
    id: str
    name: str
    arguments: str

    @property
    def spelling(self) -> str:
        return canonical_tool_arguments(self.arguments)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of two chats: ``message`` is its index, ``before`` and ``now`` are excerpts
    around the character ``char`` in which the texts differ; -1 if other messages are there."""

    cause: str
    message: int
    before: str
    now: str
    char: int


def explain(recorded: Sequence[Message], sent: Sequence[Message], common: int | None = None) -> Difference:
    """Why ``sent`` does not begin with ``recorded``; ``retokenised`` if it does. ``common``: how many messages
    at the beginning are the same, if that is known."""
    at = _common(recorded, sent) if common is None else common
    old, new = recorded[at:], sent[at:]
    if not old:
        return Difference("retokenised", at - 1, "", "", -1)
    if not new:
        return Difference("turns removed", at, excerpt(_text(old[0])), "", -1)
    kind, before, now = compare(old[0], new[0])
    if kind == "system prompt changed" and at >= leading(recorded):
        kind = "message edited"
    cause = kind if kind in SAME_ANSWER else _rewriting(recorded, at, new, kind)
    if cause != kind:  # other messages are here now: comparing their characters is meaningless
        return Difference(cause, at, excerpt(_text(old[0])), excerpt(_text(new[0])), -1)
    char = _common_start(before, now)
    return Difference(cause, at, excerpt(before, char), excerpt(now, char), char)


def compare(old: Message, new: Message) -> tuple[str, str, str]:
    """How one message was changed: a cause, and the two texts that show it."""
    edited = _EDITED.get(old["role"], "message edited")
    was, now = text_of(old), text_of(new)
    renamed = old["role"] != "assistant" and old.get("name") != new.get("name")
    if old["role"] != new["role"] or renamed:
        return (edited if old["role"] == new["role"] else "message edited"), _text(old), _text(new)
    if _squeezed(spoken(old)) != _squeezed(spoken(new)):
        return edited, was, now
    calls, sent = _calls(old), _calls(new)
    if [(c.name, _meaning(c.arguments)) for c in calls] != [(c.name, _meaning(c.arguments)) for c in sent]:
        return edited, _told(calls), _told(sent)
    thought, told = thoughts(old), thoughts(new)
    inside = _squeezed(was) != _squeezed(now)
    rethought = _squeezed(thought) != _squeezed(told)
    if rethought and (told or inside):
        kind = "reasoning edited" if told else "thinking stripped"
        return kind, *((was, now) if inside else (thought, told))
    # A reply that comes back without its reasoning is recognised, so any other change is the cause.
    if [c.spelling for c in calls] != [c.spelling for c in sent]:
        return "arguments re-serialised", _told(calls), _told(sent)
    if _ids(old) != _ids(new):
        return "tool-call ids changed", _ids(old), _ids(new)
    if was == now and _told(calls) != _told(sent):
        return "arguments re-serialised", _told(calls), _told(sent)
    if rethought:
        return "thinking stripped", thought, told
    if was == now and thought == told and old.get("name") != new.get("name"):
        return edited, old.get("name") or "", new.get("name") or ""
    return "whitespace changed", *((was, now) if was != now else (thought, told))


def excerpt(text: str, char: int = 0) -> str:
    """At most 80 characters of a text around one of them."""
    start = max(0, char - WIDTH // 2)
    left = "…" if start else ""
    room = WIDTH - len(left)
    right = "…" if len(text) - start > room else ""
    return f"{left}{text[start : start + room - len(right)]}{right}"


def leading(messages: Sequence[Message]) -> int:
    """How many system messages a chat begins with."""
    return next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))


# --------------------------------------------------------------------------- several messages


def _rewriting(recorded: Sequence[Message], at: int, new: Sequence[Message], kind: str) -> str:
    """The cause, if more than one message (``kind``) may have changed from index ``at`` on."""
    old = recorded[at:]
    was, now = [loose(m) for m in old], [loose(m) for m in new]
    kept, end = _kept(was, now)
    if kept:
        dropped, instead = old[: len(old) - kept], new[: end - kept]
        if not dropped and not instead:
            return kind
        if at <= leading(recorded) and all(m["role"] == "system" for m in (*dropped, *instead)):
            return "system prompt changed"
        if _in_order(now[: end - kept], was):
            return _removal(recorded, at, kept)
        if len(dropped) <= len(instead):
            return kind if dropped else "message edited"
        return "history summarised"
    if kind == "answer edited" and (len(was) == 1 or len(now) == 1 or was[1] == now[1]):
        return kind
    if _in_order(now[:-1], was):
        return _removal(recorded, at, len(now) - 1)
    return "history summarised" if len(now) <= len(was) else kind


def _kept(was: Sequence[str], now: Sequence[str]) -> tuple[int, int]:
    """How many of the last recorded messages reappear in one piece, and where that piece ends in ``now``."""
    best = (0, 0)
    for end, text in enumerate(now, 1):
        if text == was[-1]:
            length = 1
            while length < min(len(was), end) and was[-1 - length] == now[end - 1 - length]:
                length += 1
            best = max(best, (length, end))
    return best


def _removal(recorded: Sequence[Message], at: int, kept: int) -> str:
    """Turns are gone and nothing replaces them. A window begins at the first turn; a successful retry leaves only its
    own answer of what came after the first prompt."""
    first_answer = next((i for i, m in enumerate(recorded) if m["role"] == "assistant"), len(recorded))
    slid = at <= leading(recorded) or (at <= first_answer and kept > 1)
    return "window slid" if slid else "turns removed"


def _in_order(some: Sequence[str], all_: Sequence[str]) -> bool:
    """Whether ``some`` is a subsequence."""
    rest = iter(all_)
    return all(text in rest for text in some)


def _common(a: Sequence[Message], b: Sequence[Message]) -> int:
    """The number of equal messages at the beginning of two chats; identical objects are not compared further."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x is not y and canonical(x) != canonical(y):
            return i
    return min(len(a), len(b))


# --------------------------------------------------------------------------- one message


def _common_start(a: str, b: str) -> int:
    """The number of equal characters at the beginning of two texts."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _calls(message: Message) -> list[_ToolCall]:
    return [
        _ToolCall(c.get("id") or "", c["function"]["name"], c["function"].get("arguments") or "")
        for c in message.get("tool_calls") or ()
    ]


def _ids(message: Message) -> str:
    own = message.get("tool_call_id")
    return " ".join([*([own] if own else []), *(c.id for c in _calls(message))])


def _told(calls: Sequence[_ToolCall]) -> str:
    return "\n".join(f"{c.name}({c.arguments})" for c in calls)


def _text(message: Message) -> str:
    return "\n".join(filter(None, [text_of(message), _told(_calls(message))]))


def _meaning(arguments: str) -> Any:
    """Arguments as a value: double-encoded and empty ones get the same meaning."""
    value: Any = arguments
    while isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return _squeezed(value)
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
