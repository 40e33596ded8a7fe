"""JSON schemas that clients send, checked with bounded work whatever they contain.

Regular expressions run on RE2, whose time is linear in the text. Everything else that can explode
(references that double at every level, errors that quote the whole answer) costs steps, of which a check has
a fixed number. Steps rather than seconds give the same result on every machine.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ajet.types import AjetError

MOST_NODES = 10_000
"""Maximum number of objects, lists and values in a schema."""
_MOST_CHARACTERS = 1 << 18
MOST_STEPS = 200_000
"""Limit of one check. Applying a keyword to a value costs 1, plus the size of the keyword's value and of the instance.
Entering a schema costs its size, including unknown keywords; an error costs all that its message may quote."""
_MOST_LEVELS = 100
_PATTERN_BYTES = 1 << 20
"""Memory of a compiled pattern, which bounds the time per character."""
_CHARACTERS_PER_STEP = 16
_DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are data, not schemas."""
_NOT_TOGETHER = {
    "unevaluatedProperties": ("$dynamicRef", "dependentSchemas", "if", "patternProperties"),
    "unevaluatedItems": ("$dynamicRef", "if"),
}
"""Where the library looks for what was evaluated, it follows the latter without applying them, so that they cost no
steps, and matches patterns with Python's own regular expressions."""


class BadSchema(AjetError):
    """A schema that is invalid, or that cannot be applied here."""


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
        except (
            Exception
        ) as error:  # the library raises many types for references and values that it cannot use
            raise BadSchema(f"the JSON schema cannot be applied: {one_line(error)}") from None
        finally:
            _steps.reset(token)
        return None if error is None else (error.json_path, one_line(error))


def make_schema(schema: Mapping[str, Any]) -> Schema:
    """A client's schema. The same schema again costs no more than writing it as text. Raises BadSchema if it is
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
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    schema = _without_dialects(json.loads(written), 0)
    nodes = _count(schema)
    if nodes > MOST_NODES:
        raise BadSchema(f"the JSON schema has {nodes:,} parts; at most {MOST_NODES:,} are read")
    for unevaluated, others in _NOT_TOGETHER.items():
        both = [other for other in others if f'"{unevaluated}"' in written and f'"{other}"' in written]
        if both:
            raise BadSchema(
                f"a JSON schema cannot have both {unevaluated} and {both[0]} here; leave one of them out"
            )
    fault = next(_schema_validator().iter_errors(schema), None)
    if fault is not None:
        raise BadSchema(f"not a valid JSON schema: {one_line(fault)}")
    _check_patterns(schema)
    # Only the schema itself, so references lead nowhere else. It is searched for anchors once, not each time.
    registry: Registry[Any] = Registry().with_resource("", DRAFT202012.create_resource(schema)).crawl()
    return Schema(_bounded_validator()(schema, registry=registry), nodes)


def one_line(error: object) -> str:
    """An error's message in one line of at most 200 characters."""
    return " ".join(str(getattr(error, "message", error)).split())[:200] or type(error).__name__


# --------------------------------------------------------------------------- reading a schema


def _without_dialects(value: Any, level: int) -> Any:
    """A copy without ``$schema``, which would replace the bounded validator for the part below it."""
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
            f"the JSON schema's pattern {pattern[:80]!r} cannot be used: {one_line(reason)}. Use RE2 syntax, which "
            "has no lookaround and no references to groups"
        ) from None


def _too_deep() -> BadSchema:
    return BadSchema(f"the JSON schema is nested more than {_MOST_LEVELS} levels deep")


# --------------------------------------------------------------------------- the cost of a check


@dataclass(slots=True)
class _Steps:
    left: int
    nodes: int
    """Parts of the schema."""
    error: Any = None
    """The error that was paid for last."""

    def pay(self, steps: int) -> None:
        """Use up steps. Raises BadSchema if not enough are left."""
        self.left -= steps
        if self.left < 0:
            raise BadSchema(
                f"checking the answer against the JSON schema takes more than {MOST_STEPS:,} steps; use a simpler schema"
            )


_steps: ContextVar[_Steps | None] = ContextVar("ajet-schema-steps", default=None)
"""The steps of the current check; None while no value is checked."""

