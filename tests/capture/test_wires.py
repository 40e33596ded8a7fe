"""What holds for every wire: no body breaks one, and an answer that comes back is recognised."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections import Counter
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from ajet.capture.wires.anthropic import AnthropicMessages
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.capture.wires.chat_completions import ChatCompletions
from ajet.capture.wires.completions import Completions
from ajet.capture.wires.google import GenerateContent
from ajet.capture.wires.responses import Responses
from ajet.chat.messages import BadMessage, normalise, normalise_tools
from ajet.interfaces.wire import Answer, ChatRequest, Refused, Wire
from ajet.testing import ScriptedEngine
from tests.patience import PATIENCE
from tests.properties import drawn, examples
from tests.tiers import thinned

from ..plugins.programs import calling
from .doors import Door, behind, each_door
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
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
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
    "text": {
        "format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}},
        "verbosity": "low",
    },
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
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
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
CONTENTS: dict[str, Any] = {
    "systemInstruction": {"parts": [{"text": "be brief"}]},
    "contents": [
        {"role": "user", "parts": [{"text": "hi"}]},
        {
            "role": "model",
            "parts": [
                {"text": "hm", "thought": True, "thoughtSignature": "c2ln"},
                {"functionCall": {"id": "c", "name": "f", "args": {"a": [1]}}},
            ],
        },
        {"parts": [{"functionResponse": {"id": "c", "name": "f", "response": {"output": "2"}}}]},
    ],
    "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT", "nullable": True}}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
    "generationConfig": {
        "temperature": 0.5,
        "topK": 64,
        "stopSequences": ["x"],
        "responseMimeType": "application/json",
        "responseSchema": {"type": "OBJECT"},
        "thinkingConfig": {"includeThoughts": True},
    },
}
BODIES = (CHAT, RESPONSES, COMPLETIONS, MESSAGES, CONTENTS)  # in the order of the wires

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
quick = examples(150, suppress_health_check=list(HealthCheck))


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, held in inner for place in places(held, (*at, key)))]


NEEDED = ("model", "messages", "input", "prompt", "max_tokens", "contents")


@st.composite
def bodies(draw: st.DrawFn, *, of: Any = None) -> Any:
    """A valid body of some dialect in which a few values are anything, missing or in other places. ``of``:
    it asks for some of what this one asks for, and is answered more often than not."""
    body = copy.deepcopy(of or draw(st.sampled_from(BODIES)))
    if of:
        optional = [key for key in body if key not in NEEDED]
        for key in draw(st.sets(st.sampled_from(optional))) | {"previous_response_id"}:
            body.pop(key, None)
        body["stream"] = draw(st.booleans())
        if draw(st.booleans()):
            return body
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


@pytest.mark.parametrize(
    ("counts", "told"), [((3,), 3), ((0,), 0), ((3, 4), 7), ((3, None), None), ((None,), None)]
)
def test_reasoning_tokens_are_told_where_all_were_counted(counts: Any, told: int | None) -> None:
    wire = ChatCompletions()
    request = wire.parse(json.dumps(CHAT | {"n": len(counts)}).encode())
    answers = [dataclasses.replace(said("so", "hm"), reasoning_tokens=count) for count in counts]
    chunks = stream(wire, request, answers, "aa01").decode().split("\n\n")
    for usage in (
        wire.reply(request, answers, "aa01")["usage"],
        json.loads(chunks[-3].removeprefix("data: "))["usage"],
    ):
        assert usage.get("completion_tokens_details") == (
            None if told is None else {"reasoning_tokens": told}
        )


each_body = pytest.mark.parametrize(
    ("wire", "body"), list(zip(BUILTIN_WIRES, BODIES, strict=False)), ids=lambda x: getattr(x, "path", "")
)


@each_body
@pytest.mark.parametrize(
    "field",
    [{"do_sample": False}, {"thinking_budget": 0}, {"include_reasoning": False}, {"x": ""}, {"x": []}],
    ids=str,
)
def test_an_unknown_field_is_refused_whatever_its_value(wire: Wire, body: Any, field: Any) -> None:
    with pytest.raises(Refused, match=f"cannot honour {next(iter(field))} of") as caught:
        wire.parse(json.dumps(body | field).encode())
    assert caught.value.code == "unsupported_parameter"


@each_body
@pytest.mark.parametrize(
    "field", [{"x": None}, {"min_p": 0}, {"echo": False}, {"frequency_penalty": 0.0}, {"logit_bias": {}}]
)
def test_a_field_that_asks_for_nothing_is_accepted(wire: Wire, body: Any, field: Any) -> None:
    assert wire.parse(json.dumps(body | field).encode())


# --------------------------------------------------------------------------- over a door

SAID = ("yes", "", '{"a": 1}', calling("f", a=1.0), f"<think>\nhm\n</think>\n\na\n{calling('g')}")
SAID += ("<think>\nhm", "<tool_call>\n{", "\U0001f642 \n x y", "[" * 50)


def check_reply(wire: Wire, status: int, kind: str, text: str) -> None:
    """A reply is an error of the dialect or an answer, whole or as events that end as they should."""
    assert status in (200, 400, 401, 422), text
    assert "Traceback" not in text and 'File "' not in text
    if "event-stream" not in kind:
        whole = json.loads(text)
        assert isinstance(whole, dict)
        assert (whole.get("error") is None) == (status == 200)
        return
    blocks = text.split("\n\n")
    assert status == 200 and blocks.pop() == ""
    if blocks[-1] == "data: [DONE]":
        blocks.pop()
    elif isinstance(wire, ChatCompletions | Completions):
        assert json.loads(blocks[-1].removeprefix("data: "))["error"]
    elif isinstance(wire, GenerateContent):
        last = json.loads(blocks[-1].removeprefix("data: "))
        assert "error" in last or all("finishReason" in candidate for candidate in last["candidates"])
    else:
        last = events_of(text.encode())[-1]["type"]
        dialect = [f"response.{how}" for how in ("completed", "incomplete", "failed")]
        assert last in (dialect if isinstance(wire, Responses) else ["message_stop", "error"])
    for block in blocks:
        assert isinstance(json.loads(block.rpartition("data: ")[2]), dict)


@each_door
@every_wire
@pytest.mark.properties
@thinned
def test_fuzzed_requests_end_in_a_reply_of_the_dialect(bench, tokenizer, wire: Wire, door: Door) -> None:
    says = "yes"
    b = bench(ScriptedEngine(tokenizer, lambda request, prompt: says))
    own = next((body for body, like in zip(BODIES, BUILTIN_WIRES, strict=False) if like is wire), None)
    valid = {key: value for key, value in (own or {}).items() if key in NEEDED}
    found: Counter[tuple[int, bool]] = Counter()
    with b.session() as ended:
        pass
    with b.session() as session, behind(door, b) as url, httpx.Client(timeout=PATIENCE) as client:

        @drawn(100, suppress_health_check=list(HealthCheck))
        @given(
            body=st.one_of(*[bodies(of=own)] * 3, bodies(), anything).map(lambda v: json.dumps(v).encode())
            | st.binary(max_size=50),
            said=st.sampled_from(SAID),
            key=st.sampled_from([session.key] * 6 + ["", ended.key, session.key[:-1], "sk-guessed"]),
            place=st.sampled_from(["header", "path"]),
        )
        @example(json.dumps(valid).encode(), "yes", session.key, "header")
        @example(b"{}", "yes", session.key, "header")
        def check(body: bytes, said: str, key: str, place: str) -> None:
            nonlocal says
            says = said
            before = len(b.engine.requests)
            base = url.replace("/v1", f"/k/{key}/v1") if place == "path" and key else url
            headers = {"x-api-key": key} if place == "header" and key else {}
            response = client.post(f"{base}{wire.path.removeprefix('/v1')}", content=body, headers=headers)
            kind = response.headers["content-type"]
            check_reply(wire, response.status_code, kind, response.text)
            found[response.status_code, "event-stream" in kind] += 1
            if door == "gateway" and key != session.key:
                assert response.status_code == 401 and len(b.engine.requests) == before

        check()
        assert found[400, False] and (not own or found[200, True] + found[200, False]), found
        assert not session.counters["refused:internal_error"]
        assert not session.in_flight and not ended.record.exchanges


@each_door
def test_a_reply_of_another_episode_is_not_there_to_be_continued(bench, tokenizer, door: Door) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda request, prompt: "yes"))
    with b.session("one") as one, b.session("two") as two, behind(door, b) as url:

        def ask(key: str, **body: Any) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.post(f"{url}/responses", json={"model": "m", "input": "hi", **body}, headers=headers)

        reply = ask(one.key).json()["id"]
        assert ask(one.key, previous_response_id=reply).status_code == 200
        refused = ask(two.key, previous_response_id=reply)
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "previous_response_not_found"
    assert (len(one.record.calls), len(two.record.calls)) == (2, 0)


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
    if isinstance(wire, GenerateContent):
        return {"contents": [candidate["content"] for reply in outputs for candidate in reply["candidates"]]}
    messages = [{"role": "assistant", "content": reply["content"]} for reply in outputs]
    return {"messages": messages, "max_tokens": 1}


def streamed(wire: Wire, request: ChatRequest, answer: Answer, reply_id: str) -> dict[str, Any]:
    """The reply that a stream's events tell of."""
    if isinstance(wire, GenerateContent):
        blocks = stream(wire, request, [answer], reply_id).decode().split("\n\n")[:-1]
        told = [json.loads(block.removeprefix("data: "))["candidates"][0] for block in blocks]
        parts = [part for candidate in told for part in candidate["content"]["parts"]]
        return {"candidates": [{"content": {"role": "model", "parts": parts}}]}
    events = events_of(stream(wire, request, [answer], reply_id))
    if isinstance(wire, Responses):
        return {"output": [e["item"] for e in events if e["type"] == "response.output_item.done"]}
    content: list[dict[str, Any]] = []
    arguments = ""
    for event in events:
        if event["type"] == "content_block_start":
            content.append(event["content_block"])
            arguments = ""
        elif event["type"] == "content_block_delta":
            for key, value in event["delta"].items():
                if key in ("text", "thinking", "signature"):
                    content[-1][key] += value
            arguments += event["delta"].get("partial_json", "")
        elif event["type"] == "content_block_stop" and arguments:
            content[-1]["input"] = json.loads(arguments)
    return {"content": content}


