"""One tool call without the literals around it: JSON, a name before JSON, tags, an object with its own quotes, or Python.

White space beside a value belongs to the value; elsewhere it may differ from what the format writes.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NoReturn

NAME = r"[^\s\"'<>(){}\[\]|,]+"
ID, ANY_KEY, NUMBER, ANY_NAME = "\ue0f1", "\ue0f2", "\ue0f3", "\ue0f4"
"""In the literals of a format: the call's id, the argument's name once more, a number that counts calls, the tool's name
once more."""
_VARIES = {ID: r"[\w.:/-]+", NUMBER: r"\d+", ANY_NAME: rf"{NAME}(?=[\s<>\[(])"}
_READINGS = 64
"""How often an answer is read over, all calls together that begin in it and cannot be read."""
_PART = 1024
"""Characters that are tried as a JSON value first: errors of the decoder count all lines before them."""
_SHORT = 16
"""Characters at the end of a part whose rest may be missing."""
_PYTHON = re.compile(
    r'"""(?s:.)*?"""|\'\'\'(?s:.)*?\'\'\'|"(?:[^"\\\n]|\\(?s:.))*+"|\'(?:[^\'\\\n]|\\(?s:.))*+\'|[()\[\]{}]'
)
"""Strings and brackets of Python."""
_SPACE = re.compile(r"\s*+")
_WORDS = {"true": True, "false": False, "null": None, "none": None}


class UnreadableCall(ValueError):
    """The text is not a call in this format."""

    at: int
    """Up to where a JSON value could be read; missing if that does not tell where it ends."""


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call as it was read."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    """The id that the model wrote; empty in formats without ids."""


class Tools:
    """The tools that a request offers."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self.offered = list(tools)
        functions = [tool.get("function") or {} for tool in tools]
        self.schemas = {f["name"]: _properties(f.get("parameters")) for f in functions if "name" in f}
        self.need_nothing = {
            f["name"] for f in functions if "name" in f and not (f.get("parameters") or {}).get("required")
        }
        """The names of those that may be called without arguments."""

    def types(self, name: str, key: str) -> frozenset[str]:
        """The JSON types of an argument; empty if the tool's schema does not tell."""
        return _types(self.schemas.get(name, {}).get(key))


class Effort:
    """How many characters may still be read in vain: each of thousands of calls without an end would be read up to the end of the
    answer."""

    def __init__(self, text: str | None = None) -> None:
        self.left = math.inf if text is None else _READINGS * len(text)

    def spend(self, characters: int) -> None:
        """Raises Unreadable if nothing is left."""
        self.left -= characters
        if self.left < 0:
            raise UnreadableCall("too many calls cannot be read")

    def matches(self, of: re.Pattern[str], text: str, at: int = 0) -> Iterator[re.Match[str]]:
        """Where a pattern matches from a position on. Raises Unreadable."""
        self.spend(0)
        for match in of.finditer(text, at):
            self.spend(match.end() - at)
            at = match.end()
            yield match
        self.spend(len(text) - at)


@dataclass(frozen=True, slots=True)
class Ends:
    """How the end of a call is known whose values may contain anything."""

    close: re.Pattern[str]
    """What follows the last argument."""
    marks: re.Pattern[str]
    """Where another call begins (the group ``begin``), where one with arguments ends (``end``), or another one."""
    ended: bool = True
    """Whether the model has ended the answer. In one that was cut, a call without its end is none."""
    effort: Effort = field(default_factory=Effort)

    def over(self, text: str, at: int) -> bool:
        """Whether a call ends here: no other end comes before the next call."""
        closed = self.close.match(text, at)
        marks = self.effort.matches(self.marks, text, closed.end()) if closed else ()
        ends = next((mark["end"] for mark in marks if mark.lastgroup), None)
        return closed is not None and ends is None

    def whole(self, value: str) -> bool:
        """Whether each call within a value has its end there."""
        depth = 0
        for mark in self.effort.matches(self.marks, value):
            depth += 1 if mark["begin"] is not None else -1
            if depth < 0:
                break
        return depth == 0


ANYWHERE = Ends(re.compile(""), re.compile("(?P<begin>(?!))(?P<end>)"))
"""The first end counts."""


