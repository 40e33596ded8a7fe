"""JSON schemas that clients send: checked with bounded work, whatever they say.

Regular expressions run on RE2, whose time is linear in the text. Everything else that a schema can blow up
(references that double at every level, comparisons of every item with every other) is paid for in steps, of
which a check has a fixed number. Steps and not seconds, so that a check ends alike on every machine.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ajet.types import AjetError

MOST_NODES = 10_000
"""Objects, lists and values of a schema."""
_MOST_CHARACTERS = 1 << 18
MOST_STEPS = 200_000
"""Of one check: a keyword of the schema that meets a value costs one, and one for each part of either."""
_MOST_LEVELS = 100
_PATTERN_BYTES = 1 << 20
"""Memory of a compiled pattern, which bounds how long it takes for each character."""
_CHARACTERS_PER_STEP = 16
_DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are data and no schemas."""


class BadSchema(AjetError):
    """A schema that is none, or that cannot be applied here."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON schema (2020-12), ready to check values."""

    _validator: Any
    _nodes: int

    def fault(self, value: Any) -> tuple[str, str] | None:
        """Where a value does not fit (a JSON path) and why; None if it fits. Raises BadSchema if the schema
        cannot be applied: a reference that leads nowhere or in circles, more steps than `MOST_STEPS`."""
        token = _steps.set(_Steps(MOST_STEPS, self._nodes))
        try:
            error = next(self._validator.iter_errors(value), None)
        except BadSchema:
            raise
        except Exception as error:  # whatever the library raises for references and values that it cannot use
            raise BadSchema(f"the JSON schema cannot be applied: {one_line(error)}") from None
        finally:
            _steps.reset(token)
        return None if error is None else (error.json_path, one_line(error))


def make_schema(schema: Mapping[str, Any]) -> Schema:
    """A client's schema. The same one again costs no more than writing it as text. Raises BadSchema if it is
    not a schema, is too large, or has a pattern that RE2 does not know; ImportError without `ajet[chat]`."""
    try:
        written = json.dumps(schema)
    except RecursionError:
        raise _too_deep() from None
    if len(written) > _MOST_CHARACTERS:
        raise BadSchema(
            f"the JSON schema has {len(written):,} characters; at most {_MOST_CHARACTERS:,} are read"
        )
    return _make_schema(written)


@functools.lru_cache(32)
def _make_schema(written: str) -> Schema:
    from jsonschema import Draft202012Validator, SchemaError
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    schema = _without_dialects(json.loads(written), 0)
    nodes = _count(schema)
    if nodes > MOST_NODES:
        raise BadSchema(f"the JSON schema has {nodes:,} parts; at most {MOST_NODES:,} are read")
    if '"unevaluatedProperties"' in written and '"patternProperties"' in written:
        # The library would look the patterns up with Python's own regular expressions.
        raise BadSchema("a JSON schema cannot have both unevaluatedProperties and patternProperties here")
    try:
        Draft202012Validator.check_schema(schema, format_checker=None)
    except SchemaError as error:
        raise BadSchema(f"the JSON schema is none: {one_line(error)}") from None
    _check_patterns(schema)
    # Nothing but the schema itself: references lead nowhere else. It is searched for anchors once, not each time.
    registry: Registry[Any] = Registry().with_resource("", DRAFT202012.create_resource(schema)).crawl()
    return Schema(_bounded_validator()(schema, registry=registry), nodes)


def one_line(error: object) -> str:
    """An error's message in one line of at most 200 characters."""
    return " ".join(str(getattr(error, "message", error)).split())[:200] or type(error).__name__


# --------------------------------------------------------------------------- reading a schema


def _without_dialects(value: Any, level: int) -> Any:
    """A copy without ``$schema``, which would choose another validator than the bounded one for what is below."""
    if level > _MOST_LEVELS:
        raise _too_deep()
    if isinstance(value, dict):
        kept = (
            (k, v) for k, v in value.items() if k != "$schema" or isinstance(v, dict)
        )  # an object under this name is a property's schema
        return {k: _without_dialects(v, level + 1) for k, v in kept}
    if isinstance(value, list):
        return [_without_dialects(v, level + 1) for v in value]
    return value


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_count, value.values()))
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1


