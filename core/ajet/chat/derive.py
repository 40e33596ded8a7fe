"""Derives how a model writes tool calls from what its chat template writes for marked calls, or from one example.

The literals around names, arguments and values are found by comparing texts. `battery` is what a reader must read back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ajet.chat.bodies import (
    ANY_KEY,
    ANY_NAME,
    ID,
    NUMBER,
    Body,
    JsonBody,
    NamedBody,
    ObjectBody,
    PythonBody,
    ReadCall,
    TagBody,
    Tools,
)
from ajet.chat.calls import BareCalls, CallFormat, CallReader, Calls
from ajet.chat.texts import common_end, common_start, without_header
from ajet.types import AjetError

Message = Mapping[str, Any]
Writer = Callable[[Sequence[ReadCall], str], str]
"""Writes calls after a text: an answer from where the prompt ends up to the end of the turn. Raises AjetError."""

_NAMES, _KEYS, _VALUES, SAID = ("zqname", "zqother"), ("zqkey", "zqkez"), ("zqval", "zqvax"), "zqsaid"
_IDS = ("zqidaaaa1", "zqidaaaa2")
_NUMBERED = re.compile(r"functions\.(zqname|zqother):\d+")
_MARKS = ("<|python_tag|>", "<|python_start|>", "<|python_end|>", "<|tool_call|>", "<|/tool_call|>")
"""Models may or may not write these around a call whose format has no marker."""
_TYPED = (True, 90125, {"zqa": 1}, [90125], None)
"""In the order of `ajet.chat.bodies.TagBody`."""
_JSON = json.JSONDecoder()
_ELEMENT = re.compile(r"\s*(?:<[^<>]*>|\[[^\[\]]*\]|\S)\s*")
_OPENING = re.compile(r"(?:<[^<>]*>?|\[[^\[\]]*\]?|\S)\s*\Z")


class Underivable(AjetError):
    """The text shows no format that can be read; the message says why."""


def from_example(example: str, control: re.Pattern[str]) -> CallReader:
    """The reader of calls like the example, which calls ``NAME`` with ``KEY`` as ``VALUE``, once or twice. Raises
    Underivable."""
    for word in ("NAME", "KEY", "VALUE"):
        if word not in example:
            raise Underivable(f"the example does not contain {word}")
    text = example.replace("KEY", _KEYS[0]).replace("VALUE", _VALUES[0])
    text = text.replace("NAME", _NAMES[0], 1).replace("NAME", _NAMES[1])
    one = text[: text.index(_NAMES[1])] if _NAMES[1] in text else text

    def write(calls: Sequence[ReadCall], said: str) -> str:
        if said or calls[0].arguments != {_KEYS[0]: _VALUES[0]} or (len(calls) > 1 and one is text):
            raise AjetError("the example does not show this")
        return text if len(calls) > 1 else one

    return _Derivation(write, "", control).reader()


def from_template(write: Writer, header: str, control: re.Pattern[str]) -> CallReader:
    """The reader of what a chat template writes. ``header`` is the end of its prompts, ``control`` matches special tokens.
    Raises Underivable, and AjetError if the template refuses calls."""
    return _Derivation(write, header, control).reader()


class _Derivation:
    def __init__(self, write: Writer, header: str, control: re.Pattern[str]) -> None:
        self._write, self._header, self._control = write, header, control
        self._numbered_ids = False

    def reader(self) -> CallReader:
        one = self._text(1)
        if (_NAMES[0] not in one and _IDS[0] in one) or _NUMBERED.search(one):
            # As in Kimi's templates, which write only the id: the name is within it.
            self._numbered_ids = True
            one = self._text(1)
        if _NAMES[0] not in one:
            raise Underivable("no names of tools are written")
        body = self._body(one)
        start, end = self._span(body, one, 0)
        before, after = self._lead(one[:start], start, body), one[end:]
        try:
            two = self._text(2)
            spans = [self._span(body, two, n) for n in (0, 1)]
        except AjetError:
            spans = []
        between = two[spans[0][1] : spans[1][0]] if spans and spans[0][1] <= spans[1][0] else ""
        if spans:  # in an example of two calls, the text of one does not show the end
            after = two[spans[1][1] :] if one in two else after
        literals = [_with_ids(text) for text in (before, between, after)]
        if between:
            plain = common_end(literals[0], literals[1], self._control)
            counted = [re.sub(r"\d+", NUMBER, text) for text in literals]
            if len(common_end(counted[0], counted[1], self._control)) > len(plain):
                literals = counted
        return self._format(body, *literals)

    def _format(self, body: Body, before: str, between: str, after: str) -> CallReader:
        marks = tuple(mark for mark in _MARKS if self._control.fullmatch(mark))
        bare = re.sub(r"<\|python_\w+\|>", "", before)
        if not bare.strip(" \n[{(") and isinstance(body, JsonBody | PythonBody):
            between = between or (", " if "[" in before else "; ")
            return BareCalls(body, marks, (before, between, after.rstrip()))
        if not before.strip():
            raise Underivable("nothing begins a call")
        if not between:
            return CallFormat(body, *_sections(before, after.rstrip()))
        opens = common_end(before, between, self._control)
        closes = common_start(between, after, self._control)
        if len(opens) + len(closes) > len(between):
            opens = between[len(closes) :]
        middle = between[len(closes) : len(between) - len(opens)]
        section = before[: len(before) - len(opens)], after[len(closes) :].rstrip()
        return CallFormat(body, section, (opens, closes), middle)

    # ---------------------------------------------------------------- texts of marked calls

    def _text(self, calls: int, arguments: Mapping[str, Any] | None = None, said: str = "") -> str:
        arguments = {_KEYS[0]: _VALUES[0]} if arguments is None else arguments
        ids = [f"functions.{_NAMES[n]}:{n}" if self._numbered_ids else _IDS[n] for n in range(calls)]
        return self._write([ReadCall(_NAMES[n], arguments, ids[n]) for n in range(calls)], said)

    def _lead(self, before: str, start: int, body: Body) -> str:
        """What begins a call: not the header of the turn, nor the space after it."""
        candidates = [without_header(before, self._header, self._control).lstrip()]
        try:
            said = self._text(1, said=SAID)
            begin = self._span(body, said, 0)[0]
            if SAID in said[:begin]:
                candidates.append(
                    common_end(before, said[said.index(SAID) + len(SAID) : begin], self._control).lstrip()
                )
        except (AjetError, ValueError):
            pass
        return min(candidates, key=len)

    # ---------------------------------------------------------------- the call itself

    def _body(self, one: str) -> Body:
        arguments = {_KEYS[0]: _VALUES[0]}
        call = _call_object(one, _NAMES[0], arguments)
        if call:
            return call[2]
        at = self._name_at(one, 0)
        after = one[one.index(_NAMES[0], at) + len(_NAMES[0]) :]
        inner = next(((a, e) for a, e, value in _json_values(after) if _loaded(value) == arguments), None)
        if inner:
            between = after[: inner[0]]
            if self._numbered_ids:
                between = re.sub(r"^:\d+", "", between)
            return NamedBody(_with_ids(between), self._numbered_ids)
        if re.match(rf"\(\s*{_KEYS[0]}\s*=", after):
            return PythonBody()
        return self._tags(one)

    def _name_at(self, text: str, number: int) -> int:
        """Where the call of a name begins: the name directly before its arguments."""
        name = _NAMES[number]
        places = [match.start() for match in re.finditer(name, text)]
        keys = [match.start() for match in re.finditer(_KEYS[0], text)]
        for place in reversed(places):
            if not keys or any(key > place for key in keys):
                return place - len("functions.") * self._numbered_ids
        if not places:
            raise Underivable("no names of tools are written")
        return places[-1]

    def _span(self, body: Body, text: str, number: int) -> tuple[int, int]:
        """Where the body of a call begins and ends in a text."""
        if isinstance(body, JsonBody):
            call = _call_object(text, _NAMES[number], {_KEYS[0]: _VALUES[0]})
            if not call:
                raise Underivable("a second call is not written as JSON")
            return call[:2]
        at = self._name_at(text, number)
        if number == 0 and _NAMES[1] in text:
            at = self._name_at(text[: text.rindex(_NAMES[1])], 0)
        try:
            tools = tools_of([ReadCall(_NAMES[number], {_KEYS[0]: _VALUES[0]})])
            return at, body.read(text, at, Tools(tools))[1]
        except (ValueError, LookupError) as error:
            raise Underivable(str(error)) from None

    def _tags(self, one: str) -> Body:
        """Each argument stands between texts of its own."""

        def parts(text: str, *marks: str) -> list[str]:
            text = text[self._name_at(text, 0) + len(_NAMES[0]) :]
            texts = []
            for mark in marks:
                before, hit, text = text.partition(mark)
                if not hit:
                    raise Underivable("an argument is not written as it is")
                texts.append(before)
            return [*texts, text]

        first, string, last = parts(one, _KEYS[0], _VALUES[0])
        counts = self._counts_calls(first)
        try:
            both = self._text(1, dict(zip(_KEYS, _VALUES, strict=True)))
            following = parts(both, _KEYS[0], _VALUES[0], _KEYS[1], _VALUES[1])[2]
        except Underivable:
            raise
        except AjetError:  # an example
            following = _element(last, first=True) + _element(first, first=False)
        others = list(self._before_values())
        if not others and first.strip() == "{":  # an example: only its quotes can be the same on both sides
            others = [string[:n] for n in range(len(string)) if last.startswith(string[n:])][:1] * 2
        quote = string[len(others[1]) :] if len(others) > 1 and string.startswith(others[1]) else ""
        if quote and last.startswith(quote) and last[len(quote) :].lstrip().startswith("}"):
            comma = following.removeprefix(quote).strip()
            return ObjectBody(first, quote, others[1], comma if comma in (",", ";") else ",")
        after_value = common_start(following, last, self._control)
        before_key = following[len(after_value) :]
        separator = ""
        if not before_key.strip():
            raise Underivable("nothing begins an argument")
        if first.rstrip().endswith(before_key.strip()):
            after_name = first[: first.rindex(before_key.strip())]
        else:
            after_name, before_key, separator = first, "", before_key
        if not after_value.strip() or not string.strip():
            raise Underivable("nothing ends an argument")
        close = last[len(after_value) :]
        try:
            nothing = parts(self._text(1, {}))[0]
            without = (
                nothing.removesuffix(close)
                if close.strip() and nothing.endswith(close)
                else _element(nothing, first=True)
            )
        except AjetError:
            without = after_name
        if counts:
            after_name, without = (re.sub(r"\d+", NUMBER, text) for text in (after_name, without))
        after_value = after_value.replace(_KEYS[0], ANY_KEY)
        values = tuple(others) or (string,)
        return TagBody(after_name, before_key, string, values, after_value, without, separator)

    def _counts_calls(self, after_name: str) -> bool:
        """Whether what follows the name of a second call has another number."""
        try:
            second = self._text(2).rpartition(_NAMES[1])[2].partition(_KEYS[0])[0]
        except AjetError:
            return False
        same = re.sub(r"\d+", "0", second) == re.sub(r"\d+", "0", after_name)
        return same and second != after_name

    def _before_values(self) -> Iterator[str]:
        """What the format writes before values other than texts, in the order of their types."""
        before = ""
        for value in _TYPED:
            try:
                text = self._text(1, {_KEYS[0]: value}).partition(_KEYS[0])[2]
            except AjetError:
                return
            places = [text.rfind(said) for said in (json.dumps(value), str(value)) if said in text]
            yield text[: min(places)] if places else before
            before = text[: min(places)] if places else before


def _sections(before: str, after: str) -> tuple[tuple[str, str], tuple[str, str], str]:
    """What surrounds all calls, what surrounds each of them, and what stands between two, where only one call is known:
    the outer tags are taken for those of all calls, and brackets for those of a list."""
    opens, closes = _element(before, first=False), _element(after, first=True)
    section = before[: len(before) - len(opens)], after[len(closes) :]
    if opens.strip() == "[" and closes.strip() == "]":
        return (before, after), ("", ""), ", "
    return (section, (opens, closes), "\n") if all(section) else (("", ""), (before, after), "\n")


def _call_object(text: str, name: str, arguments: Mapping[str, Any]) -> tuple[int, int, JsonBody] | None:
    """The smallest JSON object that has a name and arguments: where it begins and ends, and its keys."""
    best: tuple[int, int, JsonBody] | None = None
    for begin, end, value in _json_values(text):
        if not isinstance(value, dict) or (best and end - begin > best[1] - best[0]):
            continue
        if name in value and _loaded(value[name]) == arguments and len(value) == 1:
            best = begin, end, JsonBody(None)
        named = [key for key, held in value.items() if held == name]
        told = [
            key for key, held in value.items() if key not in named and held and _loaded(held) == arguments
        ]
        if named and told:
            ids = [key for key, held in value.items() if held in _IDS]
            best = begin, end, JsonBody((named[0], told[0]), isinstance(value[told[0]], str), *ids[:1])
    return best


def _json_values(text: str) -> Iterator[tuple[int, int, Any]]:
    for opener in re.finditer(r"[\[{\"]", text):
        try:
            value, end = _JSON.raw_decode(text, opener.start())
        except (ValueError, RecursionError):
            continue
        yield opener.start(), end, value


def _loaded(value: Any) -> Any:
    """An object, or the object that a text holds."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None