class Body:
    """How one call is written. The name comes first, except in JSON."""

    kind: ClassVar[str]
    """A few words for the user."""

    def read(self, text: str, at: int, tools: Tools, ends: Ends = ANYWHERE) -> tuple[ReadCall, int]:
        """The call that begins at a position, and where it ends. Raises Unreadable, and what deep or odd values raise."""
        raise NotImplementedError

    def write(self, call: ReadCall) -> str:
        """The call as the model writes it."""
        raise NotImplementedError


@dataclass(frozen=True)
class JsonBody(Body):
    """An object with the name and the arguments: under two keys, or ``{name: arguments}`` if there are no keys."""

    keys: tuple[str, str] | None
    as_text: bool = False
    """Whether the arguments are JSON within a string."""
    id: str = ""
    """The key of the call's id; empty if there is none."""
    kind: ClassVar[str] = "JSON"

    def read(self, text: str, at: int, tools: Tools, ends: Ends = ANYWHERE) -> tuple[ReadCall, int]:
        """See `Body`."""
        value, end = read_json(text, skip(text, at), ends.effort)
        return self.call(value, tools), end

    def call(self, value: Any, tools: Tools) -> ReadCall:
        """The call that a JSON value is; the name alone calls a tool that needs no arguments. Raises Unreadable."""
        if not isinstance(value, dict):
            raise UnreadableCall("no object")
        if self.keys is None:
            if len(value) != 1:
                raise UnreadableCall("more than one name")
            ((name, arguments),) = value.items()
            return ReadCall(name, _object(arguments))
        inner = value.get("function")
        value = inner if isinstance(inner, dict) and self.keys[0] not in value else value
        name = value.get(self.keys[0], value.get("name"))
        told = [value[key] for key in (self.keys[1], "arguments", "parameters") if key in value]
        if not isinstance(name, str) or not name:
            raise UnreadableCall("no name")
        if not told and (
            name not in tools.need_nothing or value.keys() - {self.keys[0], "name", "type", self.id}
        ):
            raise UnreadableCall("no arguments")
        return ReadCall(name, _object(told[0] if told else None), str(value.get(self.id) or ""))

    def write(self, call: ReadCall) -> str:
        """See `Body`."""
        arguments = _as_json(call.arguments) if self.as_text else dict(call.arguments)
        if self.keys is None:
            return _as_json({call.name: arguments})
        return _as_json({self.keys[0]: call.name, self.keys[1]: arguments})


@dataclass(frozen=True)
class NamedBody(Body):
    """The name, a literal, and the arguments as JSON. ``in_id``: the name is within the call's id, ``functions.NAME:0``."""

    between: str
    in_id: bool = False
    kind: ClassVar[str] = "name and JSON"

    def read(self, text: str, at: int, tools: Tools, ends: Ends = ANYWHERE) -> tuple[ReadCall, int]:
        """See `Body`."""
        name = rf"(?P<id>functions\.(?P<name>{NAME}):\d+)" if self.in_id else rf"(?P<name>{NAME})"
        between = with_id(pattern(self.between))
        head = _match(rf"\s*+{name}\s*+{between}\s*+(?=\{{|\"|null|\Z)", text, at)
        value, end = read_json(text, head.end(), ends.effort)
        return ReadCall(head["name"], _object(value), head.groupdict().get("id") or ""), end

    def write(self, call: ReadCall) -> str:
        """See `Body`."""
        name = call.id or f"functions.{call.name}:{NUMBER}" if self.in_id else call.name
        return name + self.between + _as_json(call.arguments)


