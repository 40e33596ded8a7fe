"""Reads answers: their thoughts, their text and their tool calls, complete or while they are sampled.

One set of rules for every chat format whose answers are text between markers. All of it works on decoded text, so a marker
counts however it was tokenized.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ajet.chat.bodies import ReadCall, Tools
from ajet.chat.calls import CallReader, Calls
from ajet.chat.shape import AnswerShape
from ajet.chat.streaming import AnswerReader, Decoder, Text, Trim
from ajet.chat.texts import partial

Message = Mapping[str, Any]
FAULTS = ("malformed_tool_calls", "unoffered_tool_calls", "calls_in_thoughts", "cut_thoughts", "cut_calls")


@dataclass(frozen=True, slots=True)
class Parsed:
    """An answer as a message. What does not call an offered tool is part of ``content``."""

    content: str
    reasoning: str | None = None
    tool_calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments as JSON text)"""
    call_ids: tuple[str, ...] = ()
    """The ids that the model wrote; empty texts where it wrote none that a later prompt can contain."""
    reasoning_tokens: int = 0
    """How many ids are the reasoning, including its markers."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What went wrong, by the names in `FAULTS`; without those that did not."""

    @property
    def malformed(self) -> int:
        """Tool calls that could not be read, complete or cut."""
        return self.counts.get("malformed_tool_calls", 0) + self.counts.get("cut_calls", 0)


class Answers(Protocol):
    """Reads the answers of one chat format."""

    stop_token_ids: tuple[int, ...]
    """Tokens that end an answer."""

    def parse(
        self, ids: list[int], prompt: list[int], tools: Sequence[Message], ended: bool = True
    ) -> Parsed:
        """An answer up to the token that ends it; ``ended`` is false if none did. ``prompt`` are the last ids before it,
        ``tools`` those that the request offers. Raises nothing, whatever was sampled."""
        ...

    def reader(self, prompt: list[int], tools: Sequence[Message]) -> AnswerReader:
        """Reads an answer while it is sampled, with the result that `parse` gives at the end. Raises nothing."""
        ...


@dataclass(frozen=True, slots=True)
class _Split:
    """The parts of an answer's text."""

    thought: str | None
    rest: str
    """What follows the thought."""
    end: int
    """Where the rest begins."""
    closed: bool


class MarkedAnswers:
    """Answers whose parts stand between the markers of an `AnswerShape`. Without ``calls``, all is text. ``before`` are ids
    after which ``decode`` decodes."""

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        tokenizer: Any,
        shape: AnswerShape,
        calls: CallReader | None,
        stops: Sequence[int],
        before: Sequence[int] = (),
    ) -> None:
        self._decode, self._tokenizer, self._shape, self._calls = decode, tokenizer, shape, calls
        self.stop_token_ids, self._before = tuple(stops), before

    def parse(
        self, ids: list[int], prompt: list[int], tools: Sequence[Message], ended: bool = True
    ) -> Parsed:
        """See `Answers`."""
        opened = self._shape.thoughts is not None and self.opened(self._decode(prompt))
        parsed, end = self.parse_text(self._decode(ids), opened, tools, ended)
        if parsed.reasoning is None:
            return parsed
        return replace(parsed, reasoning_tokens=self._tokens_upto(ids, end))

    def _tokens_upto(self, ids: list[int], end: int) -> int:
        """How many ids spell the text up to ``end``, where a thought ends."""
        assert self._shape.thoughts

        def length(count: int) -> int:
            return len(self._decode(ids[:count]))

        closing = self._tokenizer.convert_tokens_to_ids(self._shape.thoughts[1])
        if closing in ids:  # the usual case, in which two prefixes are decoded
            before = ids.index(closing)
            if length(before) < end <= length(before + 1):
                return before + 1
        return bisect_left(range(len(ids)), end, key=length)

    def opened(self, prompt: str) -> bool:
        """Whether a prompt has begun a thought that is not ended."""
        if self._shape.thoughts is None:
            return False
        begin, end = self._shape.thoughts
        begun = prompt.rpartition(self._shape.last_token)[2] if self._shape.last_token else prompt
        return begun.rfind(begin) > begun.rfind(end)

    def parse_text(
        self, text: str, opened: bool, tools: Sequence[Message], ended: bool = True
    ) -> tuple[Parsed, int]:
        """An answer's text as a message, and where its reasoning ends."""
        offered = Tools(tools)
        split = self._split(text, opened)
        counts = {"cut_thoughts": int(not split.closed)}
        calls = self._read(split.rest, offered, ended)
        thought, end = split.thought, split.end
        if not split.closed:  # a call ends a thought that has no end, unless that was cut off
            inside = self._read(thought or "", offered, ended)
            counts["calls_in_thoughts"] = len(inside.calls) + inside.malformed
            if inside.calls and ended:
                thought, end = (thought or "")[: inside.begin], end - len((thought or "")[inside.begin :])
                after = inside.text[len(thought.rstrip()) :]
                calls = replace(inside, text=after.lstrip(), malformed=0)
        cut = int(calls.cut and calls.malformed > 0)
        counts |= {
            "malformed_tool_calls": calls.malformed - cut,
            "unoffered_tool_calls": calls.unoffered,
            "cut_calls": cut,
        }
        content = self._content(calls.text, thought is not None, bool(calls.calls))
        return Parsed(
            content,
            (thought or "").strip() or None,
            tuple((c.name, json.dumps(c.arguments, ensure_ascii=False)) for c in calls.calls),
            tuple(c.id for c in calls.calls),
            counts={name: count for name, count in counts.items() if count},
        ), end

    def written(self, content: str, thought: str, calls: Sequence[ReadCall]) -> str:
        """What a model writes that says this, by the markers alone."""
        assert self._calls
        begin, end = self._shape.thoughts or ("", "")
        said = f"{begin}\n{thought}\n{end}\n\n" if thought else ""
        return said + content + self._calls.write(calls)

    def reader(self, prompt: list[int], tools: Sequence[Message]) -> AnswerReader:
        """See `Answers`."""
        return _MarkedReader(self, self.opened(self._decode(prompt)), tools)

    def _read(self, text: str, offered: Tools, ended: bool) -> Calls:
        if self._calls is None or not offered.schemas:
            return Calls(text)
        return self._calls.read(text, offered, ended)

    def _split(self, text: str, opened: bool) -> _Split:
        if self._shape.thoughts is None:
            return _Split(None, text, 0, True)
        begin, end = self._shape.thoughts
        begun = text.lstrip()
        if begun.startswith(begin):
            begun = begun[len(begin) :]
        elif not opened:
            return _Split(None, text, 0, True)
        at = begun.find(end)
        if at < 0:
            return _Split(begun, "", len(text), False)
        rest = begun[at + len(end) :]
        return _Split(begun[:at], rest, len(text) - len(rest), True)

    def _content(self, text: str, after_thought: bool, calls: bool) -> str:
        """The text without the markers around it, and without the lines between it and a thought; before calls, without the header
        of the message that they are in some formats."""
        begin, end = self._shape.said
        text = text.removesuffix(self._shape.header.strip()) if calls else text
        if begin and text.lstrip().startswith(begin):
            text = text.lstrip()[len(begin) :]
        text = text.lstrip("\n") if after_thought else text
        if end:
            before, _, after = text.partition(end)
            closing = self._shape.ending.closing.strip()
            text = before if after.strip() in ("", closing.removeprefix(end)) else before + after
        # In some formats the token that ends a turn also ends a thought, so it does not end an answer.
        token = self._shape.ending.token
        return text.removesuffix(token) if token and token in (self._shape.thoughts or ("", ""))[1] else text


