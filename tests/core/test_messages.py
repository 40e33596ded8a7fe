"""Messages as clients send them: normal form, and when two are the same."""

from __future__ import annotations

import copy
import itertools
import json
import timeit
from typing import Any

import pytest

from ajet.chat.messages import (
    BadMessage,
    canonical,
    canonical_tool_arguments,
    fingerprint,
    loose,
    normalise,
    normalise_tools,
)


def call(arguments: Any = "{}", *, id: Any = "c1", name: str = "add", **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def said(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": "hi", **fields}


CALLING: Any = {"role": "assistant", "content": None, "tool_calls": [call('{"a": 1}')]}

# ------------------------------------------------------------------ normal form


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        (said(), {"role": "user", "content": "hi"}),
        ({"role": "developer", "content": "hi"}, {"role": "system", "content": "hi"}),
        ({"role": "assistant"}, {"role": "assistant", "content": ""}),
        (said(content=None, name=None, refusal=None), {"role": "user", "content": ""}),
        (said(name="Ada"), {"role": "user", "content": "hi", "name": "Ada"}),
        (
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ),
        (
            {"role": "assistant", "content": "2", "reasoning": "hm"},
            {"role": "assistant", "content": "2", "reasoning_content": "hm"},
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": "no"},
        ),
        (said(content=[]), {"role": "user", "content": ""}),
        (
            said(
                content=[
                    {"type": "text", "text": "a"},
                    {"type": "input_text", "text": "b"},
                    {"type": "output_text", "text": "c"},
                ]
            ),
            {"role": "user", "content": "abc"},
        ),
        (CALLING, {"role": "assistant", "content": "", "tool_calls": [call('{"a": 1}')]}),
    ],
)
def test_a_message_is_brought_into_its_normal_form(message: Any, plain: Any) -> None:
    before = copy.deepcopy(message)
    assert normalise(message, 0) == plain
    assert message == before
    assert normalise(normalise(message, 0), 0) == plain, "which is its own normal form"


@pytest.mark.parametrize(
    ("given", "text"), [({"a": "ü"}, '{"a": "ü"}'), ("", ""), (None, ""), ("{not", "{not")]
)
def test_tool_arguments_are_text(given: Any, text: str) -> None:
    message = {"role": "assistant", "tool_calls": [call(given, index=0)]}
    assert normalise(message, 0)["tool_calls"] == [call(text)]


def test_the_normal_form_shares_nothing_with_the_clients_objects() -> None:
    message: Any = {"role": "assistant", "content": [], "tool_calls": [call({"a": [1]})]}
    before = copy.deepcopy(message)
    plain = normalise(message, 0)
    plain["tool_calls"][0]["function"]["name"] = "other"
    plain["tool_calls"].append(call())
    assert message == before


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": "https://x/y.png"}}, "image_url"),
        ({"type": "input_audio", "input_audio": {}}, "input_audio"),
        ({"type": "text"}, "text"),
        ("bare", "str"),
    ],
)
def test_a_part_that_is_not_text_is_refused_by_its_place_and_type(part: Any, kind: str) -> None:
    with pytest.raises(BadMessage, match=rf"messages\[3\]\.content has a part of type '{kind}'") as caught:
        normalise(said(content=[{"type": "text", "text": "see:"}, part]), 3)
    assert caught.value.code == "unsupported_content"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("given", [{"text": "hm"}, ["hm"], 1], ids=str)
def test_reasoning_that_is_not_text_is_refused_by_name(field: str, given: Any) -> None:
    with pytest.raises(BadMessage, match=r"messages\[3\] has reasoning of type ") as caught:
        normalise({"role": "assistant", "content": "2", field: given}, 3)
    assert caught.value.code == "unsupported_content"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("hi", r"messages\[1\] must be an object"),
        ({"content": "hi"}, r"messages\[1\]\.role is None; known: system"),
        ({"role": ["user"]}, r"messages\[1\]\.role is \['user'\]"),
        ({"role": "function"}, r"messages\[1\]\.role is 'function'"),
        (said(content=5), r"messages\[1\]\.content must be text"),
        (said(tool_calls=5), r"messages\[1\]\.tool_calls must be a list"),
        (said(tool_calls=["x"]), r"messages\[1\]\.tool_calls: each needs function.name"),
        (said(tool_calls=[{"function": {"name": 5}}]), r"each needs function.name"),
        (said(tool_calls=[call(5)]), r"arguments must be JSON text"),
    ],
)
def test_a_message_of_another_shape_is_refused_by_its_place(message: Any, reason: str) -> None:
    with pytest.raises(BadMessage, match=reason) as caught:
        normalise(message, 1)
    assert caught.value.code == "invalid_request"