@dataclass(frozen=True)
class TagBody(Body):
    """The name, and each argument between literals of its own. Before a value stands ``string``, or in formats that tell
    types one of ``others``: for truth values, numbers, objects, lists and null, in this order."""

    after_name: str
    before_key: str
    string: str
    others: tuple[str, ...]
    after_value: str
    without: str
    """What follows the name if there are no arguments."""
    separator: str = ""
    """What stands between two arguments only."""
    kind: ClassVar[str] = "tags"

    def read(self, text: str, at: int, tools: Tools, ends: Ends = ANYWHERE) -> tuple[ReadCall, int]:
        """See `Body`."""
        begins = map(pattern, (self.after_name + self.before_key, self.after_name, self.without))
        name = _match(rf"\s*+(?P<name>{NAME})(?={'|'.join(begins)}|\s*+\Z)", text, at)
        begin = _match(f"(?:{pattern(self.after_name)})?", text, name.end()).end()
        for by_end in (True, False) if ends.ended else (True,):
            read = self._arguments(text, begin, name["name"], tools, ends, by_end)
            if read:
                return ReadCall(name["name"], read[0]), read[1]
        for end in (begin, _match(f"(?:{pattern(self.without)})?", text, name.end()).end(), name.end()):
            if ends.over(text, end):
                return ReadCall(name["name"], {}), end
        raise UnreadableCall("no end")

    def _arguments(
        self, text: str, at: int, name: str, tools: Tools, ends: Ends, by_end: bool
    ) -> tuple[dict[str, Any], int] | None:
        """The arguments from a position on; None if one has no end. A value may contain what usually ends it: it ends where
        another argument or, with ``by_end``, the call's end follows, first of all where all calls within it are whole."""
        values = [f"(?P<string>{pattern(self.string, beside='right')})"]
        values += [pattern(text, beside="right") for text in self.others if text != self.string]
        before = rf"(?:{pattern(self.separator)})?\s*+{pattern(self.before_key)}"
        begin = _compiled(rf"\s*+{before}(?P<key>(?!/){NAME})(?:{'|'.join(values)})")
        # Where only a separator begins an argument, words may look like one.
        known = None if self.before_key.strip() else tools.schemas.get(name)
        read: dict[str, Any] = {}
        while key := begin.match(text, at):
            after = re.compile(pattern(self.after_value.replace(ANY_KEY, key["key"]), beside="left"))
            ending: tuple[int, int, bool] | None = None
            for end in ends.effort.matches(after, text, key.end()):
                following = begin.match(text, end.end())
                more = following is not None and (not known or following["key"] in known)
                if more or (ends.over(text, end.end()) if by_end else not following):
                    is_whole = ends.whole(text[key.end() : end.start()])
                    if is_whole or not ending:
                        ending = end.start(), end.end(), more
                    if is_whole:
                        break
            if not ending:
                return None
            stop, at, more = ending
            read[key["key"]] = self._value(text[key.end() : stop], key, tools.types(name, key["key"]))
            if not more:
                return read, at
        return None

    def _value(self, raw: str, key: re.Match[str], types: frozenset[str]) -> Any:
        """A value by its format, where that tells types; else text where the schema wants text, else JSON or Python."""
        if raw.startswith("<![CDATA[") and raw.endswith("]]>"):
            return raw[9:-3]
        is_typed = self.string not in self.others
        is_nothing = raw.strip() in ("null", "None") and "null" in types
        is_text = key["string"] is not None if is_typed else "string" in types and not is_nothing
        return raw if is_text else _literal_of(raw)

    def write(self, call: ReadCall) -> str:
        """See `Body`."""
        if not call.arguments:
            return call.name + self.without
        texts = []
        for key, value in call.arguments.items():
            kinds = (bool, int | float, dict, list, type(None))
            kind = next(n for n, kind in enumerate((*kinds, str)) if isinstance(value, kind))
            before = (
                self.string
                if isinstance(value, str) or not self.others
                else self.others[min(kind, len(self.others) - 1)]
            )
            said = value if isinstance(value, str) else _as_json(value)
            texts.append(self.before_key + key + before + said + self.after_value.replace(ANY_KEY, key))
        return call.name + self.after_name + self.separator.join(texts)


