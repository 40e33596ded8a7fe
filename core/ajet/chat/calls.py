"""How a model writes tool calls: reading them from an answer's text, and writing them.

Calls stand between the literal texts of a format. A format is derived from examples (`ajet.chat.derive`), never named here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from ajet.chat.bodies import (
    ANY_NAME,
    ID,
    NAME,
    NUMBER,
    Body,
    JsonBody,
    PythonBody,
    ReadCall,
    Tools,
    Unreadable,
    pattern,
    read_json,
    skip,
)
from ajet.chat.texts import partial

_TRIES = 64
"""Places at which a call without a marker is looked for."""


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

    def holds(self, text: str, first: bool, tools: Tools) -> int:
        """From where on a text that goes on may be a call; its length if nowhere. ``first``: the answer begins with it."""
        ...

    def read(self, text: str, tools: Tools) -> Calls:
        """The calls of a whole answer. What cannot be read, and calls of tools that are not offered, stay text."""
        ...

    def write(self, calls: Sequence[ReadCall]) -> str:
        """Calls as the model writes them."""
        ...


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
        return tuple(
            dict.fromkeys(re.split(f"[{ID}{NUMBER}{ANY_NAME}]", word[0])[0] for word in words if word)
        )

    @cached_property
    def _patterns(self) -> dict[str, re.Pattern[str]]:
        ends, begins, closes = map(pattern, (self.section[1], *self.call))
        opens = _with_less(self.section[0])
        between, both = pattern(self.between), all(text.strip() for text in (self.section[0], self.call[0]))
        again = rf"(?:\s*+{ends}\s*+{opens})?" if both else ""
        following = rf"{again}\s*+(?:{between})?\s*+{begins}" if between.strip() else rf"{again}\s*+{begins}"
        more = following if self.call[0].strip() else rf"\s*+{between}"
        found = {
            "begin": rf"(?:{opens}\s*+)?{begins}" if both else opens + begins,
            "next": following,
            "close": rf"\s*+{closes}",
            "end": rf"\s*+{ends}" if self.section[1].strip() else "",
            "over": rf"\s*+{closes}(?:\s*+(?:{ends})?\s*+\Z|{more})",
        }
        return {name: re.compile(expression) for name, expression in found.items()}

    def holds(self, text: str, first: bool, tools: Tools) -> int:
        """See `CallReader`."""
        places = [text.find(mark) for mark in self.begins if mark in text]
        return min(places, default=len(text) - partial(text, self.begins))

    def read(self, text: str, tools: Tools) -> Calls:
        """See `CallReader`."""
        kept: list[str] = []
        calls: list[ReadCall] = []
        malformed = unoffered = 0
        begin, at, unread = -1, 0, -1
        while found := self._patterns["begin"].search(text, at):
            try:
                group, end = self._group(text, found, tools)
            except (Unreadable, RecursionError):
                malformed += 1
                unread = end = max(found.end(), at + 1)
                kept.append(text[at:end])
                at = end
                continue
            kept.append(text[at : found.start()])
            for call, start, stop in group:
                if call.name in tools.schemas:
                    begin = found.start() if begin < 0 else begin
                    calls.append(call)
                else:
                    unoffered += 1
                    kept.append(text[start:stop])
            at = end
        kept.append(text[at:])
        mark = (self.call[1].split() or self.section[1].split() or [""])[0]
        cut = unread >= 0 and not (mark and mark in text[unread:])
        rest = "".join(kept).rstrip() if calls else text
        return Calls(rest, tuple(calls), malformed, unoffered, begin, cut)

    def _group(
        self, text: str, found: re.Match[str], tools: Tools
    ) -> tuple[list[tuple[ReadCall, int, int]], int]:
        """The calls that follow one another, where each begins and ends, and where the last one's format ends. A call that
        cannot be read ends them; raises Unreadable if it is the first."""
        group: list[tuple[ReadCall, int, int]] = []
        start: re.Match[str] | None = found
        at = found.end()
        while start:
            try:
                call, end = self.body.read(text, start.end(), tools, self._patterns["over"])
            except Unreadable:
                if not group:
                    raise
                break
            at = _end(self._patterns["close"], text, end)
            group.append((call, start.start(), at))
            start = self._patterns["next"].match(text, at)
        return group, _end(self._patterns["end"], text, at)

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
    """Calls without a marker: JSON objects, or Python calls. They count only at the end of an answer, and only if all of them
    name offered tools. ``marks`` are tokens that may stand before them."""

    body: JsonBody | PythonBody
    """How the chat template writes them; the model may write either."""
    marks: tuple[str, ...]
    several: tuple[str, str, str] = ("", "; ", "")
    """What the chat template writes before, between and after calls."""
    kind: str = "JSON or Python calls without a marker"

    @property
    def begins(self) -> tuple[str, ...]:
        """Texts with which a call may begin."""
        return ("{", "[", *self.marks)

    @cached_property
    def _mark(self) -> str:
        return "|".join(map(re.escape, self.marks)) or "(?!)"

    def holds(self, text: str, first: bool, tools: Tools) -> int:
        """See `CallReader`."""
        begun, named = text.lstrip(), [f"{name}(" for name in tools.schemas]
        if first and any(name.startswith(begun) or begun.startswith(name) for name in named):
            return 0
        places = [text.find(mark) for mark in self.begins if mark in text]
        return min(places, default=len(text) - partial(text, self.begins))

    def read(self, text: str, tools: Tools) -> Calls:
        """See `CallReader`."""
        marked = list(re.finditer(self._mark, text))
        places = [m.start() for m in re.finditer(r"[\[{]", text)][:_TRIES]
        if re.match(rf"\s*+(?:{self._mark})?\s*+{NAME}\(", text):
            places.insert(0, 0)
        reads: tuple[Callable[[str, Tools], list[ReadCall]], ...] = (self._json, self._python)
        for place in places:
            for read in reads:
                try:
                    calls = read(text[place:], tools)
                except (Unreadable, RecursionError):
                    continue
                if all(call.name in tools.schemas for call in calls):
                    begin = next((m.start() for m in marked if not text[m.end() : place].strip()), place)
                    before = re.sub(self._mark, "", text[:begin])
                    before = (
                        re.sub(r"\w+\Z", "", before) if text[begin] == "[" else before
                    )  # such as functools[…]
                    return Calls(before.rstrip(), tuple(calls), begin=begin)
        names = "|".join(map(re.escape, tools.schemas))
        begun = re.search(
            rf'\{{\s*+"\w+"\s*+:\s*+"(?:{names})"|\[\s*+(?:{names})\(|\A\s*+(?:{names})\(', text
        )
        unread = len(marked) or int(begun is not None)
        return Calls(text, malformed=unread, cut=unread > 0)

    def _json(self, text: str, tools: Tools) -> list[ReadCall]:
        """All JSON calls from the beginning of a text to its end. Raises Unreadable if there is anything else."""
        body = self.body if isinstance(self.body, JsonBody) else JsonBody(("name", "arguments"))
        between = re.compile(rf"(?:[\s;,]|{self._mark})*")
        calls: list[ReadCall] = []
        at = 0
        while at < len(text):
            value, at = read_json(text, at)
            calls += map(body.call, value if isinstance(value, list) else [value])
            at = _end(between, text, at)
        return calls

    def _python(self, text: str, tools: Tools) -> list[ReadCall]:
        """The same for Python calls."""
        at = _end(re.compile(rf"\s*+(?:{self._mark})?\s*+"), text, 0)
        listed = text.startswith("[", at)
        calls: list[ReadCall] = []
        at += listed
        while not calls or text[at - 1] in ",;":
            call, at = PythonBody().read(text, at, tools, re.compile(""))
            calls.append(call)
            at = _end(re.compile(r"\s*+[,;]?"), text, at)
        at = skip(text, at)
        if listed and not text.startswith("]", at):
            raise Unreadable("no end of a list")
        if re.sub(self._mark, "", text[at + listed :]).strip():
            raise Unreadable("text after the calls")
        return calls

    def write(self, calls: Sequence[ReadCall]) -> str:
        """See `CallReader`."""
        first, between, last = self.several
        return first + between.join(map(self.body.write, calls)) + last


def _parts(literal: str) -> list[str]:
    """The tags of a literal, each with the text that follows it."""
    return re.split(r"(?=<[^<>]*>|\[/?[A-Z_ ]+\])", literal)


def _with_less(literal: str) -> str:
    """A pattern of a literal of several tags: those before the last one may be missing, the first ones first."""
    found = ""
    for part in _parts(literal):
        found = rf"(?:{found}\s*+)?{pattern(part)}" if found else pattern(part)
    return found


def _end(of: re.Pattern[str], text: str, at: int) -> int:
    """Where the match of a pattern ends; the position itself if there is none."""
    found = of.match(text, at)
    return found.end() if found else at
