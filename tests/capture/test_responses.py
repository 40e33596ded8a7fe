"""The Responses wire: what its requests mean, and that the real SDK reads its replies and streams."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from ajet.capture.wires.responses import Responses, _logprobs
from ajet.interfaces.wire import Answer, Refused
from ajet.testing import ScriptedEngine

from .served import CALL, CALL_2, Served, events_of, identities, said

TOOL: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOL = {"type": "function", "function": {"name": "add", "parameters": TOOL["parameters"]}}
USER = {"role": "user", "content": "1 + 1?"}
OUTPUTS: list[Any] = [
    {"type": "function_call_output", "call_id": c["id"], "output": "2"} for c in (CALL, CALL_2)
]
TURN = said("I add.", "hm", [CALL, CALL_2])


def parse(**body: Any) -> Any:
    return Responses().parse(json.dumps({"model": "m", "input": "1 + 1?", **body}).encode())


def ask(server: Served, stream: bool, **options: Any) -> Any:
    if not stream:
        return server.openai.responses.create(model="m", **options)
    with server.openai.responses.stream(model="m", **options) as events:
        return events.get_final_response()


@pytest.mark.whole
@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_split_into_items_comes_back_as_the_message_that_was_recorded(stream) -> None:
    server = Served(Responses(), TURN, said("2"))
    first = ask(server, stream, input="1 + 1?", tools=[TOOL])
    assert [i.type for i in first.output] == ["reasoning", "message", "function_call", "function_call"]
    assert [i.call_id for i in first.output[2:]] == [CALL["id"], CALL_2["id"]]
    thought = first.output[0].model_dump()["content"][0]["text"]  # the oldest SDK knows no content there
    assert first.output_text == "I add." and thought == "hm"
    again = [i.model_dump(exclude_unset=True) for i in first.output]
    second = ask(server, stream, input=[USER, *again, *OUTPUTS], tools=[TOOL])
    tools = [{"role": "tool", "tool_call_id": c["id"], "content": "2"} for c in (CALL, CALL_2)]
    assert server.heard() == identities([USER, TURN.message, *tools])
    assert second.output_text == "2" and second.status == "completed"
    assert (second.usage.input_tokens, second.usage.output_tokens, second.usage.total_tokens) == (7, 5, 12)


def test_the_stream_ends_with_the_response_that_is_given_whole() -> None:
    request = parse(stream=True, instructions="be brief", metadata={"a": "b"}, tools=[TOOL])
    for answer in (
        TURN,
        said("text"),
        said(""),
        said("", "only thoughts", cut=True),
        said(None, None, [CALL]),
    ):
        server = Served(Responses(), answer)
        whole = Responses().reply(request, [answer], "aa01")
        server.transport.post("http://s/v1/responses", json={"stream": True, "input": "hi", **whole_body()})
        events = events_of(server.streams[0])
        assert events[-1]["response"] | {"created_at": 0} == whole | {"created_at": 0}
        assert [e["sequence_number"] for e in events] == list(range(len(events)))
        done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        assert done == whole["output"]
    assert whole["instructions"] == "be brief" and whole["metadata"] == {"a": "b"}


def whole_body() -> dict[str, Any]:
    return {"model": "m", "instructions": "be brief", "metadata": {"a": "b"}, "tools": [TOOL]}


@pytest.mark.whole
def test_the_events_come_in_the_order_of_the_api() -> None:
    server = Served(Responses(), said("ok", "hm", [CALL]))
    ask(server, True, input="hi")
    kinds = [e["type"].removeprefix("response.") for e in events_of(server.streams[0])]
    opened, closed = ["output_item.added", "content_part.added"], ["content_part.done", "output_item.done"]
    assert kinds == [
        *("created", "in_progress"),
        *(*opened, "reasoning_text.delta", "reasoning_text.done", *closed),
        *(*opened, "output_text.delta", "output_text.done", *closed),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_the_tokens_of_reasoning_are_told(stream) -> None:
    server = Served(Responses(), dataclasses.replace(said("so", "hm"), reasoning_tokens=3))
    usage = ask(server, stream, input="hi").usage
    assert (usage.output_tokens, usage.output_tokens_details.reasoning_tokens) == (5, 3)


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_answer_is_incomplete(stream) -> None:
    server = Served(Responses(), said("half", cut=True))
    events = list(server.openai.responses.create(model="m", input="hi", stream=True)) if stream else []
    response = events[-1].response if stream else ask(server, False, input="hi")
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == "half"


def test_a_failure_within_a_stream_raises_in_the_sdk() -> None:
    server = Served(Responses(), Refused("the engine failed", code="engine_error"))
    with pytest.raises(openai.APIError, match="the engine failed"):
        ask(server, True, input="hi")
    assert events_of(server.streams[0])[-1]["type"] == "response.failed"


def test_structured_output_reaches_the_sdk_parsed() -> None:
    class Sum(BaseModel):
        value: int

    server = Served(Responses(), said('{"value": 2}'))
    assert server.openai.responses.parse(model="m", input="hi", text_format=Sum).output_parsed == Sum(value=2)
    assert server.requests[0].json_schema["required"] == ["value"]


# --------------------------------------------------------------------------- requests


def test_instructions_and_input_become_chat_messages() -> None:
    parts = [{"type": "input_text", "text": "1 + "}, {"type": "input_text", "text": "1?"}]
    for given in ("1 + 1?", [USER], [USER | {"type": "message", "content": parts}]):
        assert parse(instructions="be brief", input=given).messages == [
            {"role": "system", "content": "be brief"},
            USER,
        ]


def test_tools_and_choices_are_those_of_chat_completions() -> None:
    null = TOOL | {"strict": None, "description": None}
    assert parse(tools=[null]).tools == [CHAT_TOOL]
    assert parse(tools=[TOOL | {"strict": True}]).tools[0]["function"]["strict"] is True
    none = parse(tools=[TOOL], tool_choice="none")
    assert none.tools == [CHAT_TOOL] and not none.may_call
    assert parse(tools=[TOOL], tool_choice="required").must_call == ""
    assert parse(tools=[TOOL], tool_choice={"type": "function", "name": "add"}).must_call == "add"
    assert parse(tools=[TOOL], parallel_tool_calls=False).one_call
    assert not parse(tools=[TOOL]).one_call


SYSTEM = {"role": "system", "content": "S"}
DEVELOPER = {"role": "developer", "content": "D"}
HI = {"role": "user", "content": "hi"}


def test_the_other_parameters_are_read() -> None:
    request = parse(
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        previous_response_id="resp_ab12",
        include=["message.output_text.logprobs"],
        text={"format": {"type": "json_object"}, "verbosity": "low"},
        reasoning={"effort": "low"},
        store=False,
        truncation="disabled",
    )
    assert (request.max_tokens, request.temperature, request.top_p) == (9, 0.5, 0.9)
    assert (request.after, request.logprobs, request.json_schema) == ("ab12", True, {})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"seed": 1}, "seed"),
        ({"truncation": "auto"}, 'truncation="auto"'),
        ({"top_logprobs": 3}, "top_logprobs=3"),
        ({"include": ["all"]}, 'include="all"'),
        ({"tools": [{"type": "computer_use_preview"}]}, r'tools\[0\].type="computer_use_preview"'),
        ({"tools": [TOOL | {"allowed_callers": ["programmatic"]}]}, r"tools\[0\].allowed_callers"),
        (
            {"tools": [{"type": "web_search"}], "tool_choice": "required"},
            r'cannot honour tools\[0\].type="web_search" of',
        ),
        ({"tools": [TOOL, {"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice="),
        ({"input": [{"type": "compaction", "encrypted_content": "gAAA"}]}, r'input\[0\].type="compaction"'),
        ({"input": [{"type": "configuration_update", "text": {"format": {}}}]}, r"input\[0\].text"),
        ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, "tool_choice="),
        ({"text": {"format": {"type": "grammar"}}}, 'text.format.type="grammar"'),
        ({"input": [{"type": "item_reference", "id": "x"}]}, r'input\[0\].type="item_reference"'),
        ({"input": [{"type": "computer_call"}]}, r'input\[0\].type="computer_call"'),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(body, named) -> None:
    with pytest.raises(Refused, match=named) as caught:
        parse(**body)
    assert caught.value.code == "unsupported_parameter"


def test_one_error_names_everything() -> None:
    with pytest.raises(Refused, match=r"background, conversation, .*computer"):
        parse(background=True, conversation="c", tools=[{"type": "computer"}])


@pytest.mark.parametrize(
    ("item", "named"),
    [
        (
            {"role": "user", "content": [{"type": "input_image", "file_id": "x"}]},
            "an image without image_url",
        ),
        ({"role": "assistant", "content": [{"type": "input_image", "image_url": "x"}]}, "input_image"),
        ({"role": "assistant", "content": [{"type": "input_file"}]}, "input_file"),
    ],
)
def test_content_that_a_text_model_cannot_take_is_refused(item, named) -> None:
    with pytest.raises(Refused, match=named) as caught:
        parse(input=[item])
    assert caught.value.code == "unsupported_content"


# --------------------------------------------------------------------------- turns


def message(text: str, item_id: str | None = None) -> dict[str, Any]:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return item | ({"id": item_id} if item_id else {})


def call(number: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "add", "arguments": "{}"}


def turns(*items: Any) -> list[tuple[Any, int]]:
    """(content, calls) of the assistant messages."""
    found = parse(input=[USER, *items]).messages
    return [(m["content"], len(m.get("tool_calls", ()))) for m in found if m["role"] == "assistant"]


def test_items_without_ids_are_one_turn_up_to_its_calls() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    assert turns(thought, message("a"), call(1), call(2)) == [("a", 2)]
    assert turns(thought, call(1), thought, call(2)) == [(None, 2)], "both calls still wait for outputs"
    assert turns(call(1), message("a")) == [("a", 1)], "a message between call and output would break a chat"
    assert turns(message("a"), message("b")) == [("a", 0), ("b", 0)]
    assert turns(message("a"), thought, message("b")) == [("a", 0), ("b", 0)]


def test_ids_of_our_replies_tell_turns_apart() -> None:
    assert turns(message("a", "msg_aa01_0"), message("b", "msg_bb02_0")) == [("a", 0), ("b", 0)]
    assert turns(message("a", "msg_aa01_0"), call(1) | {"id": "fc_bb02_0"}) == [("a", 0), (None, 1)]
    assert turns(message("a", "msg_aa01_0"), call(1) | {"id": "fc_aa01_1"}) == [("a", 1)]


@pytest.mark.parametrize(
    ("first", "second", "chat"),
    [
        ({"instructions": "A", "input": "hi"}, {"input": "more"}, ["hi", "ok", "more"]),
        (
            {"instructions": "A", "input": "hi"},
            {"instructions": "B", "input": "more"},
            ["B", "hi", "ok", "more"],
        ),
        ({"input": [SYSTEM, HI]}, {"instructions": "B", "input": "more"}, ["B", "S", "hi", "ok", "more"]),
        ({"input": [SYSTEM, HI]}, {"input": [DEVELOPER, HI]}, ["S", "hi", "ok", "D", "hi"]),
        ({"instructions": "A", "input": [SYSTEM, HI]}, {"input": "more"}, ["S", "hi", "ok", "more"]),
    ],
)
def test_instructions_hold_for_one_request_and_items_stay(
    bench: Any, tokenizer: Any, first: dict[str, Any], second: dict[str, Any], chat: list[str]
) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda request, prompt: "ok"))
    with b.session() as session:
        client = openai.OpenAI(api_key=session.key, base_url="http://closed.invalid/v1", max_retries=0)
        reply = client.responses.create(model="m", **first)
        client.responses.create(model="m", previous_response_id=reply.id, **second)
    assert [m["content"] for m in session.record.exchanges[-1].chat()[:-1]] == chat


def test_the_bytes_of_a_part_of_a_character_are_not_told() -> None:
    answer = Answer(
        {"role": "assistant", "content": "a"}, "stop", 1, 2, logprobs=(("a", -0.1), ("\ufffd", -0.2))
    )
    assert [part["bytes"] for part in _logprobs(answer)] == [[97], []]