def _check_patterns(schema: Any) -> None:
    """Raises BadSchema for a pattern that cannot be applied, before anything is sampled."""
    if isinstance(schema, list):
        for part in schema:
            _check_patterns(part)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("pattern"), str):
        _regex(schema["pattern"])
    by_pattern = schema.get("patternProperties")
    if isinstance(by_pattern, dict):
        for pattern in by_pattern:
            _regex(pattern)
    for keyword, part in schema.items():
        if keyword not in _DATA:
            _check_patterns(part)


@functools.lru_cache(512)
def _regex(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeError) as error:
        reason = error.args[0] if error.args else error
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise BadSchema(
            f"the JSON schema's pattern {pattern[:80]!r} cannot be used: {one_line(reason)}. Patterns are those of RE2, "
            "without lookaround and references to groups"
        ) from None


def _too_deep() -> BadSchema:
    return BadSchema(f"the JSON schema is nested more than {_MOST_LEVELS} levels deep")


# --------------------------------------------------------------------------- paying for a check


@dataclass(slots=True)
class _Steps:
    left: int
    nodes: int
    """Of the schema."""


_steps: ContextVar[_Steps] = ContextVar("ajet-schema-steps")

Keyword = Callable[[Any, Any, Any, Any], Any]
"""(validator, the keyword's value, the instance, the schema around it) -> errors."""


@functools.cache
def _bounded_validator() -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    own: dict[str, Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    keywords = {**Draft202012Validator.VALIDATORS, **own}
    return extend(Draft202012Validator, {name: _paid(name, check) for name, check in keywords.items()})


def _paid(name: str, check: Keyword) -> Keyword:
    """A keyword's check that takes its steps first."""

    def pay(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        steps = _steps.get()
        steps.left -= 1 + _size(value) + _size(instance) + _more(name, value, instance, schema, steps.nodes)
        if steps.left < 0:
            raise BadSchema(
                f"checking the answer against the JSON schema takes more than {MOST_STEPS:,} steps; use a simpler schema"
            )
        return check(validator, value, instance, schema)

    return pay


def _more(name: str, value: Any, instance: Any, schema: Any, nodes: int) -> int:
    """Steps of keywords whose work is not the sum of the sizes of what they look at. ``nodes`` are the schema's."""
    if name in ("$ref", "$dynamicRef"):
        return 8 if str(value).startswith("#/") else nodes  # others may be searched for everywhere
    if name in ("enum", "const"):
        return nodes if isinstance(instance, list | dict) else 0
    if name == "dependentRequired":
        return nodes
    if name == "uniqueItems":  # items that cannot be sorted are compared each with each
        return len(instance) ** 2 // 2 if isinstance(instance, list) and not _is_sortable(instance) else 0
    if name in ("patternProperties", "additionalProperties"):
        return _size(instance) * _size(schema.get("patternProperties"))
    return 0


def _size(value: Any) -> int:
    if isinstance(value, list | dict):
        return len(value)
    return len(value) // _CHARACTERS_PER_STEP if isinstance(value, str) else 0


def _is_sortable(items: list[Any]) -> bool:
    return all(isinstance(i, str) for i in items) or all(isinstance(i, int | float) for i in items)


def _matches(pattern: str, text: str) -> bool:
    return _regex(pattern).search(text.encode(errors="replace").decode()) is not None


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, by_pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for pattern, below in by_pattern.items():
            for name, value in instance.items():
                if _matches(pattern, name):
                    yield from validator.descend(value, below, path=name, schema_path=pattern)


def _additional_properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    further = [k for k in instance if k not in known and not any(_matches(p, k) for p in patterns)]
    if wanted is False and further:
        names = ", ".join(map(repr, further))
        yield ValidationError(f"Additional properties are not allowed ({names})")
    elif wanted is not False:
        for name in further:
            yield from validator.descend(instance[name], wanted, path=name)
