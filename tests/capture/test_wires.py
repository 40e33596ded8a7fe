"""What holds for every wire: no body breaks one, and an answer that comes back is recognised."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ajet.capture.wires import Answer, ChatRequest, Refused, Wire
from ajet.capture.wires.anthropic import AnthropicMessages
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.capture.wires.responses import Responses
from ajet.messages import BadMessage, normalise, normalise_tools

from .served import events_of, identities, said, stream

FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "auto",
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    "stop": ["x"],
    "n": 1,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "be brief",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "rs_ab_0", "summary": [], "content": [{"type": "x", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "id": "fc_ab_1", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "2"}]},
    ],
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}, "verbosity": "low"},
    "include": ["reasoning.encrypted_content"],
    "previous_response_id": "resp_1",
    "max_output_tokens": 9,
    "parallel_tool_calls": False,
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "system": [{"type": "text", "text": "be brief"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": [1]}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "2"}]}
            ],
        },
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"format": {"type": "json_schema", "schema": {}}},
    "stop_sequences": ["x"],
    "max_tokens": 9,
    "stream": True,
}
COMPLETIONS: dict[str, Any] = {
    "model": "m",
    "prompt": [[1, 2]],
    "logprobs": 1,
    "best_of": 1,
    "stop": "x",
    "stream_options": {"include_usage": True},
    "seed": 3,
}
BODIES = (CHAT, RESPONSES, MESSAGES, COMPLETIONS)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**300, -1, 2**63, 1e308, float("nan"), float("inf"), 1.5])
    | st.sampled_from(["", "auto", "text", "function", "user", "assistant", "tool", "\ud800", "\n", "image"])
    | st.text(max_size=5)
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
every_wire = pytest.mark.parametrize("wire", BUILTIN_WIRES, ids=lambda w: w.path)
quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, held in inner for place in places(held, (*at, key)))]


@st.composite
def bodies(draw: st.DrawFn) -> Any:
    """A valid body of some dialect in which a few values are anything, missing or in other places."""
    body = copy.deepcopy(draw(st.sampled_from(BODIES)))
    for _ in range(draw(st.integers(0, 3))):
        *above, key = draw(st.sampled_from([p for p in places(body) if p]))
        holder = body
        for step in above:
            holder = holder[step]
        if draw(st.booleans()):
            holder[key] = draw(anything)
        else:
            del holder[key]
    if draw(st.booleans()):
        body[draw(st.text(max_size=5) | st.sampled_from([k for b in BODIES for k in b]))] = draw(anything)
    return body


def answered(wire: Wire, body: bytes) -> None:
    """A body is refused in one line, or understood and answered, whole and streamed."""
    try:
        request = wire.parse(body)
    except Refused as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
        str(error).encode()
        json.dumps(wire.error(error))
        return
    assert isinstance(request, ChatRequest)
    try:
        normalise_tools(request.tools)
        for index, message in enumerate(request.messages):
            normalise(message, index)
    except BadMessage:
        return
    answers = [said("hi", "hm")] * request.n
    json.dumps(wire.reply(request, answers, "aa01"))
    assert stream(wire, request, answers, "aa01")
    assert stream(wire, request, Refused("no", code="engine_error"), "aa01")


@every_wire
@quick
@given(body=bodies() | anything)
def test_every_body_is_refused_or_understood(wire: Wire, body: Any) -> None:
    answered(wire, json.dumps(body).encode())


@every_wire
@quick
@given(body=st.binary(max_size=50))
def test_every_text_is_refused_or_understood(wire: Wire, body: bytes) -> None:
    answered(wire, body)


@every_wire
@pytest.mark.parametrize("depth", [400, 900, 100_000])
def test_deep_nesting_is_refused_or_understood(wire: Wire, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    answered(wire, deep)
    for body in BODIES:
        for key in body:
            rest = json.dumps(body | {key: "HERE"}).encode()
            answered(wire, rest.replace(b'"HERE"', b'{"a": ' + deep + b"}"))
    messages = (
        b'{"max_tokens": 9, "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", '
    )
    answered(wire, messages + b'"name": "f", "input": {"a": ' + deep + b"}}]}]}")


# --------------------------------------------------------------------------- identity

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.none() | st.integers() | st.floats(allow_nan=False) | texts
arguments = st.dictionaries(texts, st.recursive(values, st.lists, max_leaves=4), max_size=3)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": json.dumps(found)}}
        for i, found in enumerate(draw(st.lists(arguments, max_size=2)))
    ]
    return said(draw(texts), draw(st.none() | texts), calls)


def as_input(wire: Wire, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """A request that sends replies back."""
    if isinstance(wire, Responses):
        return {"input": [item for reply in outputs for item in reply["output"]]}
    messages = [{"role": "assistant", "content": reply["content"]} for reply in outputs]
    return {"messages": messages, "max_tokens": 1}


def streamed(wire: Wire, request: ChatRequest, answer: Answer, reply_id: str) -> dict[str, Any]:
    """The reply that a stream's events tell of."""
    events = events_of(stream(wire, request, [answer], reply_id))
    if isinstance(wire, Responses):
        return {"output": [e["item"] for e in events if e["type"] == "response.output_item.done"]}
    blocks: list[dict[str, Any]] = []
    arguments = ""
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            arguments = ""
        elif event["type"] == "content_block_delta":
            for key, value in event["delta"].items():
                if key in ("text", "thinking", "signature"):
                    blocks[-1][key] += value
            arguments += event["delta"].get("partial_json", "")
        elif event["type"] == "content_block_stop" and arguments:
            blocks[-1]["input"] = json.loads(arguments)
    return {"content": blocks}


@pytest.mark.parametrize("wire", [Responses(), AnthropicMessages()], ids=lambda w: w.path)
@quick
@given(given=st.lists(answers(), min_size=1, max_size=3), thinking=st.booleans())
def test_answers_that_come_back_are_recognised(wire: Wire, given: list[Answer], thinking: bool) -> None:
    extra = {"thinking": {"type": "enabled"}} if thinking and isinstance(wire, AnthropicMessages) else {}
    first = {"input": "hi", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **extra}
    drop = "messages" if isinstance(wire, Responses) else "input"
    if isinstance(wire, Responses):
        first.pop("max_tokens")
    request = wire.parse(json.dumps({k: v for k, v in first.items() if k != drop}).encode())
    ids = [f"{i}a" for i in range(len(given))]
    whole = [wire.reply(request, [a], i) for a, i in zip(given, ids, strict=True)]
    told = [streamed(wire, request, a, i) for a, i in zip(given, ids, strict=True)]
    for outputs in (whole, told):
        heard = wire.parse(json.dumps(as_input(wire, outputs)).encode()).messages
        assert identities(heard) == identities([a.message for a in given])
