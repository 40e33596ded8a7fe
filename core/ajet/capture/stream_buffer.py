"""Cuts one choice of a streamed reply into pieces while it is sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ajet.chat.streaming import AnswerReader, Kind, stop_at
from ajet.chat.texts import partial
from ajet.interfaces.wire import Piece
from ajet.types import AjetError

Emit = Callable[[Piece], None]


class StreamBuffer:
    """Emits text as soon as it is final, and at the end the rest of the message.

    The first piece is empty and signals that sampling has begun. ``stops`` cut thoughts and content in the same way as
    `Session` does.
    """

    def __init__(self, emit: Emit, choice: int, reader: AnswerReader | None, stops: tuple[str, ...]) -> None:
        self._emit = emit
        self._choice = choice
        self._reader = reader
        self._stops = stops
        self._held: dict[Kind, str] = {"reasoning": "", "content": ""}
        """Text at the end that may be the beginning of a stop string."""
        self._stopped = False
        self._emitted: dict[Kind, list[str]] = {"reasoning": [], "content": []}
        self.last: dict[Kind, str] = {"reasoning": "", "content": ""}
        """The last piece of each kind."""
        self._begun = False

    def sampled(self, tokens: Iterable[int]) -> None:
        """More tokens of the answer."""
        if not self._begun:
            self._begun = True
            self._emit(Piece(self._choice, "content", ""))
        for token in tokens if self._reader else ():
            assert self._reader
            for kind, text in self._reader.read(token):
                if kind == "content" and text:  # the thought has ended
                    self._send("reasoning", self._before_stop("reasoning", "", over=True))
                self._send(kind, self._before_stop(kind, text))

    def finish(self, message: Mapping[str, Any]) -> None:
        """The whole answer. Raises AjetError if it does not begin with the text already emitted."""
        keys: tuple[tuple[Kind, str], ...] = (("reasoning", "reasoning_content"), ("content", "content"))
        for kind, key in keys:
            emitted, whole = "".join(self._emitted[kind]), message.get(key) or ""
            if not whole.startswith(emitted):
                raise AjetError(f"the answer does not begin with the streamed {kind}: {emitted[-80:]!r}")
            self._send(kind, whole[len(emitted) :])

    def _send(self, kind: Kind, text: str) -> None:
        if text:
            self._emitted[kind].append(text)
            self.last[kind] = text
            self._emit(Piece(self._choice, kind, text))

    def _before_stop(self, kind: Kind, text: str, over: bool = False) -> str:
        """What no stop string can cut any more; ``over``: no more text of this kind comes."""
        if self._stopped:
            return ""
        text = self._held[kind] + text
        end = stop_at(text, self._stops)
        if end is None:
            end = len(text) - (0 if over else partial(text, self._stops))
        else:
            self._stopped = True
        self._held[kind] = text[end:]
        return text[:end]