Keyword = Callable[[Any, Any, Any, Any], Any]
"""(validator, the keyword's value, the instance, the schema around it) -> errors."""


@functools.cache
def _schema_validator() -> Any:
    """What checks schemas themselves, in time linear in their size."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend
    from jsonschema_specifications import REGISTRY
    from referencing.jsonschema import DRAFT202012

    # Where a part of the meta-schema names its dialect, the library would continue with its own validator.
    parts = ((uri, REGISTRY.contents(uri)) for uri in REGISTRY if "draft/2020-12" in uri)
    nameless = [(uri, {k: v for k, v in part.items() if k != "$schema"}) for uri, part in parts]
    registry = REGISTRY.with_resources(
        (uri, DRAFT202012.create_resource(part)) for uri, part in nameless
    ).crawl()
    checks = extend(Draft202012Validator, {"uniqueItems": _unique_items})
    return checks(dict(nameless)["https://json-schema.org/draft/2020-12/schema"], registry=registry)


@functools.cache
def _bounded_validator() -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import create

    own: dict[str, Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    keywords = {**Draft202012Validator.VALIDATORS, **own}
    return create(
        Draft202012Validator.META_SCHEMA,
        {name: _paid(name, check) for name, check in keywords.items()},
        type_checker=Draft202012Validator.TYPE_CHECKER,
        applicable_validators=_keywords,
    )


def _keywords(schema: Any) -> Any:
    """All keywords of a schema, including unknown ones: the library iterates over all of them."""
    steps = _steps.get()
    if steps:
        steps.pay(len(schema))
    return schema.items()


def _paid(name: str, check: Keyword) -> Keyword:
    """A keyword's check that first pays its steps, and pays for each error that it yields."""

    def pay(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        steps = _steps.get()
        assert steps
        steps.pay(1 + _size(value) + _size(instance) + _more(name, value, instance, schema, steps.nodes))
        for error in check(validator, value, instance, schema) or ():
            if error is not steps.error:  # it also passes through the enclosing keywords
                steps.error = error
                steps.pay(_whole_size(value) + _whole_size(instance))
            yield error

    return pay


def _more(name: str, value: Any, instance: Any, schema: Any, nodes: int) -> int:
    """Extra steps of keywords whose work exceeds the sizes of their operands. ``nodes`` is the schema's size."""
    if name in ("$ref", "$dynamicRef"):
        return 8 if str(value).startswith("#/") else nodes  # others may be searched for everywhere
    if name in ("enum", "const"):
        return nodes if isinstance(instance, list | dict) else 0
    if name == "dependentRequired":
        return nodes
    if name == "uniqueItems":
        return _whole_size(instance)
    if name in (
        "unevaluatedProperties",
        "unevaluatedItems",
    ):  # references are followed, and all names are compared
        return nodes * _size(instance) if isinstance(instance, list | dict) else 0
    if name in ("patternProperties", "additionalProperties"):
        return _size(instance) * _size(schema.get("patternProperties"))
    return 0


def _size(value: Any) -> int:
    if isinstance(value, list | dict):
        return len(value)
    return len(value) // _CHARACTERS_PER_STEP if isinstance(value, str) else 0


def _whole_size(value: Any) -> int:
    """The size of a value, including everything in it."""
    if isinstance(value, dict):
        return len(value) + sum(_size(k) + _whole_size(v) for k, v in value.items())
    return len(value) + sum(map(_whole_size, value)) if isinstance(value, list) else _size(value)


def _matches(pattern: str, text: str) -> bool:
    return _regex(pattern).search(text.encode(errors="replace").decode()) is not None


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Takes time linear in the items. The library compares all pairs if they cannot be sorted."""
    from jsonschema import ValidationError

    if wanted and validator.is_type(instance, "array") and len(set(map(_identity, instance))) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _identity(value: Any) -> Hashable:
    """Equal for values that JSON Schema calls equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return dict, frozenset((k, _identity(v)) for k, v in value.items())
    if isinstance(value, list):
        return list, tuple(map(_identity, value))
    return (bool, value) if isinstance(value, bool) else value


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
