"""How a model writes tool calls: reading them from an answer's text, and writing them.

Between the literal texts of a format stand the calls; inside a call, name and arguments are JSON, a name before JSON, tags,
an object with quotes of its own, or Python. A format is derived from examples (`ajet.chat.derive`), never named here.
White space beside a value belongs to the value; elsewhere it may differ from the format's.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from ajet.chat.texts import partial

Message = Mapping[str, Any]

NAME = r"[^\s\"'<>(){}\[\]|,]+"
ID, ANY_KEY, NUMBER, ANY_NAME = "\ue0f1", "\ue0f2", "\ue0f3", "\ue0f4"
"""In the literals of a format: the call's id, the argument's name once more, a number that counts calls, the tool's name once
more."""
_ID = r"[\w.:/-]+"
_TRIES = 64
"""Places at which a call without a marker is looked for."""
_JSON = json.JSONDecoder()
_SPACE = re.compile(r"\s*+")
_WORDS = {"true": True, "false": False, "null": None, "none": None}


class Unreadable(ValueError):
    """The text is no call of this format."""


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call as it was read."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    """The id that the model wrote; empty if the format has none."""


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


class Tools:
    """The tools that a request offers."""

    def __init__(self, tools: Sequence[Message]) -> None:
        self.offered = list(tools)
        functions = [tool.get("function") or {} for tool in tools]
        self.schemas = {f["name"]: _properties(f.get("parameters")) for f in functions if "name" in f}

    def value(self, name: str, key: str, raw: str) -> Any:
        """An argument whose type its format does not tell: text where the tool's schema wants text, else JSON or a
        Python literal."""
        schema = self.schemas.get(name, {}).get(key)
        types = _types(schema)
        nothing = raw.strip() in ("null", "None") and "null" in types
        if "string" in types and not nothing:
            return raw
        try:
            return parsed(raw)
        except Unreadable:
            return raw


class Body(Protocol):
    """One call without the literals around it."""

    def read(self, text: str, at: int, tools: Tools, over: re.Pattern[str]) -> tuple[ReadCall, int]:
        """The call that begins at a position, and where it ends. ``over`` matches what follows a call. Raises
        Unreadable."""
        ...

    def write(self, call: ReadCall) -> str:
        """The call as the model writes it."""
        ...


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
        """The calls of a whole answer."""
        ...

    def write(self, calls: Sequence[ReadCall]) -> str: ...


@dataclass(frozen=True)
class CallFormat:
    """Calls between literals: ``section[0] call[0] BODY call[1] between … section[1]``."""

    kind: str
    body: Body
    section: tuple[str, str]
    """What stands before the first call, and after the last one."""
    call: tuple[str, str]
    """What stands before and after each call."""
    between: str = "\n"

    @property
    def begins(self) -> tuple[str, ...]:
        """Texts with which a call may begin."""
        words = [(literal.split() or [""])[0] for literal in (self.section[0] + self.call[0], self.call[0])]
        return tuple(dict.fromkeys(re.split(f"[{ID}{NUMBER}{ANY_NAME}]", word)[0] for word in words if word))

    @cached_property
    def _begin(self) -> re.Pattern[str]:
        section, call = pattern(self.section[0]), _with_id(pattern(self.call[0]))
        optional = rf"(?:{section}\s*+)?" if self.section[0].strip() and self.call[0].strip() else section
        return re.compile(optional + call)

    @cached_property
    def _next(self) -> re.Pattern[str]:
        """Another call directly after one."""
        between = rf"\s*+(?:{pattern(self.between)})?\s*+" if self.between.strip() else r"\s*+"
        again = (
            rf"(?:{pattern(self.section[1])}\s*+{pattern(self.section[0])})?"
            if self.section[0].strip() and self.call[0].strip()
            else ""
        )
        return re.compile(rf"{again}{between}{_with_id(pattern(self.call[0]))}")

    @cached_property
    def _closes(self) -> re.Pattern[str]:
        return re.compile(rf"\s*+{pattern(self.call[1])}")

    @cached_property
    def _ends(self) -> re.Pattern[str]:
        return re.compile(rf"\s*+{pattern(self.section[1])}")

    @cached_property
    def _over(self) -> re.Pattern[str]:
        end = pattern(self.section[1])
        more = self._next.pattern if self.call[0].strip() else rf"\s*+{pattern(self.between)}"
        return re.compile(rf"\s*+{pattern(self.call[1])}(?:\s*+(?:{end})?\s*+\Z|{more})")

    def holds(self, text: str, first: bool, tools: Tools) -> int:
        """See `CallReader`."""
        places = [text.find(mark) for mark in self.begins if mark in text]
        return min(places, default=len(text) - partial(text, self.begins))

    def read(self, text: str, tools: Tools) -> Calls:
        """See `CallReader`. What cannot be read, and calls of tools that are not offered, stay text."""
        kept: list[str] = []
        calls: list[ReadCall] = []
        malformed = unoffered = 0
        begin, at, unread = -1, 0, -1
        while found := self._begin.search(text, at):
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
        return Calls(
            "".join(kept).rstrip() if calls else text, tuple(calls), malformed, unoffered, begin, cut
        )

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
                call, end = self.body.read(text, start.end(), tools, self._over)
            except Unreadable:
                if not group:
                    raise
                break
            closed = self._closes.match(text, end)
            at = closed.end() if closed else end
            call = replace(call, id=start.groupdict().get("id") or call.id)
            group.append((call, start.start(), at))
            start = self._next.match(text, at)
        ended = self._ends.match(text, at) if self.section[1].strip() else None
        return group, ended.end() if ended else at

    def write(self, calls: Sequence[ReadCall]) -> str:
        """See `CallReader`."""
        first, last = self.section
        before, after = self.call
        texts = []
        for number, call in enumerate(calls):
            said = before + self.body.write(call) + after
            said = said.replace(ID, call.id or f"call{number:05}").replace(ANY_NAME, call.name)
            texts.append(said.replace(NUMBER, str(number)))
        return first + self.between.join(texts) + last


@dataclass(frozen=True)
class BareCalls:
    """Calls without a marker: JSON objects, or Python calls in brackets. They count only at the end of an answer, and
    only if all of them name offered tools. ``marks`` are tokens that may stand before them."""

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
        marks = self.begins
        begun = text.lstrip()
        if first and any(
            f"{name}(".startswith(begun) or begun.startswith(f"{name}(") for name in tools.schemas
        ):
            return 0
        return min((text.find(m) for m in marks if m in text), default=len(text) - partial(text, marks))

    def read(self, text: str, tools: Tools) -> Calls:
        """See `CallReader`."""
        marked = list(re.finditer(self._mark, text))
        places = [m.start() for m in re.finditer(r"[\[{]", text)][:_TRIES]
        named = re.compile(rf"\s*+(?:{self._mark})?\s*+{NAME}\(").match(text)
        for place in [0] * bool(named) + places:
            for read in (self._json, self._python):
                calls = read(text[place:], tools)
                if calls and all(call.name in tools.schemas for call in calls):
                    begin = next((m.start() for m in marked if not text[m.end() : place].strip()), place)
                    return Calls(text[:begin].rstrip(), tuple(calls), begin=begin)
        return Calls(text, malformed=len(marked), cut=bool(marked))

    def _json(self, text: str, tools: Tools) -> list[ReadCall]:
        """All JSON calls from the beginning of a text to its end; empty if there is anything else."""
        body = self.body if isinstance(self.body, JsonBody) else JsonBody(("name", "arguments"))
        between = re.compile(rf"(?:[\s;,]|{self._mark})*")
        calls: list[ReadCall] = []
        at = 0
        try:
            while at < len(text):
                value, at = _JSON.raw_decode(text, at)
                calls += [body.call(v) for v in (value if isinstance(value, list) else [value])]
                at = _end(between, text, at)
        except (ValueError, RecursionError):
            return []
        return calls

    def _python(self, text: str, tools: Tools) -> list[ReadCall]:
        """The same for Python calls."""
        at = _end(re.compile(rf"\s*+(?:{self._mark})?\s*+"), text, 0)
        listed = text.startswith("[", at)
        calls: list[ReadCall] = []
        try:
            while not calls or text[at - 1] in ",;":
                call, at = PythonBody().read(text, at + (listed and not calls), tools, re.compile(""))
                calls.append(call)
                at = _end(re.compile(r"\s*+[,;]?"), text, at)
        except (ValueError, RecursionError):
            return []
        rest = text[at:].removeprefix("]") if listed else text[at:]
        return [] if re.sub(self._mark, "", rest).strip() or (listed and rest == text[at:]) else calls

    def write(self, calls: Sequence[ReadCall]) -> str:
        """See `CallReader`."""
        first, between, last = self.several
        return first + between.join(map(self.body.write, calls)) + last


# --------------------------------------------------------------------------- what stands between the literals


@dataclass(frozen=True)
class JsonBody:
    """An object with the name and the arguments: under two keys, or ``{name: arguments}`` if there are no keys."""

    keys: tuple[str, str] | None
    as_text: bool = False
    """Whether the arguments are JSON within a string."""

    def read(self, text: str, at: int, tools: Tools, over: re.Pattern[str]) -> tuple[ReadCall, int]:
        """See `Body`."""
        try:
            value, end = _JSON.raw_decode(text, _skip(text, at))
        except ValueError as error:
            raise Unreadable(str(error)) from None
        return self.call(value), end

    def call(self, value: Any) -> ReadCall:
        """The call that a JSON value is. Raises Unreadable."""
        if not isinstance(value, dict):
            raise Unreadable("no object")
        if self.keys is None:
            if len(value) != 1:
                raise Unreadable("more than one name")
            ((name, arguments),) = value.items()
            return ReadCall(name, _object(arguments))
        inner = value.get("function")
        value = inner if isinstance(inner, dict) and self.keys[0] not in value else value
        name = value.get(self.keys[0], value.get("name"))
        keys = [key for key in (self.keys[1], "arguments", "parameters") if key in value]
        if not isinstance(name, str) or not name or not keys:
            raise Unreadable("no name or no arguments")
        return ReadCall(name, _object(value[keys[0]]))

    def write(self, call: ReadCall) -> str:
        """See `Body`."""
        arguments: Any = dict(call.arguments)
        arguments = json.dumps(arguments, ensure_ascii=False) if self.as_text else arguments
        pairs = {call.name: arguments}
        if self.keys:
            pairs = {self.keys[0]: call.name, self.keys[1]: arguments}
        return json.dumps(pairs, ensure_ascii=False)


@dataclass(frozen=True)
class NamedBody:
    """The name, a literal, and the arguments as JSON. ``in_id``: the name is within the call's id, ``functions.NAME:0``."""

    between: str
    in_id: bool = False

    @cached_property
    def _name(self) -> re.Pattern[str]:
        name = rf"(?P<name>{NAME})"
        name = rf"(?P<id>functions\.{name}:\d+)" if self.in_id else name
        return re.compile(
            rf"\s*+{name}\s*+{_with_id(pattern(self.between)) if not self.in_id else pattern(self.between)}\s*+(?=\{{|\"|null|\Z)"
        )

    def read(self, text: str, at: int, tools: Tools, over: re.Pattern[str]) -> tuple[ReadCall, int]:
        """See `Body`."""
        found = self._name.match(text, at)
        if not found:
            raise Unreadable("no name")
        try:
            value, end = _JSON.raw_decode(text, found.end())
        except ValueError as error:
            raise Unreadable(str(error)) from None
        return ReadCall(found["name"], _object(value), found.groupdict().get("id") or ""), end

    def write(self, call: ReadCall) -> str:
        """See `Body`."""
        name = call.id or f"functions.{call.name}:{NUMBER}" if self.in_id else call.name
        return name + self.between + json.dumps(dict(call.arguments), ensure_ascii=False)


