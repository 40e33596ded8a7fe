"""Answers while they are sampled: the text that is final whatever comes next.

`ajet.chat.answers` reads whole answers. Clients that stream want its text earlier, and text that was
sent cannot be taken back. So a reader emits only what every continuation would leave unchanged: no
character whose bytes are incomplete, no space that parsing may strip, nothing after a point where a tool call
may begin. What it holds back is known with the whole answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

Kind = Literal["content", "reasoning"]
Text = tuple[Kind, str]

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class AnswerReader(Protocol):
    """Reads one answer, token by token."""

    def read(self, token: int) -> Iterable[Text]:
        """The text that has become certain with one more token."""
        ...


class Decoder:
    """Decodes a growing list of tokens, each a bounded number of times, with a window that begins where
    the text was final the time before last, so that spaces between tokens are right (the scheme
    of Hugging Face's text-generation-inference). ``before`` are tokens that precede them, of complete text."""

    def __init__(self, tokenizer: Any, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids = list(before)
        self._context = 0
        self._settled = len(before)  # the text of the tokens before is final
        self._next = 0  # number of tokens at which decoding again is worthwhile
        self.uncertain = ""
        """The provisional text of the tokens after that."""

    def add(self, token: int) -> str:
        """The text that has become certain with one more token."""
        self._ids.append(token)
        if len(self._ids) < self._next or self._is_byte(token):
            return ""
        fresh = self.rest()
        if fresh.endswith("\ufffd"):  # perhaps the beginning of a character
            self.uncertain = fresh
            self._next = len(self._ids) + max(1, (len(self._ids) - self._settled) // 4)
            return ""
        self.uncertain = ""
        self._context, self._settled = self._settled, len(self._ids)
        return fresh

    def rest(self) -> str:
        """The text of the tokens whose text is not final, as if no more followed."""
        known = self._decode(self._ids[self._context : self._settled])
        return self._decode(self._ids[self._context :])[len(known) :]

    def all(self) -> str:
        """The text of all tokens, with those before them."""
        return self._decode(self._ids)

    def _is_byte(self, token: int) -> bool:
        """Whether the token is a single byte, whose text depends on the whole run of such tokens."""
        return bool(_BYTE.fullmatch(str(self._tokenizer.convert_ids_to_tokens(token))))

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)) if ids else ""


class Trim:
    """Strips a text that arrives in pieces: ``left`` as in `str.lstrip`, on the right all space or none."""

    def __init__(self, left: str | None, right: bool) -> None:
        self.begun = False
        self._left = left
        self._right = right
        self._held = ""

    def add(self, text: str) -> str:
        if not self.begun:
            text = text.lstrip(self._left)
            self.begun = bool(text)
        if not self._right:
            return text
        text = self._held + text
        kept = text.rstrip()
        self._held = text[len(kept) :]
        return kept


# --------------------------------------------------------------------------- stop strings


def stop_at(text: str, stops: tuple[str, ...]) -> int | None:
    """Where to cut a text: before the stop string that is complete first; None if there is none."""
    stop = stop_of(text, stops)
    return None if stop is None else text.find(stop)


def stop_of(text: str, stops: tuple[str, ...]) -> str | None:
    """The stop string that is complete first in a text, the longest of several; None if there is none."""
    ends = ((text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text)
    return min(ends, default=(0, 0, None))[2]