@dataclass(frozen=True)
class ObjectBody(Body):
    """The name and an object whose strings have quotes of their own, and whose keys have none."""

    open: str
    quote: str
    colon: str
    comma: str
    kind: ClassVar[str] = "name and object"

    def read(self, text: str, at: int, tools: Tools, ends: Ends = ANYWHERE) -> tuple[ReadCall, int]:
        """See `Body`."""
        head = _match(rf"\s*+(?P<name>{NAME}){pattern(self.open)}", text, at)
        value, end = self._items(text, head.end(), "}", ends.effort)
        return ReadCall(head["name"], value), end

    def _items(self, text: str, at: int, close: str, effort: Effort) -> tuple[Any, int]:
        pairs: dict[str, Any] = {}
        items: list[Any] = []
        at = skip(text, at)
        while not text.startswith(close, at):
            key = ""
            if close == "}":
                key, at = self._key(text, at, effort)
            value, at = self._value(text, at, effort)
            items.append(value)
            pairs[key] = value
            at = skip(text, at)
            if text.startswith(self.comma, at):
                at = skip(text, at + len(self.comma))
            elif not text.startswith(close, at):
                raise UnreadableCall("no end of an object")
        return pairs if close == "}" else items, at + 1

    def _key(self, text: str, at: int, effort: Effort) -> tuple[str, int]:
        if text.startswith(self.quote, at):
            key, at = self._string(text, at, effort)
        else:
            begin, at = at, self._before(self.colon, text, at, effort)
            key = text[begin:at].strip()
        return key, skip(text, at) + len(self.colon)

    def _string(self, text: str, at: int, effort: Effort) -> tuple[str, int]:
        begin = at + len(self.quote)
        end = self._before(self.quote, text, begin, effort, r"(?=\s*+[,:}\]])")
        return text[begin:end], end + len(self.quote)

    def _before(self, what: str, text: str, at: int, effort: Effort, follows: str = "") -> int:
        match = next(effort.matches(_compiled(re.escape(what) + follows), text, at), None)
        if not match:
            raise UnreadableCall("no end of a key or a string")
        return match.start()

    def _value(self, text: str, at: int, effort: Effort) -> tuple[Any, int]:
        at = skip(text, at)
        if text.startswith(self.quote, at):
            return self._string(text, at, effort)
        if text[at] in "{[":
            return self._items(text, at + 1, {"{": "}", "[": "]"}[text[at]], effort)
        word = re.compile(r"None|True|False").match(text, at)
        return (ast.literal_eval(word[0]), word.end()) if word else read_json(text, at, effort)

    def write(self, call: ReadCall) -> str:
        """See `Body`."""
        return call.name + self.open + self._said(call.arguments)[1:]

    def _said(self, value: Any) -> str:
        if isinstance(value, str):
            return self.quote + value + self.quote
        if isinstance(value, Mapping):
            return "{" + self.comma.join(f"{k}{self.colon}{self._said(v)}" for k, v in value.items()) + "}"
        return (
            "[" + self.comma.join(map(self._said, value)) + "]"
            if isinstance(value, list)
            else _as_json(value)
        )


@dataclass(frozen=True)
class PythonBody(Body):
    """A call with keyword arguments, as in Python; the words of JSON count, too."""

    kind: ClassVar[str] = "Python calls"

    def read(self, text: str, at: int, tools: Tools, ends: Ends = ANYWHERE) -> tuple[ReadCall, int]:
        """See `Body`."""
        head = _match(rf"\s*+(?P<name>{NAME})\(", text, at)
        end = self._end(text, head.end(), ends.effort)
        code = f"f({text[head.end() : end]}"
        call = ast.parse(code, mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise UnreadableCall("no Python call")
        arguments = {
            k.arg: _python(k.value, code, tools.types(head["name"], k.arg)) for k in call.keywords if k.arg
        }
        return ReadCall(head["name"], arguments), end

    def _end(self, text: str, at: int, effort: Effort) -> int:
        """Where the bracket is closed that is open at a position."""
        depth = 1
        for mark in effort.matches(_PYTHON, text, at):
            depth += (mark[0] in "([{") - (mark[0] in ")]}")
            if not depth:
                return mark.end()
        raise UnreadableCall("no end of a Python call")

    def write(self, call: ReadCall) -> str:
        """See `Body`."""
        return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


# --------------------------------------------------------------------------- literals


def pattern(literal: str, beside: str = "") -> str:
    """A literal as a regular expression. White space may differ, and stand between two tags, but directly ``beside`` a
    value, on the ``left`` or ``right`` end of the literal, it is exactly what the format writes, or missing."""
    inner = literal.lstrip() if beside == "left" else literal.rstrip() if beside == "right" else literal
    at = literal.index(inner)
    parts = []
    for part in re.findall(rf"\s+|[{''.join(_VARIES)}]|[^\s{''.join(_VARIES)}]+", inner):
        tags = re.split(r"(?<=[>\]])(?=[<\[`])", part)
        parts.append(r"\s*+" if part.isspace() else _VARIES.get(part) or r"\s*+".join(map(re.escape, tags)))
    before, after = (f"(?:{re.escape(s)})?" if s else "" for s in (literal[:at], literal[at + len(inner) :]))
    return before + "".join(parts) + after


def with_id(expression: str) -> str:
    """The pattern of a literal, with the call's id as its group ``id``."""
    return expression.replace(_VARIES[ID], f"(?P<id>{_VARIES[ID]})", 1)


def skip(text: str, at: int) -> int:
    """Where the white space from a position on ends."""
    space = _SPACE.match(text, at)
    return space.end() if space else at


def read_json(text: str, at: int, effort: Effort | None = None) -> tuple[Any, int]:
    """The JSON value that begins at a position, and where it ends. Raises Unreadable."""
    size, effort = _PART, effort or Effort()
    while True:
        part = text[at : at + size]
        is_all = at + size >= len(text)
        try:
            value, end = _JSON.raw_decode(part)
            if is_all or end < len(part):
                return value, at + end
        except (ValueError, RecursionError) as error:
            effort.spend(len(part))
            pos, unreadable = getattr(error, "pos", 0), UnreadableCall(str(error))
            ends_within = isinstance(error, json.JSONDecodeError) and "Unterminated" not in error.msg
            if is_all or (pos < len(part) - _SHORT and "Unterminated" not in str(error)):
                if ends_within and pos < len(part):
                    unreadable.at = at + pos
                raise unreadable from None
        size *= 4


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    """A number of JSON. Python reads 1e999 as infinity, which other languages cannot read again."""
    return float(number) if math.isfinite(float(number)) else _no_number(number)


_JSON = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)
_compiled = cache(re.compile)