class _MarkedReader:
    """Reads one answer, token by token. It gives only text that no continuation changes: what may be a marker or a call, and
    space that may be stripped, is held back."""

    def __init__(self, answers: MarkedAnswers, opened: bool, tools: Sequence[Message]) -> None:
        self._answers = answers
        self._shape, self._calls = answers._shape, answers._calls
        self._offered = Tools(tools)
        self._decoder = Decoder(answers._tokenizer, answers._before)
        self._pending = ""
        """Text of the current part that was not given yet."""
        self._sought = 0
        """Up to where it has no end of a thought."""
        self._content = self._open if self._shape.said[0] else self._say
        self._state = self._begin if self._shape.thoughts else self._content
        self._opened = opened
        self._trim = Trim("", self._may_call)
        self._stopped = False

    @property
    def _may_call(self) -> bool:
        return bool(self._calls and self._offered.schemas)

    def read(self, token: int) -> list[Text]:
        """The text that has become certain with one more token."""
        if self._stopped or token in self._answers.stop_token_ids:
            self._stopped = True
            return []
        self._pending += self._decoder.add(token)
        given: list[Text] = []
        state = None
        while state is not self._state and not self._stopped:
            state = self._state
            given += state()
        return [(kind, text) for kind, text in given if text]

    def _begin(self) -> list[Text]:
        """Only space so far: either the reasoning or the content begins."""
        assert self._shape.thoughts
        marker = self._shape.thoughts[0]
        begun = self._pending.lstrip()
        if marker.startswith(begun) and begun != marker:
            return []
        if begun.startswith(marker) or self._opened:
            self._pending = begun.removeprefix(marker)
            self._trim = Trim(None, True)
            self._state = self._think
        else:
            self._state = self._content
        return []

    def _think(self) -> list[Text]:
        assert self._shape.thoughts
        marker = self._shape.thoughts[1]
        at = self._pending.find(marker, self._sought)
        self._sought = max(0, len(self._pending) - len(marker))
        if at >= 0:
            thought, self._pending = self._pending[:at], self._pending[at + len(marker) :]
            self._state = self._content
            given: list[Text] = [("reasoning", self._trim.add(thought))]
            self._trim = Trim("\n", self._may_call)
            return given
        # A call within a thought may end it, unless the thought's end follows.
        certain = min(self._held(), len(self._pending) - partial(self._pending, (marker,)))
        text, self._pending = self._pending[:certain], self._pending[certain:]
        self._sought = max(0, self._sought - certain)
        return [("reasoning", self._trim.add(text))]

    def _open(self) -> list[Text]:
        """Only space so far, or the beginning of the marker before the content."""
        begin = self._shape.said[0]
        begun = self._pending.lstrip()
        if begin.startswith(begun) and begun != begin:
            return []
        self._pending = begun[len(begin) :] if begun.startswith(begin) else self._pending
        self._state = self._say
        return []

    def _say(self) -> list[Text]:
        certain = self._held()
        header = self._shape.header.strip() if self._may_call else ""  # a call may follow it
        for end in filter(None, (self._shape.said[1], header)):
            marked = self._pending.find(end)
            certain = min(
                certain, marked if marked >= 0 else len(self._pending) - partial(self._pending, (end,))
            )
        text, self._pending = self._pending[:certain], self._pending[certain:]
        if self._begins_call():
            self._stopped = True  # all that follows is known with the whole answer
        return [("content", self._trim.add(text))]

    def _begins_call(self) -> bool:
        return self._may_call and self._calls is not None and self._pending.startswith(self._calls.begins)

    def _held(self) -> int:
        """How many characters of the pending text cannot begin a call, whatever follows."""
        if not self._may_call:
            return len(self._pending)
        if self._begins_call():
            return 0
        assert self._calls
        return self._calls.holds(self._pending, not self._trim.begun, self._offered)
