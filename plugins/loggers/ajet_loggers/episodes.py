"""A few episodes of each step, as the rows of a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ajet.interfaces.events import EpisodeEnd
from ajet.interfaces.helpers import text_of

COLUMNS = ("episode", "task", "reward", "success", "failure", "messages", "response")
LONGEST = 100_000
"""Characters of a cell; what is longer is cut, and says so."""

Row = list[Any]


class EpisodeSample:
    """Keeps some of the episodes that it is given until they are taken.

    Which ones are kept is decided by a hash of their ids: the sample is as good as random, and a repeated run keeps the
    same ones.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: dict[tuple[str, int], dict[bytes, Row]] = {}

    def add(self, event: EpisodeEnd) -> None:
        """Keep an episode, unless enough others of its phase and step come first."""
        kept = self._kept.setdefault((event.phase, event.step), {})
        rank = hashlib.sha256(event.id.encode("utf-8", "replace")).digest()
        if len(kept) >= self._size and rank > max(kept):
            return
        kept[rank] = row(event)
        if len(kept) > self._size:
            del kept[max(kept)]

    def take(self, until: int | None = None) -> list[tuple[str, int, list[Row]]]:
        """(phase, step, rows) of what is kept of steps ``until`` this one, by default of all; it is not kept afterwards. Episodes of a
        later step may have ended before this one has."""
        due = [key for key in self._kept if until is None or key[1] <= until]
        taken = [(phase, step, self._kept.pop((phase, step))) for phase, step in due]
        return [(phase, step, [kept[rank] for rank in sorted(kept)]) for phase, step, kept in taken]


def row(event: EpisodeEnd) -> Row:
    """The cells of `COLUMNS` for an episode. Its messages are those of its longest call."""
    chat = max(event.messages, key=len, default=())
    return [
        text(event.id),
        text(event.task.id),
        event.reward,
        event.is_success,
        text(event.failure) if event.failure else None,
        text(transcript(chat)),
        "" if event.response is None else text(event.response),
    ]


def transcript(chat: Sequence[Mapping[str, Any]]) -> str:
    """A chat as text: each message under the name of its role."""
    return "\n\n".join(f"[{message.get('role', '')}]\n{_said(message)}" for message in chat)


def _said(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = [f"<think>{message['reasoning_content']}</think>"] if message.get("reasoning_content") else []
    if content:
        parts.append(text_of(message))
    if message.get("tool_calls"):
        parts.append(_json(message["tool_calls"]))
    return "\n".join(parts)


def text(value: Any) -> str:
    """A value as text that every tool can store: at most `LONGEST` characters, each of which UTF-8 can write."""
    whole = value if isinstance(value, str) else _json(value)
    cut = whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}… ({len(whole) - LONGEST} more characters)"
    return cut.encode("utf-8", "replace").decode().replace("\0", "")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
