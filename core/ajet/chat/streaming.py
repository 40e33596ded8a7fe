"""Answers while they are sampled: the text that is final whatever comes next.

`ajet.chat.renderer.Chat.parse` reads a whole answer. Clients that stream want its text earlier, and text that was
sent cannot be taken back. So a reader emits only what every continuation would leave unchanged: no
character whose bytes are incomplete, no space that parsing may strip, nothing after a point where a tool call
may begin. What it holds back is known with the whole answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Kind = Literal["content", "reasoning"]
Text = tuple[Kind, str]

OPEN, CLOSE = "<think>", "</think>"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Reader(Protocol):
    """Reads one answer, token by token."""

    def read(self, token: int) -> Iterator[Text]:
        """The text that has become certain with one more token."""
        ...


@dataclass(frozen=True, slots=True)
class Rules:
    """How `Chat.parse` reads the answers of a chat format."""

    stops: frozenset[int]
    """Tokens that end an answer."""
    calls: frozenset[int]
    """Tokens that begin a tool call."""
    holds: frozenset[int] = frozenset()
    """Tokens after which no text is final."""
    first_holds: frozenset[int] = frozenset()
    """Tokens after which no text is final if the answer begins with one."""
    thinks: bool = False
    think_ids: tuple[int, int] | None = None
    """The tokens with which reasoning begins and ends; without them, their texts do."""
    strips: bool = False
    """Whether all space around the content is stripped; otherwise only newlines before it if there is reasoning, and
    space after it if there are calls."""
    json_calls: bool = False
    """Whether an answer that begins with a brace may be a tool call."""


class AnswerReader:
    """Reads one answer, token by token. ``opened``: the prompt has already begun the reasoning."""

    def __init__(self, tokenizer: Any, rules: Rules, opened: bool) -> None:
        self._tokenizer = tokenizer
        self._rules = rules
        self._opened = opened
        self._decoder = Decoder(tokenizer)
        self._trim = Trim(None, True) if rules.strips else Trim("", bool(rules.calls))
        self._text = ""
        """Final text of the current part that was not emitted yet."""
        self._first = True
        self._drafts = False
        """Whether a tool call has begun within the reasoning."""
        self._state = self._saying
        if rules.think_ids and opened:
            self._begin_thoughts()
            self._state = self._thinking
        elif rules.think_ids:
            self._state = self._beginning
        elif rules.thinks:
            self._state = self._beginning_in_text

    def read(self, token: int) -> Iterator[Text]:
        """The text that has become certain with one more token."""
        rules = self._rules
        if token in rules.stops or token in rules.holds or (self._first and token in rules.first_holds):
            self._state = self._holding
        self._first = False
        for kind, text in self._state(token):
            if text:
                yield kind, text

    def _holding(self, token: int) -> Iterator[Text]:
        yield from ()

    def _saying(self, token: int) -> Iterator[Text]:
        if token in self._rules.calls:
            self._state = self._holding
            return
        yield from self._say(self._decoder.add(token))

    def _say(self, text: str) -> Iterator[Text]:
        if self._rules.json_calls and not self._trim.begun and text.lstrip().startswith("{"):
            self._state = self._holding
        else:
            yield "content", self._trim.add(text)

    # ---------------------------------------------------------------- reasoning between two tokens

    def _beginning(self, token: int) -> Iterator[Text]:
        """Only space so far: either the reasoning or the content begins."""
        assert self._rules.think_ids
        if token in self._rules.calls:
            self._state = self._holding
        elif token == self._rules.think_ids[0] and not self._decoder.all().strip():
            self._begin_thoughts()
            self._state = self._thinking
        else:
            self._text += self._decoder.add(token)
            if self._text.strip():
                self._state = self._saying
                yield from self._say(self._text)

    def _thinking(self, token: int) -> Iterator[Text]:
        assert self._rules.think_ids
        opens, closes = self._rules.think_ids
        if token == closes:
            thought = self._decoder.all()
            yield "reasoning", self._trim.add(self._text + self._decoder.rest())
            self._begin_content(None)
            # Parsing lets the content begin at the tag's text, even if it is spelled out in the reasoning.
            self._state = self._holding if CLOSE in thought else self._saying
        elif token != opens:
            self._drafts |= token in self._rules.calls  # one that ends them, unless their end comes later
            self._text += self._decoder.add(token)
            if not self._drafts:
                text, self._text = self._text, ""
                yield "reasoning", self._trim.add(text)

    # ---------------------------------------------------------------- reasoning between two texts

    def _beginning_in_text(self, token: int) -> Iterator[Text]:
        if token in self._rules.calls and not self._opened:
            self._state = self._holding
            return
        self._text += self._decoder.add(token)
        begun = self._text.lstrip()
        if OPEN.startswith(begun) and begun != OPEN:
            return
        if begun.startswith(OPEN) or self._opened:
            self._begin_thoughts(keep=True)
            self._state = self._thinking_in_text
            yield from self._think(begun.removeprefix(OPEN))
        else:
            self._state = self._saying
            yield from self._say(self._text)

    def _thinking_in_text(self, token: int) -> Iterator[Text]:
        yield from self._think(self._text + self._decoder.add(token))

    def _think(self, text: str) -> Iterator[Text]:
        seen = text + self._decoder.uncertain
        if CLOSE in seen:
            yield "reasoning", self._trim.add(seen.partition(CLOSE)[0])
            self._begin_content("\n")
            self._state = self._saying
            return
        certain = text[: len(text) - partial(text, (CLOSE,))]
        self._text = text[len(certain) :]
        yield "reasoning", self._trim.add(certain)

    def _begin_thoughts(self, keep: bool = False) -> None:
        self._text = ""
        self._trim = Trim(None, True)
        if not keep:
            self._decoder = Decoder(self._tokenizer)

    def _begin_content(self, left: str | None) -> None:
        self._text = ""
        self._trim = Trim(left, self._rules.strips or bool(self._rules.calls))
        self._decoder = Decoder(self._tokenizer)


class Decoder:
    """Decodes a growing list of tokens, each a bounded number of times, with a window that begins where
    the text was final the time before last, so that spaces between tokens are right (the scheme
    of Hugging Face's text-generation-inference)."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context = 0
        self._settled = 0  # the text of the tokens before is final
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
        """The text of all tokens."""
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
    found = ((text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text)
    return min(found, default=(0, 0, None))[2]


def partial(text: str, marks: tuple[str, ...]) -> int:
    """How many characters at the end of a text may be the beginning of one of the markers."""
    longest = min(len(text), max(map(len, marks), default=1) - 1)
    ends = (n for n in range(longest, 0, -1) if any(m.startswith(text[-n:]) for m in marks))
    return next(ends, 0)
