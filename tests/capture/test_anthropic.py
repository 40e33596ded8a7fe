"""The Anthropic wire: what its requests mean, and that the real SDK reads its replies and streams."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from ajet.capture.wires.anthropic import AnthropicMessages
from ajet.interfaces.wire import Refused

from .served import CALL, CALL_2, Served, events_of, identities, said

TOOL: Any = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
CHAT_TOOL = {"type": "function", "function": {"name": "add", "parameters": TOOL["input_schema"]}}
USER: Any = {"role": "user", "content": "1 + 1?"}
RESULTS: list[Any] = [{"type": "tool_result", "tool_use_id": c["id"], "content": "2"} for c in (CALL, CALL_2)]
TOOLS = [{"role": "tool", "tool_call_id": c["id"], "content": "2"} for c in (CALL, CALL_2)]
TURN = said("I add.", "hm", [CALL, CALL_2])
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


def parse(**body: Any) -> Any:
    given = {"model": "m", "max_tokens": 99, "messages": [USER], **body}
    return AnthropicMessages().parse(json.dumps(given).encode())


def ask(server: Served, stream: bool, messages: list[Any], **options: Any) -> Any:
    options = {"model": "m", "max_tokens": 99, "messages": messages, **options}
    if not stream:
        return server.anthropic.messages.create(**options)
    with server.anthropic.messages.stream(**options) as events:
        return events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_comes_back_as_the_message_that_was_recorded(stream) -> None:
    server = Served(AnthropicMessages(), TURN, said("2"))
    first = ask(server, stream, [USER], tools=[TOOL], thinking=THINKING)
    assert [b.type for b in first.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert first.content[0].thinking == "hm" and first.content[0].signature
    assert first.content[2].input == {"a": 1, "b": 2.5} and first.stop_reason == "tool_use"
    again = [USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": RESULTS}]
    second = ask(server, stream, again, tools=[TOOL], thinking=THINKING)
    assert server.heard() == identities([USER, TURN.message, *TOOLS])
    assert server.requests[-1].messages[1]["reasoning_content"] == "hm"
    assert (second.content[0].text, second.stop_reason) == ("2", "end_turn")
    assert (second.usage.input_tokens, second.usage.output_tokens) == (7, 5)


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_stays_here_unless_it_is_asked_for(stream) -> None:
    server = Served(AnthropicMessages(), TURN)
    assert ask(server, stream, [USER]).content[0].text == "I add."


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_answer_says_so(stream) -> None:
    server = Served(AnthropicMessages(), said("half", cut=True))
    assert ask(server, stream, [USER]).stop_reason == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_the_stop_sequence_that_ended_an_answer_is_named(stream) -> None:
    server = Served(AnthropicMessages(), dataclasses.replace(said("so"), stop="END"))
    answer = ask(server, stream, [USER], stop_sequences=["STOP", "END"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "END")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [None, 0, 3])
def test_thinking_tokens_are_told_where_they_were_counted(stream, count) -> None:
    server = Served(AnthropicMessages(), dataclasses.replace(said("so", "hm"), reasoning_tokens=count))
    details = ask(server, stream, [USER]).usage.output_tokens_details
    assert (details and details.thinking_tokens) == count


@pytest.mark.filterwarnings("ignore:Pydantic serializer")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("arguments", ["[1]", "not JSON", '"text"', "", "{}"])
def test_arguments_that_are_no_object_come_back_as_they_were(stream, arguments) -> None:
    call = CALL | {"function": {"name": "add", "arguments": arguments}}
    server = Served(AnthropicMessages(), said(None, None, [call]), said("ok"))
    first = ask(server, stream, [USER])
    ask(
        server,
        stream,
        [USER, {"role": "assistant", "content": [b.to_dict(warnings=False) for b in first.content]}],
    )
    (heard,) = server.requests[-1].messages[1:]
    assert heard["tool_calls"][0]["function"]["arguments"] == (arguments or "{}")


def test_the_events_come_in_the_order_of_the_api() -> None:
    server = Served(AnthropicMessages(), said("ok", "hm", [CALL]))
    ask(server, True, [USER], thinking=THINKING)
    events = events_of(server.streams[0])
    told = [(e["type"], e.get("delta", {}).get("type")) for e in events if e["type"] != "ping"]
    start, stop = ("content_block_start", None), ("content_block_stop", None)
    delta = "content_block_delta"
    assert told == [
        ("message_start", None),
        *(start, (delta, "thinking_delta"), (delta, "signature_delta"), stop),
        *(start, (delta, "text_delta"), stop),
        *(start, (delta, "input_json_delta"), stop),
        *(("message_delta", None), ("message_stop", None)),
    ]
    assert [e["index"] for e in events if e["type"] == "content_block_start"] == [0, 1, 2]


def test_errors_are_the_sdks_own() -> None:
    server = Served(AnthropicMessages(), Refused("no room", code="context_length_exceeded"))
    with pytest.raises(anthropic.BadRequestError, match="ajet: no room") as caught:
        ask(server, False, [USER])
    assert caught.value.body["error"]["type"] == "invalid_request_error"


def test_a_failure_within_a_stream_raises_in_the_sdk() -> None:
    server = Served(AnthropicMessages(), Refused("the engine failed", code="engine_error"))
    with pytest.raises(anthropic.APIError, match="the engine failed"):
        ask(server, True, [USER])


def test_structured_output_reaches_the_sdk_parsed() -> None:
    class Sum(BaseModel):
        value: int

    server = Served(AnthropicMessages(), said('{"value": 2}'))
    client = server.anthropic
    found = client.messages.parse(model="m", max_tokens=9, messages=[USER], output_format=Sum)
    assert found.parsed_output == Sum(value=2)
    assert server.requests[0].json_schema["required"] == ["value"]


# --------------------------------------------------------------------------- requests


def test_system_and_texts_become_chat_messages() -> None:
    blocks = [{"type": "text", "text": "be ", "cache_control": {"type": "ephemeral"}}]
    blocks += [{"type": "text", "text": "brief"}]
    for system in ("be brief", blocks):
        parts = [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]
        for content in ("1 + 1?", parts):
            found = parse(system=system, messages=[USER | {"content": content}]).messages
            assert found == [{"role": "system", "content": "be brief"}, USER]


def test_tool_results_come_before_what_the_user_says_beside_them() -> None:
    text = {"type": "text", "text": "go on"}
    results = [RESULTS[0] | {"content": [{"type": "text", "text": "2"}]}, RESULTS[1] | {"is_error": True}]
    found = parse(messages=[{"role": "user", "content": [results[0], text, results[1]]}]).messages
    assert found == [*TOOLS, {"role": "user", "content": "go on"}]


def test_a_prefilled_answer_goes_on() -> None:
    messages = [USER, {"role": "assistant", "content": "The answer is"}]
    request = parse(messages=messages)
    assert request.messages == messages and request.continues
    assert not parse(messages=messages[:1]).continues


def test_tools_and_choices_are_those_of_chat_completions() -> None:
    assert parse(tools=[TOOL]).tools == [CHAT_TOOL]
    assert parse(tools=[TOOL | {"type": "custom", "cache_control": {}}]).tools == [CHAT_TOOL]
    none = parse(tools=[TOOL], tool_choice={"type": "none"})
    assert none.tools == [CHAT_TOOL] and not none.may_call
    assert parse(tools=[TOOL], tool_choice={"type": "any"}).must_call == ""
    assert parse(tools=[TOOL], tool_choice={"type": "tool", "name": "add"}).must_call == "add"
    auto = parse(tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert auto.must_call is None and auto.one_call


def test_the_other_parameters_are_read() -> None:
    request = parse(temperature=0.5, top_p=0.9, stop_sequences=["a", "b"], stream=True)
    assert (request.max_tokens, request.temperature, request.top_p) == (99, 0.5, 0.9)
    assert (request.stop, request.stream) == (("a", "b"), True)
    assert parse(metadata={"user_id": "u"}, service_tier="auto", output_config={"effort": "low"})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"top_k": 5}, "top_k"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, r'tools\[0\].type="bash_20250124"'),
        ({"tools": [TOOL | {"allowed_callers": ["x"]}]}, r"tools\[0\].allowed_callers"),
        (
            {
                "tools": [{"type": "web_search_20250305", "name": "web_search"}],
                "tool_choice": {"type": "tool", "name": "web_search"},
            },
            r'cannot honour tools\[0\].type="web_search_20250305" of',
        ),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            r'context_management.edits\[0\]={"type": "clear_tool_uses_20250919"}',
        ),
        (
            {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
            r"context_management.edits\[0\]",
        ),
        ({"tool_choice": {"type": "some"}}, 'tool_choice.type="some"'),
        ({"output_config": {"format": {"type": "x", "schema": {}}}}, 'output_config.format.type="x"'),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(body, named) -> None:
    with pytest.raises(Refused, match=named) as caught:
        parse(**body)
    assert caught.value.code == "unsupported_parameter"


@pytest.mark.parametrize(
    ("role", "block"),
    [
        ("assistant", {"type": "image", "source": {"type": "url", "url": "x"}}),
        ("assistant", {"type": "document", "source": {"type": "url", "url": "x"}}),
        ("user", {"type": "container_upload"}),
        ("assistant", {"type": "server_tool_use"}),
    ],
)
def test_content_that_a_text_model_cannot_take_is_refused(role, block) -> None:
    with pytest.raises(Refused, match=r"messages\[0\].content\[0\] type=") as caught:
        parse(messages=[{"role": role, "content": [block]}])
    assert caught.value.code == "unsupported_content"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"max_tokens": None}, "max_tokens must be given"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"messages": []}, "at least one"),
        ({"messages": [{"role": "tool", "content": ""}]}, "role must be"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_reference", "tool_name": "x"}]}]},
            'refers to the tool "x", which tools does not have',
        ),
    ],
)
def test_a_bad_request_gets_one_clear_line(body, said) -> None:
    with pytest.raises(Refused, match=said) as caught:
        parse(**body)
    assert caught.value.code == "invalid_request"