@dataclass(frozen=True)
class TagBody:
    """The name, and each argument between literals of its own. ``values`` are what stands before a value: one text, or in
    formats that tell types one for strings and others for the rest."""

    after_name: str
    before_key: str
    string: str
    others: tuple[str, ...]
    after_value: str
    without: str
    """What follows the name if there are no arguments."""

    @property
    def typed(self) -> bool:
        """Whether the format tells texts from other values."""
        return self.string not in self.others

    @cached_property
    def _name(self) -> re.Pattern[str]:
        ends = "|".join(
            dict.fromkeys(map(pattern, (self.after_name + self.before_key, self.after_name, self.without)))
        )
        return re.compile(rf"\s*+(?P<name>{NAME})(?={ends}|\s*+\Z)")

    @cached_property
    def _start(self) -> re.Pattern[str]:
        return re.compile(rf"(?:{pattern(self.after_name)})?\s*+{pattern(self.before_key)}(?=[^\s/])")

    @cached_property
    def _key(self) -> re.Pattern[str]:
        string = pattern(self.string, beside="right")
        others = "|".join(pattern(text, beside="right") for text in self.others if text != self.string)
        values = f"(?P<string>{string})" + (f"|{others}" if others else "")
        return re.compile(rf"\s*+{pattern(self.before_key)}(?P<key>(?!/){NAME})(?:{values})")

    @cached_property
    def _done(self) -> re.Pattern[str]:
        return re.compile(
            "|".join(dict.fromkeys(rf"\s*+{pattern(text)}" for text in (self.after_name, self.without)))
        )

    def read(self, text: str, at: int, tools: Tools, over: re.Pattern[str]) -> tuple[ReadCall, int]:
        """See `Body`. A value may contain what usually ends it: it ends where another argument or the call's end follows."""
        found = self._name.match(text, at)
        if not found:
            raise Unreadable("no name")
        start = self._start.match(text, found.end())
        if not start:
            done = self._done.match(text, found.end())
            end = done.end() if done else found.end()
            if not over.match(text, end) and not over.match(text, found.end()):
                raise Unreadable("no end")
            return ReadCall(found["name"], {}), end if over.match(text, end) else found.end()
        begin = re.compile(pattern(self.after_name)).match(text, found.end())
        first = begin.end() if begin else found.end()
        for strict in (True, False):
            read = self._arguments(text, first, found["name"], tools, over if strict else None)
            if read:
                return ReadCall(found["name"], read[0]), read[1]
        raise Unreadable("no end of an argument")

    def _arguments(
        self, text: str, at: int, name: str, tools: Tools, over: re.Pattern[str] | None
    ) -> tuple[dict[str, Any], int] | None:
        """The arguments from a position on. With ``over``, the last value ends only where that matches."""
        known = tools.schemas.get(name)
        read: dict[str, Any] = {}
        while True:
            key = self._key.match(text, at)
            if not key:
                return None
            ends = re.compile(pattern(self.after_value.replace(ANY_KEY, key["key"]), beside="left"))
            for end in ends.finditer(text, key.end()):
                following = self._key.match(text, end.end())
                more = following is not None and (not known or following["key"] in known)
                if more or (over.match(text, end.end()) if over else not following):
                    break
            else:
                return None
            raw = text[key.end() : end.start()]
            read[key["key"]] = self._value(raw, key, name, tools)
            if not more:
                return read, end.end()
            at = end.end()

    def _value(self, raw: str, key: re.Match[str], name: str, tools: Tools) -> Any:
        if raw.startswith("<![CDATA[") and raw.endswith("]]>"):
            return raw[9:-3]
        if not self.typed:
            return tools.value(name, key["key"], raw)
        if key["string"] is not None:
            return raw
        try:
            return parsed(raw)
        except Unreadable:
            return raw

    def write(self, call: ReadCall) -> str:
        """See `Body`."""
        if not call.arguments:
            return call.name + self.without
        texts = []
        for key, value in call.arguments.items():
            before = self.string
            if not isinstance(value, str):
                before = self.others[_kind_of(value, len(self.others))] if self.others else before
            said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            texts.append(self.before_key + key + before + said + self.after_value.replace(ANY_KEY, key))
        return call.name + self.after_name + "".join(texts)