def _match(expression: str, text: str, at: int) -> re.Match[str]:
    match = _compiled(expression).match(text, at)
    if not match:
        raise UnreadableCall("no name")
    return match


# --------------------------------------------------------------------------- values


def _as_json(value: Any) -> str:
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, ensure_ascii=False)


def _literal_of(raw: str) -> Any:
    """What a text means as JSON or as a Python literal; itself if it is neither."""
    try:
        return _JSON.decode(raw)
    except (ValueError, RecursionError):
        pass
    try:
        return _literal(raw.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return raw


def _literal(node: str | ast.expr) -> Any:
    """The value of a Python literal that JSON can say. Raises ValueError, and what `ast.literal_eval` raises."""
    value = ast.literal_eval(node)
    json.dumps(value, allow_nan=False)
    return value


def _object(arguments: Any) -> Mapping[str, Any]:
    """Arguments: an object, its JSON text, or nothing. Raises Unreadable."""
    if isinstance(arguments, str):
        arguments = read_json(arguments or "{}", skip(arguments, 0))[0]
    if arguments is not None and not isinstance(arguments, dict):
        raise UnreadableCall("the arguments are not an object")
    return arguments or {}


def _python(node: ast.expr, code: str, types: frozenset[str] = frozenset()) -> Any:
    """The value of an expression. A name is a word of JSON, or a text without quotes, as some templates write it."""
    if isinstance(node, ast.Name):
        if "string" not in types and node.id.lower() in _WORDS:
            return _WORDS[node.id.lower()]
        if "string" in types:
            return node.id
        raise UnreadableCall(f"the name {node.id}")
    if isinstance(node, ast.Dict):
        return {_python(k, code): _python(v, code) for k, v in zip(node.keys, node.values, strict=True) if k}
    if isinstance(node, ast.List):
        return [_python(v, code) for v in node.elts]
    try:
        value = _literal(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise UnreadableCall(str(error)) from None
    if isinstance(value, str):
        return value if not types or "string" in types else _literal_of(value)
    return value if types != {"string"} else ast.get_source_segment(code, node)


def _properties(parameters: Any) -> Mapping[str, Any]:
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _types(schema: Any) -> frozenset[str]:
    """The JSON types that a schema names, also in a choice."""
    if not isinstance(schema, Mapping):
        return frozenset()
    kind = schema.get("type")
    kinds = {kind} if isinstance(kind, str) else set(filter(lambda k: isinstance(k, str), kind or ()))
    return frozenset(kinds.union(*map(_types, _choices(schema))))


def _choices(schema: Mapping[str, Any]) -> Iterator[Any]:
    for key in ("anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        yield from options if isinstance(options, list) else ()
    values = schema.get("enum")
    if "type" not in schema and isinstance(values, list) and all(isinstance(v, str) for v in values):
        yield {"type": "string"}