def test_a_tool_without_parameters_takes_none() -> None:
    tools: Any = [
        {"type": "function", "function": {"name": "now"}},
        {"type": "function", "function": {"name": "then", "parameters": None, "strict": True}},
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "x": []}}},
    ]
    before = copy.deepcopy(tools)
    plain = normalise_tools(tools)
    nothing = {"type": "object", "properties": {}}
    assert [t["function"]["parameters"] for t in plain] == [nothing, nothing, {"type": "object", "x": []}]
    assert plain[1]["function"]["strict"] is True
    plain[2]["function"]["parameters"]["x"].append(1)
    assert tools == before


@pytest.mark.parametrize(
    "tool", [{}, "add", {"type": "function"}, {"type": "custom", "function": {"name": "a"}}]
)
def test_a_tool_that_is_no_function_is_refused_by_its_place(tool: Any) -> None:
    with pytest.raises(BadMessage, match=r"tools\[1\] must be"):
        normalise_tools([{"type": "function", "function": {"name": "a"}}, tool])


# ------------------------------------------------------------------ identity

DIFFERENT: list[Any] = [
    said(),
    said(content="ho"),
    said(content='["hi"]'),
    said(content=[{"type": "text", "text": '["hi"]'}, {"type": "text", "text": "x"}]),
    said(role="assistant"),
    said(name="Ada"),
    said(name="1"),
    said(name=True),
    said(name=1.0),
    said(tool_call_id="Ada"),
    said(content=None),
    said(tool_calls=[call()]),
    said(tool_calls=[call(id="c2")]),
    said(tool_calls=[call(name="sub")]),
    said(tool_calls=[call('{"a": 1}')]),
    said(tool_calls=[call({"a": 1.5})]),
    said(tool_calls=[call('{"a": "1"}')]),
    said(tool_calls=[call({"a": True})]),
    said(tool_calls=[call(), call()]),
]


def test_different_messages_have_different_fingerprints_and_canonical_texts() -> None:
    assert len({fingerprint(m) for m in DIFFERENT}) == len(DIFFERENT)
    assert len({canonical(normalise(m, 0)) for m in DIFFERENT}) == len(DIFFERENT)


SAME: list[Any] = [
    CALLING,
    {**CALLING, "content": ""},
    {**CALLING, "content": [{"type": "text", "text": ""}]},
    {**CALLING, "reasoning_content": "hm"},
    {**CALLING, "tool_calls": [call('{"a":1}')]},
    {**CALLING, "tool_calls": [call({"a": 1}, index=0)]},
    {**CALLING, "tool_calls": (call('{"a": 1}'),), "refusal": None},
    {**CALLING, "name": "solver"},
    {**CALLING, "tool_calls": [call('{"a": 1.0}')]},
    {**CALLING, "tool_calls": [call({"a": 1.0})]},
]


@pytest.mark.parametrize("message", SAME)
def test_a_message_said_otherwise_has_the_same_canonical_text(message: Any) -> None:
    assert canonical(normalise(message, 0)) == canonical(normalise(CALLING, 0))


@pytest.mark.parametrize("content", ["hi", [{"type": "text", "text": "hi"}], None])
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_an_answer_with_other_thoughts_is_another_in_whatever_form(content: Any, name: str) -> None:
    thinking = [said(role="assistant", content=content, **{name: text}) for text in ("a", "b", "")]
    assert len({fingerprint(message) for message in thinking}) == 3


def test_equal_fingerprints_are_equal_messages() -> None:
    for one, two in itertools.combinations([*DIFFERENT, *SAME], 2):
        if fingerprint(one) == fingerprint(two):
            assert canonical(normalise(one, 0)) == canonical(normalise(two, 0))