def _with_ids(text: str) -> str:
    for name, identifier in zip(_NAMES, _IDS, strict=True):
        text = text.replace(identifier, ID).replace(name, ANY_NAME)
    return text


def _element(text: str, *, first: bool) -> str:
    """The first or the last tag, token or character of a text, with the space around it."""
    if first:
        match = _ELEMENT.match(text)
        return match[0] if match else text
    last = _OPENING.search(text)
    return last[0] if last else text


# --------------------------------------------------------------------------- proving a reader

_ANY = {"type": "object", "properties": {}}
_STRINGS = {"digits": "8001", "truth": "true", "nothing": "null", "json": '{"a": [1, "x"]}', "quoted": '"q"'}


def battery(markers: Sequence[str]) -> dict[str, list[ReadCall]]:
    """Calls that are hard to read back, by what makes them hard. ``markers`` are literals of the format."""
    own = " ".join(dict.fromkeys(markers))
    cases: dict[str, Any] = {
        "plain": {"s": "Bern"},
        "types": {"n": 2, "f": 1.5, "b": True, "c": False, "z": None},
        "nested": {"o": {"a": [1, {"b": "c"}], "d": False}, "l": ["x", 2]},
        **{name: {"s": text} for name, text in _STRINGS.items()},
        "quotes": {"s": 'it\'s "so" \\ here'},
        "lines": {"s": "a\n\nb"},
        "space": {"s": "\n    return x\n\n", "t": "  y  "},
        "unicode": {"s": "日本 ü 🙂"},
        "empty text": {"s": ""},
        "no arguments": {},
        "markers": {"s": f"a {own} b"},
    }
    calls = {name: [ReadCall("probe-it", arguments)] for name, arguments in cases.items()}
    return calls | {"two": [ReadCall("probe-it", {"s": "1"}), ReadCall("other_one", {})]}


