"""How a model writes tool calls: reading them from an answer's text, and writing them.

Calls stand between the literal texts of a format. A format is derived from examples (`ajet.chat.derive`), never named here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from ajet.chat.bodies import (
    ANY_KEY,
    ANY_NAME,
    ANYWHERE,
    ID,
    NUMBER,
    Body,
    Effort,
    Ends,
    JsonBody,
    PythonBody,
    ReadCall,
    TagBody,
    Tools,
    UnreadableCall,
    pattern,
    read_json,
    skip,
    with_id,
)
from ajet.chat.texts import partial

_PYTHON = r"[A-Za-z_][A-Za-z0-9_.-]*+"
"""A tool's name where nothing but the bracket after it shows that it is called."""
_HEAD = 200
"""Characters of a JSON object that show whether it is meant to be a call."""
_FUNCTOOLS = "functools"
"""Phi-4-mini writes this word before its list of calls."""
_HERMES = ("<tool_call>", "</tool_call>")
"""Models write these around calls whatever their chat template says."""
_TAG = re.compile(rf"<[^<>\s{ID}{NUMBER}{ANY_NAME}]+>?|\[/?[A-Z_ ]+\]")


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of an answer, and its text without them."""

    text: str
    calls: tuple[ReadCall, ...] = ()
    malformed: int = 0
    """Calls that begin and cannot be read."""
    unoffered: int = 0
    """Calls of tools that the request does not offer."""
    begin: int = -1
    """Where in the text the first call begins."""
    cut: bool = False
    """Whether the last call that cannot be read has no end."""


class CallReader(Protocol):
    """Reads the calls of answers."""

    @property
    def kind(self) -> str:
        """How calls are written, in a few words for the user."""
        ...

    @property
    def begins(self) -> tuple[str, ...]:
        """Texts with which a call may begin."""
        ...

    def holds(self, text: str, first: bool, tools: Tools) -> int:
        """From where on a text that goes on may be a call; its length if nowhere. ``first``: the answer begins with it."""
        ...

    def read(self, text: str, tools: Tools, ended: bool = True) -> Calls:
        """The calls of an answer; ``ended``: the model has ended it. Each beginning of a call is a call or counted: what
        cannot be read, and calls of tools that are not offered, stay text. Raises nothing."""
        ...

    def write(self, calls: Sequence[ReadCall]) -> str:
        """Calls as the model writes them."""
        ...


class _Reading:
    """An answer that is read from its beginning to its end."""

    def __init__(self, text: str, tools: Tools) -> None:
        self.at = 0
        self._text, self._offered = text, tools.schemas
        self._kept: list[str] = []
        self._calls: list[ReadCall] = []
        self._malformed = self._unoffered = 0
        self._begin, self._cut = -1, False

    def call(self, call: ReadCall, start: int, end: int) -> None:
        """A call stands between two positions."""
        offered = call.name in self._offered
        self._kept.append(self._text[self.at : start if offered else end])
        self.at = end
        if offered:
            self._begin = start if self._begin < 0 else self._begin
            self._calls.append(call)
        else:
            self._unoffered += 1

    def malformed(self, end: int, *, cut: bool) -> None:
        """What begins as a call and cannot be read goes up to a position; ``cut``: it has no end."""
        self._malformed += 1
        self._kept.append(self._text[self.at : end])
        self.at, self._cut = end, cut

    def done(self) -> Calls:
        """What was read."""
        rest = "".join([*self._kept, self._text[self.at :]]).rstrip() if self._calls else self._text
        return Calls(rest, tuple(self._calls), self._malformed, self._unoffered, self._begin, self._cut)


@dataclass(frozen=True)
class CallFormat:
    """Calls between literals: ``section[0] call[0] BODY call[1] between … section[1]``."""

    body: Body
    section: tuple[str, str]
    """What stands before the first call, and after the last one."""
    call: tuple[str, str]
    """What stands before and after each call."""
    between: str = "\n"

    @property
    def kind(self) -> str:
        """See `CallReader`."""
        return self.body.kind

    @property
    def begins(self) -> tuple[str, ...]:
        """Texts with which a call may begin."""
        words = [part.split() for literal in (self.section[0], self.call[0]) for part in _parts(literal)]
        begins = (re.split(f"[{ID}{NUMBER}{ANY_NAME}]", word[0])[0] for word in words if word)
        return tuple(dict.fromkeys(text.rstrip("[{(") or text for text in begins))

    @cached_property
    def _patterns(self) -> dict[str, re.Pattern[str]]:
        is_list, has_end = not self.call[0].strip(), bool(self.section[1].strip())
        begins, between, ends = map(pattern, (self.call[0], self.between, self.section[1]))
        opens, closes = _with_less(self.section[0]), _with_less(self.call[1], last=True)
        marks = [_mark(text, self.section[0] + self.call[0]) for text in (self.call[0], self.section[0])]
        marks = [re.escape(mark) for mark in marks if mark]
        begin = opens + begins if is_list or not self.section[0].strip() else rf"(?:{opens}\s*+)?{begins}"
        following = rf"\s*+(?:{between}\s*+)?{begins}" if has_end or not is_list else rf"\s*+{between}\s*+"
        close = rf"{closes}|(?={begin})" if self.call[1].strip() else rf"{ends}|{between}{begin}"
        value = self.body.after_value.replace(ANY_KEY, ANY_NAME) if isinstance(self.body, TagBody) else ""
        end = self.call[1].strip() or self.section[1].strip()
        last = _parts(end)[-1]
        last = pattern(end if last in self.section[0] + self.call[0] else last) or "(?!)"
        opener = [*marks, begin][0]
        expressions = {
            "begin": rf"(?:{with_id(begin)})|(?P<mark>{'|'.join(marks) or '(?!)'})",
            "next": with_id(following) if has_end or not is_list or self.between.strip() else "(?!)",
            "end of a call": rf"\s*+(?:{with_id(closes)})?",
            "end": rf"\s*+{ends}" if has_end else "(?!)",
            # See `Ends`: what the body needs to know.
            "close": rf"\s*+(?:{close})",
            "values": rf"(?P<begin>{opener})|(?P<end>{pattern(value, beside='left')}\s*+(?:{close}))|{closes}",
            # The pairs around whole calls.
            "calls": rf"(?P<begin>{opener})|{last}",
        }
        return {name: re.compile(expression) for name, expression in expressions.items()}

    def holds(self, text: str, first: bool, tools: Tools) -> int:
        """See `CallReader`."""
        places = [text.find(mark) for mark in self.begins if mark in text]
        return min(places, default=len(text) - partial(text, self.begins))

    def read(self, text: str, tools: Tools, ended: bool = True) -> Calls:
        """See `CallReader`."""
        reading, patterns = _Reading(text, tools), self._patterns
        ends = Ends(patterns["close"], patterns["values"], ended, Effort(text))
        start = patterns["begin"].search(text)
        while start:
            try:
                if start.groupdict().get("mark"):
                    raise UnreadableCall("it begins like a call and goes on in another way")
                call, end = self.body.read(text, start.end(), tools, ends)
            except Exception:  # whatever was sampled
                end = self._end_of_malformed(text, start.end(), ends.effort)
                # In an answer that was cut, all that follows may be within this call.
                rest = max(start.end(), reading.at + 1) if ended else len(text)
                reading.malformed(end or rest, cut=not end)
                start = patterns["begin"].search(text, reading.at)
            else:
                closed = patterns["end of a call"].match(text, end)
                ids = [call.id, *(m.groupdict().get("id") for m in (start, closed) if m)]
                call = replace(call, id=next(filter(None, ids), ""))
                reading.call(call, start.start(), closed.end() if closed else end)
                start = self._following(text, reading)
        return reading.done()

    def _following(self, text: str, reading: _Reading) -> re.Match[str] | None:
        """Where another call begins. In a list, whatever is not its end begins one."""
        at = _end(self._patterns["end"], text, reading.at)
        is_over = at > reading.at or skip(text, at) == len(text)
        reading.at = at
        following = None if is_over else self._patterns["next"].match(text, at)
        return following or self._patterns["begin"].search(text, at)

    def _end_of_malformed(self, text: str, at: int, effort: Effort) -> int:
        """Where a call that cannot be read ends, past those that begin within it; 0 if nowhere."""
        depth = 1
        with suppress(UnreadableCall):
            for mark in effort.matches(self._patterns["calls"], text, at):
                depth += 1 if mark["begin"] is not None else -1
                if not depth:
                    return mark.end()
        return 0

    def write(self, calls: Sequence[ReadCall]) -> str:
        """See `CallReader`."""
        texts = []
        for number, call in enumerate(calls):
            said = self.call[0] + self.body.write(call) + self.call[1]
            said = said.replace(ID, call.id or f"call{number:05}").replace(ANY_NAME, call.name)
            texts.append(said.replace(NUMBER, str(number)))
        return self.section[0] + self.between.join(texts) + self.section[1]


@dataclass(frozen=True)
class BareCalls:
    """Calls without a marker: JSON objects, and Python calls in a list, at the beginning of an answer or after another call.
    ``marks`` are tokens that may stand around them."""

    body: JsonBody | PythonBody
    """How the chat template writes them; the model may write either."""
    marks: tuple[str, ...]
    several: tuple[str, str, str] = ("", "; ", "")
    """What the chat template writes before, between and after calls."""
    kind: str = "JSON or Python calls without a marker"

    @property
    def begins(self) -> tuple[str, ...]:
        """Texts with which a call may begin."""
        return ("{", "[", _FUNCTOOLS, *_HERMES, *self.marks)

    @cached_property
    def _json(self) -> JsonBody:
        return self.body if isinstance(self.body, JsonBody) else JsonBody(("name", "arguments"))

    @cached_property
    def _patterns(self) -> dict[str, re.Pattern[str]]:
        marks = (*_HERMES, *self.marks)
        last = [re.escape(mark) for mark in marks if "/" in mark or "end" in mark]
        mark = "|".join([rf"{_FUNCTOOLS}(?=\s*+\[)", *(m for m in map(re.escape, marks) if m not in last)])
        lead, value = rf"(?:(?P<mark>{mark})|\[)\s*+", rf"(?P<value>\{{|{_PYTHON}\()"
        expressions = {
            "begin": rf"(?:{lead})++{value}?+|(?P<object>\{{)",
            "next": rf"[\s,;]*+(?:{lead})*+{value}",
            "end": rf"(?:\s*+(?:{'|'.join([*last, ']'])}))*+",
        }
        return {name: re.compile(expression) for name, expression in expressions.items()}

    def holds(self, text: str, first: bool, tools: Tools) -> int:
        """See `CallReader`."""
        if first and re.match(rf"\s*+(?:{_PYTHON})?+(?:\(|\Z)", text):
            return 0
        places = [text.find(mark) for mark in self.begins if mark in text]
        return min(places, default=len(text) - partial(text, self.begins))

    def read(self, text: str, tools: Tools, ended: bool = True) -> Calls:
        """See `CallReader`."""
        reading, patterns = _Reading(text, tools), self._patterns
        ends = Ends(ANYWHERE.close, ANYWHERE.marks, ended, Effort(text))
        start = patterns["next"].match(text) or patterns["begin"].search(text)
        while start:
            parts = start.groupdict()
            value = parts["value"] or parts.get("object") or ""
            call, end, begins = self._call(text, start.end() - len(value), tools, ends)
            if call:
                end = _end(patterns["end"], text, end)
                reading.call(call, start.start(), end)
            elif begins or parts["mark"]:
                reading.malformed(max(end, start.end()), cut=not ended)
            following = patterns["next"].match(text, end) if call else None
            start = following or patterns["begin"].search(text, max(end, start.end()))
        return reading.done()

    def _call(self, text: str, at: int, tools: Tools, ends: Ends) -> tuple[ReadCall | None, int, bool]:
        """The call at a position, where what stands there ends, and if none can be read, whether one begins."""
        end = at
        try:
            if not text.startswith("{", at):
                return *PythonBody().read(text, at, tools, ends), True
            value, end = read_json(text, at, ends.effort)
            return self._json.call(value, tools), end, True
        except Exception as error:  # whatever was sampled
            begins = self._begins(text[at : at + _HEAD], tools, ends.ended)
            if end == at:
                end = getattr(error, "at", len(text) if begins else at)
            return None, end, begins

    def _begins(self, text: str, tools: Tools, ended: bool) -> bool:
        """Whether a text begins like a call: with the name of an offered tool, with the whole or a part of it if the answer was
        cut, or with any name and arguments."""
        said = "".join(text.split())
        key, arguments = self._json.keys or ("name", "arguments")
        heads = [f'{{"{k}":"{name}"' for k in (key, "name") for name in tools.schemas]
        heads += [head for name in tools.schemas for head in (f"{name}(", f'{{"{name}":{{"')]
        named = re.match(rf'\{{"(?:{key}|name)":"[^"]*","(?:{arguments}|arguments|parameters)":', said)
        return named is not None or any(
            said.startswith(head) or (not ended and len(said) > 1 and head.startswith(said)) for head in heads
        )

    def write(self, calls: Sequence[ReadCall]) -> str:
        """See `CallReader`."""
        first, between, last = self.several
        return first + between.join(map(self.body.write, calls)) + last


def _parts(literal: str) -> list[str]:
    """The tags of a literal, each with the text that follows it."""
    return re.split(r"(?=<[^<>]*>|\[/?[A-Z_ ]+\])", literal)


def _with_less(literal: str, *, last: bool = False) -> str:
    """A pattern of a literal of several tags, of which some may be missing: the first ones, or with ``last`` the last ones,
    the outer ones first."""
    joined = ""
    parts = [pattern(part) for part in _parts(literal) if part.strip()]
    for part in reversed(parts) if last else parts:
        outer = rf"(?:\s*+{joined})?" if last else rf"(?:{joined}\s*+)?"
        joined = (part + outer if last else outer + part) if joined else part
    return joined


def _mark(literal: str, within: str) -> str:
    """The text with which only calls begin: a literal's first tag, or its last one if words come first. Where ``within`` has the tag
    more than once, the word after it belongs to the text. "" if the literal has no tag."""
    parts = [part.lstrip() for part in _parts(literal) if part.strip()] or [""]
    tag = next((match for part in (parts[0], parts[-1]) if (match := _TAG.match(part))), None)
    if not tag or within.count(tag[0]) == 1:
        return tag[0] if tag else ""
    return re.split(rf"[\s{ID}{NUMBER}{ANY_NAME}]", tag.string)[0]


def _end(of: re.Pattern[str], text: str, at: int) -> int:
    """Where the match of a pattern ends; the position itself if there is none."""
    match = of.match(text, at)
    return match.end() if match else at