def test_reasoning_is_no_part_of_identity() -> None:
    thinking = said(reasoning_content="hm")
    assert fingerprint(thinking) == fingerprint(said())
    assert canonical(normalise(thinking, 0)) == canonical(said())


@pytest.mark.parametrize("calls", [5, "x", ["x"], [{}], [{"id": "c", "function": 1}], {"a": 1}, [call([])]])
def test_even_a_message_of_another_shape_has_a_fingerprint(calls: Any) -> None:
    assert hash(fingerprint(said(tool_calls=calls))) != hash(fingerprint(said()))
    assert hash(fingerprint(said(role={}, content={"a": []}, name=[])))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (said(content=" hi\n"), said()),
        (
            said(role="assistant", content="<think>\nhm\n</think>\n\nhi"),
            said(role="assistant"),
        ),
        (said(tool_calls=[call(id="c2")]), said(tool_calls=[call()])),
        (said(tool_calls=[call('{"a":1}')]), said(tool_calls=[call('{"a": 1}')])),
        (said(tool_call_id="c2"), said(tool_call_id="c1")),
    ],
)
def test_loosely_the_same(one: Any, two: Any) -> None:
    assert loose(one) == loose(two) and canonical(normalise(one, 0)) != canonical(said(content="ho"))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (said(content="h i"), said()),
        (said(role="assistant"), said()),
        (said(name="Ada"), said()),
        (said(tool_calls=[call(name="sub")]), said(tool_calls=[call()])),
        (said(tool_calls=[call('{"a": 2}')]), said(tool_calls=[call('{"a": 1}')])),
        (said(content="<think>hi"), said(content="")),
        (said(content="<think>hm</think>hi"), said()),
    ],
)
def test_not_even_loosely_the_same(one: Any, two: Any) -> None:
    assert loose(one) != loose(two)


@pytest.mark.parametrize("text", ["\ud83d", "\x00", "日本"])
def test_identity_texts_can_be_encoded_whatever_was_said(text: str) -> None:
    message = said(content=text, tool_calls=[call(json.dumps({"a": text}))])
    assert canonical(message).encode() and loose(message).encode()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"b": 1,  "a": [1, 2]}', '{"a":[1,2],"b":1}'),
        ({"b": 1, "a": [1, 2]}, '{"a":[1,2],"b":1}'),
        ('{"a": "\\u00fc"}', '{"a":"ü"}'),
        ("", ""),
        ("{not json", "{not json"),
        ("[" * 100_000, "[" * 100_000),
        ('{"a": [1.0, -0.0, 2e3, 1.50, -7]}', '{"a":[1,0,2000,1.5,-7]}'),
        ('{"a": true, "b": "1.0"}', '{"a":true,"b":"1.0"}'),
        ("1" * 400, "1" * 400),
        ("1e999", "Infinity"),
    ],
)
def test_tool_arguments_have_one_spelling(arguments: Any, text: str) -> None:
    assert canonical_tool_arguments(arguments) == text


@pytest.mark.parametrize(
    ("sampled", "sent_back"),
    [
        ("1.0", "1"),
        ("-0.0", "0"),
        ("12345678901234567890", "12345678901234567000"),
        ("9007199254740993", "9007199254740992"),
        ("1000000000000000000000", "1e+21"),
        ("1E-7", "1e-7"),
        ("0.1e1", "1"),
        ("123456789.123456789123", "123456789.12345679"),
    ],
)
def test_a_number_that_javascript_writes_again_is_the_same(sampled: str, sent_back: str) -> None:
    assert canonical_tool_arguments(sampled) == canonical_tool_arguments(sent_back)


def test_a_fingerprint_costs_next_to_nothing() -> None:
    # 0.4 and 0.9 µs here; json.dumps alone takes 2.
    for message, limit in ((said(content="word " * 1000), 5e-6), (CALLING, 10e-6)):
        once = min(timeit.repeat(lambda m=message: fingerprint(m), number=1000, repeat=5)) / 1000  # type: ignore[misc]
        assert once < limit