def tools_of(calls: Sequence[ReadCall]) -> list[dict[str, Any]]:
    """Tools with which the arguments of calls have the types that they have."""
    names: dict[type, str] = {
        str: "string",
        bool: "boolean",
        int: "integer",
        float: "number",
        dict: "object",
        list: "array",
    }
    kinds = {
        call.name: {
            k: {"type": names[type(v)]} if v is not None else {"type": "null"}
            for k, v in call.arguments.items()
        }
        for call in calls
    }
    return [
        {
            "type": "function",
            "function": {
                "name": n,
                "description": "",
                "parameters": {**_ANY, "properties": p, "required": list(p)},
            },
        }
        for n, p in kinds.items()
    ]


def unread(
    read: Callable[[str, Sequence[Message]], Calls],
    write: Callable[[Sequence[ReadCall]], str],
    markers: Sequence[str],
) -> list[str]:
    """The cases of the battery that ``read`` does not read back from what ``write`` writes; those that it refuses do not
    count."""
    failed = []
    for name, calls in battery(markers).items():
        try:
            text = write(calls)
        except AjetError:
            continue
        if _exact(read(text, tools_of(calls)).calls) != _exact(calls):
            failed.append(name)
    return failed


def _exact(calls: Sequence[ReadCall]) -> list[tuple[str, str]]:
    return [(call.name, json.dumps(call.arguments, sort_keys=True)) for call in calls]
