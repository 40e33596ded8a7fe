"""JSON schemas of clients: they say what the standard says, and no schema takes long."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ajet.capture.json_schema import MOST_NODES, BadSchema, make_schema

NAME = {"type": "string", "pattern": "^[a-z]+$"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        NAME,
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": NAME},
        {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        {"patternProperties": {"^x": {"type": "integer"}, "1$": {"minimum": 1}}},
        {"properties": {"a": {}}, "unevaluatedProperties": False},
        {"propertyNames": NAME},
        {"items": {"type": "integer"}, "uniqueItems": True},
        {"uniqueItems": True},
        {"unevaluatedItems": False, "allOf": [{"prefixItems": [{}]}]},
        {"prefixItems": [{"type": "integer"}], "items": False},
        {"contains": {"const": 1}, "maxContains": 1},
        {"enum": ["a", 1, [1, 2]]},
        {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}},
        {"$ref": "#leaf", "$defs": {"n": {"$anchor": "leaf", "type": "integer"}}},
        {"if": {"type": "integer"}, "then": {"minimum": 2}, "else": NAME},
        {"dependentRequired": {"a": ["b"]}, "not": {"type": "null"}},
        {"properties": {"pattern": {"type": "string"}, "$schema": {"type": "integer"}}},
    ],
    ids=str,
)
def test_a_value_fits_where_the_standard_says_so(schema: dict[str, Any]) -> None:
    values: list[Any] = [
        *(None, 1, 2, "a", "A1", [], [1], [1, 2], [1, 1], [[]], {}, {"a": 1}, {"a": "b"}, {"a": 1, "b": 2}),
        *({"x1": 1}, {"x1": 0}, {"x1": "a"}, {"B": 1}, {"pattern": 1}, {"$schema": "a"}, [1, 2, 3]),
        *(
            [1, True],
            [1, 1.0],
            [{"a": 1}, {"a": True}],
            [{"a": [1], "b": 2}, {"b": 2.0, "a": [1]}],
            [None, 0, False],
        ),
    ]
    ready, reference = make_schema(schema), Draft202012Validator(schema)
    assert [ready.fault(v) is None for v in values] == [reference.is_valid(v) for v in values]


def test_a_fault_says_where_and_what() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": NAME}}}
    assert make_schema(schema).fault({"a": ["b", "C"]}) == ("$.a[1]", "'C' does not match '^[a-z]+$'")


def test_regular_expressions_take_time_linear_in_the_text() -> None:
    text = "a" * 60 + "!"  # 2 to the 60th steps for who goes back and tries again
    for schema, value in (
        ({"pattern": "^(a+)+$"}, text),
        ({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, {text: 1}),
        ({"propertyNames": {"pattern": "^(a|a)*$"}}, {text: 1}),
        # Another dialect below would bring its own, unbounded validator.
        ({"allOf": [{"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}]}, text),
    ):
        assert make_schema(schema).fault(value) is not None


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"pattern": "(?=a)b"}, r"pattern '\(\?=a\)b' cannot be used: .*RE2"),
        ({"items": {"pattern": r"(a)\1"}}, "cannot be used"),
        ({"patternProperties": {"(": {}}}, "cannot be used"),
        ({"pattern": "a\ud800"}, "cannot be used"),
        ({"pattern": "a{1,1000}" * 1000}, "too large"),
        ({"type": "nothing"}, "not a valid JSON schema: 'nothing'"),
        ({"unevaluatedProperties": False, "patternProperties": {"a": {}}}, "both unevaluatedProperties"),
        ({"unevaluatedProperties": False, "dependentSchemas": {"a": {}}}, "Properties and dependentSchemas"),
        ({"unevaluatedProperties": False, "$dynamicRef": "#"}, r"unevaluatedProperties and \$dynamicRef"),
        ({"unevaluatedItems": False, "if": {}}, "both unevaluatedItems and if here; leave one of them out"),
        ({"type": [True, *range(2, 9_000)]}, "not a valid JSON schema"),
        ({"properties": {f"p{n}": {} for n in range(MOST_NODES)}}, "parts; at most"),
        ({"description": "a" * (1 << 19)}, "characters; at most"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_schema_that_cannot_be_applied_is_refused_when_it_is_read(schema: Any, reason: str) -> None:
    with pytest.raises(BadSchema, match=reason):
        make_schema(schema)


@pytest.mark.parametrize("levels", [200, 5_000])
def test_a_schema_that_is_nested_too_deeply_is_refused(levels: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    with pytest.raises(BadSchema, match="nested more than"):
        make_schema(schema)


def doubling(levels: int, last: dict[str, Any] | None = None) -> dict[str, Any]:
    """A schema whose references double at every level, to ``last`` in the end."""
    defs: dict[str, Any] = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{levels}": last or {"type": "string"}}}


def test_a_check_ends_after_so_many_steps_whatever_the_schema_says() -> None:
    assert make_schema(doubling(5)).fault("a") is None
    anchors = {f"d{n}": {"$anchor": f"x{n}"} for n in range(2_000)}
    next_ = [{"$ref": f"#/$defs/a{n + 1}"} for n in range(40)]
    both = {**{f"a{n}": {**ref, "allOf": [ref]} for n, ref in enumerate(next_)}, "a40": {}}
    for schema, value in (
        (doubling(60), "a"),
        (doubling(11, {f"unknown{n}": 1 for n in range(9_000)}), 1),
        ({"unevaluatedProperties": False, "$ref": "#/$defs/a0", "$defs": both}, {"a": 1}),
        ({"anyOf": [{"type": "string"}] * 1_000}, {"a": "x" * 40_000}),
        ({"items": {"$ref": "#x7"}, "$defs": anchors}, [1] * 1_000),
        ({"items": {"enum": [[n] for n in range(2_000)]}}, [[1_999]] * 1_000),
        (
            {"allOf": [{"patternProperties": {f"a{n}$": {} for n in range(1_000)}}]},
            {f"{n}": 1 for n in range(1_000)},
        ),
    ):
        with pytest.raises(BadSchema, match="takes more than"):
            make_schema(schema).fault(value)


@pytest.mark.parametrize("reference", ["#", "#/$defs/none", "http://elsewhere/schema"])
def test_a_reference_that_leads_nowhere_or_in_circles_is_named_when_it_is_followed(reference: str) -> None:
    with pytest.raises(BadSchema, match="cannot be applied"):
        make_schema({"$ref": reference}).fault("a")


def test_a_large_answer_is_checked_to_its_end() -> None:
    fields = {"a": {"type": "string"}, "b": {"enum": [1, 2]}, "c": {"minimum": 0}}
    schema = {"type": "array", "items": {"type": "object", "properties": fields, "required": [*fields]}}
    rows = [{"a": "x", "b": 1, "c": n} for n in range(3_000)]
    assert make_schema(schema).fault(rows) is None
    assert make_schema(schema).fault([*rows, {"a": 1, "b": 1, "c": 1}]) == (
        "$[3000].a",
        "1 is not of type 'string'",
    )


def test_that_items_are_unique_costs_no_more_than_the_items_whatever_they_are() -> None:
    unique = make_schema({"uniqueItems": True})
    assert unique.fault([True, *range(2, 20_000)]) is None
    assert unique.fault([{"a": n} for n in range(5_000)]) is None
    assert unique.fault([{"a": 1}, *range(5_000), {"a": 1.0}]) is not None


def test_an_error_is_paid_for_once_however_deep_its_place_is() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        schema = {"allOf": [schema]}
    assert make_schema(schema).fault({"a": ["b"] * 10_000}) is not None