@pytest.mark.parametrize("wire", [Responses(), AnthropicMessages(), GenerateContent()], ids=lambda w: w.path)
@quick
@given(given=st.lists(answers(), min_size=1, max_size=3), thinking=st.booleans())
def test_answers_that_come_back_are_recognised(wire: Wire, given: list[Answer], thinking: bool) -> None:
    extra = {"thinking": {"type": "enabled"}} if thinking and isinstance(wire, AnthropicMessages) else {}
    first: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **extra}
    if isinstance(wire, Responses):
        first = {"input": "hi"}
    elif isinstance(wire, GenerateContent):
        shown = {"generationConfig": {"thinkingConfig": {"includeThoughts": thinking}}}
        first = {"contents": [{"parts": [{"text": "hi"}]}], **shown}
    request = wire.parse(json.dumps(first).encode())
    ids = [f"{i}a" for i in range(len(given))]
    whole = [wire.reply(request, [a], i) for a, i in zip(given, ids, strict=True)]
    told = [streamed(wire, request, a, i) for a, i in zip(given, ids, strict=True)]
    for outputs in (whole, told):
        heard = wire.parse(json.dumps(as_input(wire, outputs)).encode()).messages
        assert identities(heard) == identities([a.message for a in given])


# --------------------------------------------------------------------------- a chat that ends with an assistant message

