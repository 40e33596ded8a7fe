"""JSON schemas that clients send, checked with bounded work whatever they contain.

`jsonschema-rs` checks values, with regular expressions whose time is linear in the text. No other thread runs while it does, so
`_CheckingCost` counts before what it will have to do: references may double at every level. Steps rather than seconds give the same
result on every machine. Each limit says which attack of `bench/gateway_attack.py` it stops.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ajet.types import AjetError

_MOST_CHARACTERS = 1 << 18
MOST_NODES = 10_000
"""Maximum number of objects, lists and values in a schema. Attack ``schema_size``."""
_MOST_PATTERN_BYTES = 1 << 23
"""Memory of a schema's compiled patterns, which bounds the time to compile them. Attack ``schema_patterns``."""
_MOST_UNEVALUATED = 16
"""References beside ``unevaluatedProperties`` or ``unevaluatedItems``, for which the library follows all of them when it reads the
schema. Attack ``schema_unevaluated``."""
MOST_STEPS = 500_000
"""Limit of one check. Applying a schema to a value costs its keywords and the size of the value. Attack ``schema_references``."""
_CHARACTERS_PER_STEP = 8
_PATTERN_STEP = 1 << 11
"""A pattern costs a step for so many bytes of its memory and characters of the text. Attack ``schema_slow_pattern``."""
_MOST_EXPLAINED = 10_000
"""Steps of the alternatives at one place up to which an error says where a value does not fit: for that, the library collects the
errors of all of them. Attack ``schema_alternatives``."""


class BadSchema(AjetError):
    """A schema that is invalid, or that cannot be applied here."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON schema (2020-12), ready to check values."""

    _schema: dict[str, Any]
    _validator: Any

    def fault(self, value: Any) -> tuple[str, str] | None:
        """Where a value does not fit (a JSON path) and why; None if it fits. Raises BadSchema if a reference leads in circles, or
        the check takes more steps than `MOST_STEPS`."""
        try:
            steps, alternatives = _CheckingCost(self._schema).of(self._schema, value)
            _refuse_steps(steps)
            if self._validator.is_valid(value):
                return None
            if alternatives > _MOST_EXPLAINED:
                return "$", "no alternative of an anyOf or oneOf fits, and they are too large to say where"
            self._validator.validate(value)
        except RecursionError:
            raise BadSchema("the answer is nested too deeply to be checked against the JSON schema") from None
        except (AttributeError, LookupError, TypeError):
            # The library does not check all that references lead to.
            raise BadSchema("the JSON schema refers to a part of itself that is not a schema") from None
        except ValueError as error:  # the library's errors, and texts that it cannot read
            return _path(error), one_line(error)
        return None


def make_schema(schema: Mapping[str, Any]) -> Schema:
    """A client's schema. The same schema again costs no more than writing it as text. Raises BadSchema if it is
    not a schema, is too large, or has a pattern that cannot be used; ImportError without `ajet[chat]`."""
    try:
        written = json.dumps(schema)
    except RecursionError:
        raise BadSchema("the JSON schema is nested too deeply") from None
    if len(written) > _MOST_CHARACTERS:
        raise BadSchema(
            f"the JSON schema has {len(written):,} characters; at most {_MOST_CHARACTERS:,} are read"
        )
    return _make_schema(written)


@functools.lru_cache(32)
def _make_schema(written: str) -> Schema:
    from jsonschema_rs import Draft202012Validator, RegexOptions, meta

    schema = json.loads(written)
    schema.pop("$schema", None)
    parts = list(_parts(schema))
    if len(parts) > MOST_NODES:
        raise BadSchema(f"the JSON schema has {len(parts):,} parts; at most {MOST_NODES:,} are read")
    _refuse_unusable(schema, [part for part in parts if isinstance(part, dict)])
    try:
        if len(parts) > MOST_NODES // 4 and not meta.is_valid(schema):
            raise BadSchema("not a valid JSON schema; it is too large to say why")
        patterns = RegexOptions(size_limit=_MOST_PATTERN_BYTES)
        return Schema(schema, Draft202012Validator(schema, pattern_options=patterns, offline=True))
    except ValueError as error:
        raise BadSchema(f"not a valid JSON schema at {_path(error)}: {one_line(error)}") from None


def one_line(error: object) -> str:
    """An error's message in one line of at most 200 characters."""
    return " ".join(str(getattr(error, "message", error)).split())[:200] or type(error).__name__


def _path(error: Exception) -> str:
    steps = getattr(error, "instance_path", ())
    return "$" + "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps)


def _parts(value: Any) -> Iterator[Any]:
    """A value and everything in it."""
    rest = [value]
    while rest:
        part = rest.pop()
        yield part
        if isinstance(part, dict | list):
            rest.extend(part.values() if isinstance(part, dict) else part)


def _refuse_unusable(schema: Any, objects: list[dict[str, Any]]) -> None:
    """Raises BadSchema for patterns that cannot be used, and for references that `_CheckingCost` does not follow."""
    references = [part["$ref"] for part in objects if isinstance(part.get("$ref"), str)]
    if other := [r for r in references if r != "#" and not r.startswith("#/")]:
        raise BadSchema(
            f"the JSON schema refers to {other[0][:80]!r}; it can refer only to parts of itself, as in #/$defs/name"
        )
    unevaluated = any("unevaluatedProperties" in part or "unevaluatedItems" in part for part in objects)
    if unevaluated and len(references) > _MOST_UNEVALUATED:
        raise BadSchema(
            f"a JSON schema with unevaluatedProperties or unevaluatedItems may have {_MOST_UNEVALUATED} references here"
        )
    total = 0
    for part in objects:
        for keyword in ("$id", "$schema", "$dynamicRef"):
            if part is not schema and isinstance(part.get(keyword), str):
                raise BadSchema(f"the parts of a JSON schema cannot have {keyword} here; leave it out")
        by_name = part.get("patternProperties")
        for pattern in (part.get("pattern"), *(by_name if isinstance(by_name, dict) else ())):
            total += _pattern_bytes(pattern) if isinstance(pattern, str) else 0
            if total > _MOST_PATTERN_BYTES:
                raise BadSchema("the JSON schema's patterns are too large; use shorter repetitions")


