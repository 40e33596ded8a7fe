"""JSON schemas of clients: no schema takes long, and an error names the place."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.capture.json_schema import MOST_NODES, BadSchema, make_schema
from tests.properties import examples

NAME = {"type": "string", "pattern": "^[a-z]+$"}


@pytest.mark.parametrize(
    ("schema", "fits", "misfits"),
    [
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": NAME}, {"b": "x"}, {"b": "X"}),
        (
            {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
            {"x": 1},
            {"a": 1},
        ),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1}, {"b": 1}),
        ({"unevaluatedProperties": False, "if": {"properties": {"a": {"const": 1}}}}, {"a": 1}, {"a": 2}),
        ({"unevaluatedItems": False, "allOf": [{"prefixItems": [{}]}]}, [1], [1, 2]),
        ({"propertyNames": NAME}, {"a": 1}, {"A": 1}),
        ({"uniqueItems": True}, [1, True, {"a": 1}], [{"a": [1], "b": 2}, {"b": 2.0, "a": [1]}]),
        (
            {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}},
            [[], [[]]],
            [[1]],
        ),
        ({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "integer"}}}, 1, "a"),
        ({"type": "array", "prefixItems": [{"$ref": "#"}]}, [[[]]], [[1]]),
        ({"if": {"type": "integer"}, "then": {"minimum": 2}, "else": NAME}, 2, 1),
        ({"dependentRequired": {"a": ["b"]}, "not": {"type": "null"}}, {"b": 1}, {"a": 1}),
        ({"properties": {"pattern": NAME, "$schema": {"type": "integer"}}}, {"$schema": 1}, {"$schema": "a"}),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://a.b/c", "type": "string"},
            "a",
            1,
        ),
    ],
    ids=str,
)
def test_a_value_fits_where_the_standard_says_so(schema: dict[str, Any], fits: Any, misfits: Any) -> None:
    ready = make_schema(schema)
    assert ready.fault(fits) is None and ready.fault(misfits) is not None


def test_a_fault_says_where_and_what() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": NAME}}}
    assert make_schema(schema).fault({"a": ["b", "C"]}) == ("$.a[1]", '"C" does not match "^[a-z]+$"')


def test_regular_expressions_take_time_linear_in_the_text() -> None:
    text = "a" * 60 + "!"  # 2 to the 60th steps for who goes back and tries again
    for schema, value in (
        ({"pattern": "^(a+)+$"}, text),
        ({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, {text: 1}),
        ({"propertyNames": {"pattern": "^(a|a)*$"}}, {text: 1}),
    ):
        assert make_schema(schema).fault(value) is not None


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"pattern": "(?=a)b"}, r"pattern '\(\?=a\)b' cannot be used: .*lookaround"),
        ({"items": {"pattern": r"(a)\1"}}, "cannot be used"),
        ({"patternProperties": {"(": {}}}, "cannot be used"),
        ({"pattern": "a\ud800"}, "cannot be used"),
        ({"pattern": "a{1,1000}" * 1000}, "too large"),
        ({"patternProperties": {f"(a{{500}}){{{n}}}": {} for n in range(20, 40)}}, "patterns are too large"),
        ({"type": "nothing"}, r'not a valid JSON schema at \$.type: "nothing"'),
        ({"properties": {"a": {"minimum": "b"}}}, r"at \$.properties.a.minimum"),
        ({"type": [True, *range(2, 9_000)]}, "not a valid JSON schema"),
        ({"properties": {f"p{n}": {} for n in range(MOST_NODES)}}, "parts; at most"),
        ({"description": "a" * (1 << 19)}, "characters; at most"),
        ({"$ref": "#/$defs/none"}, "'/\\$defs/none' does not exist"),
        (
            {"$ref": "http://elsewhere/schema"},
            "refers to 'http://elsewhere/schema'; it can refer only to parts",
        ),
        ({"$ref": "file:///etc/passwd"}, "only to parts of itself"),
        ({"items": {"$dynamicRef": "#a"}}, r"cannot have \$dynamicRef here"),
        (
            {"allOf": [{"$id": "http://a/b", "$schema": "http://json-schema.org/draft-07/schema#"}]},
            r"\$id here",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_schema_that_cannot_be_applied_is_refused_when_it_is_read(schema: Any, reason: str) -> None:
    with pytest.raises(BadSchema, match=reason):
        make_schema(schema)


@pytest.mark.parametrize("levels", [300, 5_000])
def test_a_schema_that_is_nested_too_deeply_is_refused(levels: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    with pytest.raises(BadSchema, match=r"Recursion limit|nested too deeply"):
        make_schema(schema)


def doubling(levels: int, last: dict[str, Any], by: str = "allOf") -> dict[str, Any]:
    """A schema whose references double at every level, to ``last`` in the end."""
    defs: dict[str, Any] = {f"a{n}": {by: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{levels}": last}}


def nested(levels: int, value: Any) -> Any:
    for _ in range(levels):
        value = {"x": value}
    return value


def test_a_check_ends_after_so_many_steps_whatever_the_schema_says() -> None:
    assert make_schema(doubling(5, {"type": "string"})).fault("a") is None
    twice = {"allOf": [{"$ref": "#/$defs/a"}] * 2, "$defs": {"a": {"properties": {"x": {"$ref": "#"}}}}}
    for schema, value in (
        (doubling(60, {"type": "string"}), "a"),
        (doubling(60, {"type": "string"}, "anyOf"), 1),
        (doubling(11, {f"unknown{n}": 1 for n in range(9_000)}), 1),
        (twice, nested(40, 1)),
        ({**twice, "unevaluatedProperties": False}, nested(10, {"y": 1})),
        ({"items": {"enum": [[n] for n in range(2_000)]}}, [[1_999]] * 1_000),
        ({"items": {"required": [f"{n}" for n in range(4_000)]}}, [{}] * 1_000),
        ({"pattern": "(a|b)*a(a|b){3000}c"}, "ab" * 2_000),
        (
            {"allOf": [{"patternProperties": {f"a{n}$": {} for n in range(1_000)}}]},
            {f"{n}": 1 for n in range(1_000)},
        ),
    ):
        with pytest.raises(BadSchema, match="takes more than"):
            make_schema(schema).fault(value)


def test_a_schema_whose_reading_follows_too_many_references_is_refused() -> None:
    with pytest.raises(BadSchema, match="may have 16 references"):
        make_schema({**doubling(24, {}), "unevaluatedProperties": False})


def test_of_alternatives_that_are_too_large_to_be_explained_none_is_named() -> None:
    assert make_schema(doubling(4, {"type": "string"}, "anyOf")).fault(1) == (
        "$",
        "1 is not valid under any of the schemas listed in the 'anyOf' keyword",
    )
    fault = make_schema({"anyOf": [{"type": "string"}] * 100}).fault({"a": "x" * 20_000})
    assert fault and "too large to say where" in fault[1]


def test_a_reference_in_circles_is_named_when_it_is_followed() -> None:
    with pytest.raises(BadSchema, match="in circles"):
        make_schema({"$ref": "#"}).fault("a")


KEYWORDS = st.sampled_from(
    [
        "allOf",
        "anyOf",
        "not",
        "if",
        "then",
        "dependentSchemas",
        "$ref",
        "properties",
        "patternProperties",
        "items",
        "x",
        "a",
        "additionalProperties",
        "unevaluatedProperties",
        "propertyNames",
        "contains",
        "unevaluatedItems",
        "prefixItems",
        "uniqueItems",
        "required",
        "dependencies",
        "additionalItems",
        "enum",
        "const",
        "pattern",
        "type",
        "$defs",
        "$id",
    ]
)
ANY = st.recursive(
    st.sampled_from([None, True, 1, 2.5, "a", "#", "#/x", "#/x/0", "#/x/a", "^a+$", "object"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYWORDS, below, max_size=4),
    max_leaves=12,
)


@examples(300)
@given(ANY, ANY)
def test_whatever_a_schema_refers_to_it_is_applied_or_refused(schema: Any, value: Any) -> None:
    with contextlib.suppress(BadSchema):
        make_schema({"$ref": "#/x", "x": schema}).fault(value)


@pytest.mark.parametrize(
    "value", ["a\ud800", [float("nan")], 10**400, nested(300, 1)], ids=lambda v: str(v)[:20]
)
def test_a_value_that_json_hardly_has_does_not_end_the_check_in_another_error(value: Any) -> None:
    assert make_schema({"type": "boolean"}).fault(value) is not None


def test_a_large_answer_is_checked_to_its_end() -> None:
    fields = {"a": {"type": "string"}, "b": {"enum": [1, 2]}, "c": {"minimum": 0}}
    schema = {"type": "array", "items": {"type": "object", "properties": fields, "required": [*fields]}}
    rows = [{"a": "x", "b": 1, "c": n} for n in range(3_000)]
    assert make_schema(schema).fault(rows) is None
    fault = make_schema(schema).fault([*rows, {"a": 1, "b": 1, "c": 1}])
    assert fault == ("$[3000].a", '1 is not of type "string"')


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