OPENAI = {
    "chat": (ChatCompletions(), "messages"),
    "responses": (Responses(), "input"),
}


def ending(kind: str, message: dict[str, Any], **body: Any) -> ChatRequest:
    """A request whose chat ends with an assistant message."""
    wire, field = OPENAI[kind]
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "It", **message}]
    return wire.parse(json.dumps({"model": "m", field: chat, **body}).encode())


@pytest.mark.parametrize("kind", OPENAI)
@pytest.mark.parametrize(
    ("message", "body", "continues"),
    [
        ({}, {}, False),
        ({}, {"continue_final_message": False, "add_generation_prompt": True}, False),
        ({"prefix": False}, {}, False),
        ({"prefix": True}, {}, True),
        ({}, {"continue_final_message": True}, True),
        ({}, {"continue_final_message": True, "add_generation_prompt": False}, True),
    ],
)
def test_an_answer_continues_the_last_message_where_the_request_says_so(
    kind: str, message: dict[str, Any], body: dict[str, Any], continues: bool
) -> None:
    assert ending(kind, message, **body).continues == continues


@pytest.mark.parametrize("kind", OPENAI)
@pytest.mark.parametrize(
    ("message", "body"),
    [
        ({}, {"continue_final_message": True, "add_generation_prompt": True}),
        ({"prefix": True}, {"add_generation_prompt": True}),
        ({}, {"add_generation_prompt": False}),
    ],
)
def test_a_request_for_neither_or_both_is_refused(kind: str, message: Any, body: Any) -> None:
    with pytest.raises(Refused, match="continue_final_message") as caught:
        ending(kind, message, **body)
    assert caught.value.code == "invalid_request"