@dataclass(frozen=True)
class ObjectBody:
    """The name and an object whose strings have quotes of their own, and whose keys have none."""

    open: str
    quote: str
    colon: str
    comma: str
    close: str

    def read(self, text: str, at: int, tools: Tools, over: re.Pattern[str]) -> tuple[ReadCall, int]:
        """See `Body`."""
        found = re.compile(rf"\s*+(?P<name>{NAME}){pattern(self.open)}").match(text, at)
        if not found:
            raise Unreadable("no name")
        try:
            value, end = self._items(text, found.end(), self.close)
        except (IndexError, ValueError, AttributeError) as error:
            raise Unreadable(str(error)) from None
        return ReadCall(found["name"], value), end

    def _items(self, text: str, at: int, close: str) -> tuple[Any, int]:
        pairs: dict[str, Any] = {}
        items: list[Any] = []
        at = _skip(text, at)
        while not text.startswith(close, at):
            if close == "]":
                value, at = self._value(text, at)
                items.append(value)
            else:
                if text.startswith(self.quote, at):
                    key, at = self._string(text, at)
                else:
                    end = text.index(self.colon, at)
                    key, at = text[at:end].strip(), end
                pairs[key], at = self._value(text, _skip(text, at) + len(self.colon))
            at = _skip(text, at)
            if text.startswith(self.comma, at):
                at = _skip(text, at + len(self.comma))
            elif not text.startswith(close, at):
                raise Unreadable("no end of an object")
        return items if close == "]" else pairs, at + len(close)

    def _string(self, text: str, at: int) -> tuple[str, int]:
        at += len(self.quote)
        end = re.compile(rf"{re.escape(self.quote)}(?=\s*+(?:[,:}}\]]|{re.escape(self.close)}))").search(
            text, at
        )
        if not end:
            raise Unreadable("no end of a string")
        return text[at : end.start()], end.end()

    def _value(self, text: str, at: int) -> tuple[Any, int]:
        at = _skip(text, at)
        if text.startswith(self.quote, at):
            return self._string(text, at)
        if text[at] in "{[":
            return self._items(text, at + 1, {"{": "}", "[": "]"}[text[at]])
        word = re.compile(r"None|True|False").match(text, at)
        return (ast.literal_eval(word[0]), word.end()) if word else _JSON.raw_decode(text, at)

    def write(self, call: ReadCall) -> str:
        """See `Body`."""
        pairs = (f"{key}{self.colon}{self._said(value)}" for key, value in call.arguments.items())
        return call.name + self.open + self.comma.join(pairs) + self.close

    def _said(self, value: Any) -> str:
        if isinstance(value, str):
            return self.quote + value + self.quote
        if isinstance(value, dict):
            return "{" + self.comma.join(f"{k}{self.colon}{self._said(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list):
            return "[" + self.comma.join(map(self._said, value)) + "]"
        return json.dumps(value)


@dataclass(frozen=True)
class PythonBody:
    """A call with keyword arguments, as in Python; the words of JSON count, too."""

    def read(self, text: str, at: int, tools: Tools, over: re.Pattern[str]) -> tuple[ReadCall, int]:
        """See `Body`."""
        found = re.compile(rf"\s*+(?P<name>{NAME})\(").match(text, at)
        if not found:
            raise Unreadable("no name")
        for number, end in enumerate(re.finditer(r"\)", text[found.end() :])):
            if number >= _TRIES:
                break
            code = f"f({text[found.end() : found.end() + end.end()]}"
            try:
                call = ast.parse(code, mode="eval").body
            except (SyntaxError, ValueError, MemoryError):
                continue
            if not isinstance(call, ast.Call) or call.args:
                break
            schema = tools.schemas.get(found["name"], {})
            read = {k.arg: _literal(k.value, code, _types(schema.get(k.arg))) for k in call.keywords if k.arg}
            return ReadCall(found["name"], read), found.end() + end.end()
        raise Unreadable("no Python call")

    def write(self, call: ReadCall) -> str:
        """See `Body`."""
        return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


# --------------------------------------------------------------------------- parts


def pattern(literal: str, beside: str = "") -> str:
    """A literal as a regular expression. White space may differ, and stand between two tags, but directly ``beside`` a
    value, on the ``left`` or ``right`` end of the literal, it is exactly what the format writes, or missing."""
    inner = literal
    before = after = ""
    if beside == "left":
        inner = inner.lstrip()
        before = literal[: len(literal) - len(inner)]
    if beside == "right":
        inner = inner.rstrip()
        after = literal[len(inner) :]
    varies = {ID: _ID, NUMBER: r"\d+", ANY_NAME: rf"{NAME}(?=[\s<>\[(])"}
    parts = []
    for part in re.findall(rf"\s+|[{''.join(varies)}]|[^\s{''.join(varies)}]+", inner):
        tags = re.split(r"(?<=[>\]])(?=[<\[])", part)
        parts.append(r"\s*+" if part.isspace() else varies.get(part) or r"\s*+".join(map(re.escape, tags)))
    optional = [f"(?:{re.escape(space)})?" if space else "" for space in (before, after)]
    return optional[0] + "".join(parts) + optional[1]


def _with_id(written: str) -> str:
    """A pattern whose first id is its group ``id``."""
    return written.replace(_ID, f"(?P<id>{_ID})", 1)


def parsed(raw: str) -> Any:
    """A value that is no text: JSON, or a Python literal. Raises Unreadable."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(raw.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise Unreadable(str(error)) from None


def _object(arguments: Any) -> Mapping[str, Any]:
    """Arguments: an object, its JSON text, or nothing. Raises Unreadable."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise Unreadable(str(error)) from None
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise Unreadable("the arguments are no object")
    return arguments


def _literal(node: ast.expr, code: str, types: frozenset[str]) -> Any:
    if isinstance(node, ast.Name):
        if node.id.lower() in _WORDS and "string" not in types:
            return _WORDS[node.id.lower()]
        if "string" in types:
            return node.id  # some templates write texts without quotes
        raise Unreadable(f"the name {node.id}")
    if isinstance(node, ast.Dict):
        keys = [_literal(key, code, frozenset()) for key in node.keys if key]
        return dict(zip(keys, (_literal(v, code, frozenset()) for v in node.values), strict=False))
    if isinstance(node, ast.List):
        return [_literal(v, code, frozenset()) for v in node.elts]
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise Unreadable(str(error)) from None
    if types == {"string"} and not isinstance(value, str):
        return ast.get_source_segment(code, node) or value
    return value


def _kind_of(value: Any, kinds: int) -> int:
    """Which of a format's texts before values is that of this one; `ajet.chat.derive` finds them in this order."""
    order = (bool, int | float, dict, list)
    found = next((n for n, kind in enumerate(order) if isinstance(value, kind)), len(order))
    return min(found, kinds - 1)


def _properties(parameters: Any) -> Mapping[str, Any]:
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _types(schema: Any) -> frozenset[str]:
    """The JSON types that a schema names, also in a choice."""
    if not isinstance(schema, Mapping):
        return frozenset()
    kind = schema.get("type")
    found = {kind} if isinstance(kind, str) else set(kind) if isinstance(kind, list) else set()
    for choice in _choices(schema):
        found |= _types(choice)
    return frozenset(t for t in found if isinstance(t, str))


def _choices(schema: Mapping[str, Any]) -> Iterator[Any]:
    for key in ("anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        yield from options if isinstance(options, list) else ()
    if "type" not in schema and isinstance(schema.get("enum"), list):
        yield {"type": "string"} if all(isinstance(v, str) for v in schema["enum"]) else {}


def _end(of: re.Pattern[str], text: str, at: int) -> int:
    """Where the match of a pattern that matches everywhere ends."""
    found = of.match(text, at)
    return found.end() if found else at


def _skip(text: str, at: int) -> int:
    return _end(_SPACE, text, at)