@functools.lru_cache(1024)
def _pattern_bytes(pattern: str) -> int:
    """Memory of a compiled pattern, found by trying. Raises BadSchema if it cannot be compiled."""
    from jsonschema_rs import Draft202012Validator, RegexOptions

    for size in (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 21):
        try:
            Draft202012Validator({"pattern": pattern}, pattern_options=RegexOptions(size_limit=size))
            return size
        except ValueError:
            pass
    raise BadSchema(
        f"the JSON schema's pattern {pattern[:80]!r} cannot be used: it is too large or no regular expression of this kind, which "
        "has no lookaround and no references to groups"
    )


def _refuse_steps(steps: int) -> None:
    if steps > MOST_STEPS:
        raise BadSchema(
            f"checking the answer against the JSON schema takes more than {MOST_STEPS:,} steps; use a simpler schema"
        )


class _CheckingCost:
    """Counts what the library does at most to check a value."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._known: dict[tuple[int, int], tuple[int, int] | None] = {}
        """By ids of a schema and a value; None while it is counted."""
        self._sizes: dict[int, int] = {}
        self._counted = 0

    def of(self, schema: Any, value: Any) -> tuple[int, int]:
        """Steps of applying a schema to a value, and of the largest alternatives at one place in it. Raises BadSchema if counting
        takes too many steps itself."""
        if not isinstance(schema, dict):
            return 1, 0
        pair = id(schema), id(value)
        if pair in self._known:
            known = self._known[pair]
            if known is None:
                raise BadSchema("the JSON schema cannot be applied: it refers to itself in circles")
            return known
        self._known[pair] = None
        steps = self._own(schema, value)
        self._counted += steps
        _refuse_steps(self._counted)
        # What was evaluated is found by applying the schemas again.
        times = 2 if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else 1
        here = largest = 0
        for keyword, below, part in self._applied(schema, value):
            steps_below, largest_below = self.of(below, part)
            steps += times * steps_below
            here += steps_below if keyword in ("anyOf", "oneOf") else 0
            largest = max(largest, largest_below)
        self._known[pair] = known = steps, max(largest, here)
        return known

    def _own(self, schema: dict[str, Any], value: Any) -> int:
        """The steps of a schema without those that it applies."""
        compared = ("enum", "const", "required", "dependentRequired")
        steps = 1 + len(schema) + self._size(value) + sum(self._size(schema.get(name)) for name in compared)
        if isinstance(value, str) and "pattern" in schema:
            steps += len(value) * _pattern_bytes(schema["pattern"]) // _PATTERN_STEP
        if isinstance(value, dict):
            names = sum(map(len, value))
            by_name = schema.get("patternProperties", ())
            steps += sum(names * _pattern_bytes(pattern) for pattern in by_name) // _PATTERN_STEP
        return steps

    def _size(self, value: Any) -> int:
        if isinstance(value, str):
            return len(value) // _CHARACTERS_PER_STEP
        if isinstance(value, dict | list) and id(value) not in self._sizes:
            self._sizes[id(value)] = len(json.dumps(value)) // _CHARACTERS_PER_STEP
        return self._sizes.get(id(value), 0)

    def _applied(self, schema: dict[str, Any], value: Any) -> Iterator[tuple[str, Any, Any]]:
        """(keyword, schema, part of the value) of all that a schema may apply. Patterns of names count as if they matched all."""
        for keyword, given in schema.items():
            if keyword in ("allOf", "anyOf", "oneOf"):
                yield from ((keyword, below, value) for below in given)
            elif keyword in ("not", "if", "then", "else"):
                yield keyword, given, value
            elif keyword == "$ref":
                yield keyword, self._target(given), value
            elif isinstance(value, dict):
                if keyword == "properties":
                    yield from ((keyword, given[name], part) for name, part in value.items() if name in given)
                elif keyword in ("dependentSchemas", "dependencies"):
                    yield from ((keyword, below, value) for below in given.values())
                elif keyword == "patternProperties":
                    yield from ((keyword, below, part) for below in given.values() for part in value.values())
                elif keyword in ("additionalProperties", "unevaluatedProperties"):
                    own = schema.get("properties", ())
                    yield from ((keyword, given, part) for name, part in value.items() if name not in own)
                elif keyword == "propertyNames":
                    yield from ((keyword, given, name) for name in value)
            elif isinstance(value, list):
                if keyword in ("prefixItems", "items") and isinstance(given, list):
                    yield from ((keyword, *both) for both in zip(given, value, strict=False))
                elif keyword in ("items", "additionalItems", "contains", "unevaluatedItems"):
                    yield from ((keyword, given, part) for part in value)

    def _target(self, reference: str) -> Any:
        """The part of the schema that a reference names; the library has checked that there is one."""
        part: Any = self._schema
        for name in unquote(reference[1:]).split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            part = part[int(name)] if isinstance(part, list) else part[name]
        return part
