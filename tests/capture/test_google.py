"""Google's wire: what its requests mean, and that the real SDK reads its replies and streams."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import errors, types

from ajet.capture.respond import find_wire
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.capture.wires.google import GenerateContent, StreamGenerateContent
from ajet.interfaces.wire import Refused, TooLong
from ajet.testing import ScriptedEngine
from ajet.tracker.timelines import timelines
from tests.patience import PATIENCE

from ..plugins.programs import calling
from .doors import Door, behind, each_door, whole_and_streamed
from .served import CALL, CALL_2, Served, identities, said

SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION: Any = {"name": "add", "description": "adds", "parametersJsonSchema": SCHEMA}
CHAT_TOOL = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": SCHEMA}}
USER: Any = {"role": "user", "parts": [{"text": "1 + 1?"}]}
CHAT_USER = {"role": "user", "content": "1 + 1?"}
TURN = said("I add.", "hm", [CALL, CALL_2])
TOOLS = [{"role": "tool", "tool_call_id": c["id"], "content": "2"} for c in (CALL, CALL_2)]
THOUGHTS: Any = {"thinking_config": {"include_thoughts": True}}


def parse(**body: Any) -> Any:
    return GenerateContent("m").parse(json.dumps({"contents": [USER], **body}).encode())


def config(**settings: Any) -> Any:
    return parse(generationConfig=settings)


def response(call: Any, output: Any = "2", **fields: Any) -> Any:
    told = {"id": call["id"], "name": "add", "response": {"output": output}}
    return {"functionResponse": {k: v for k, v in (told | fields).items() if v is not None}}


def served(stream: bool, *script: Any) -> Served:
    return Served(StreamGenerateContent() if stream else GenerateContent(), *script)


def whole(chunks: Any) -> types.GenerateContentResponse:
    """A stream as one response, its parts together."""
    *first, last = chunks
    parts = [part for chunk in (*first, last) for part in chunk.candidates[0].content.parts]
    joined: list[types.Part] = []
    for part in parts:
        if part.text and joined and joined[-1].text and joined[-1].thought == part.thought:
            joined[-1].text += part.text
        elif part.text != "":
            joined.append(part)
    last.candidates[0].content.parts = joined
    return last  # type: ignore[no-any-return]


def ask(server: Served, stream: bool, contents: Any, **config: Any) -> types.GenerateContentResponse:
    options: Any = {"model": "m", "contents": contents, "config": config}
    if not stream:
        return server.google.models.generate_content(**options)
    return whole(server.google.models.generate_content_stream(**options))


# --------------------------------------------------------------------------- what the SDK reads


@whole_and_streamed
def test_a_turn_comes_back_as_the_message_that_was_recorded(stream: bool) -> None:
    server = served(stream, TURN, said("2"))
    tools = [{"function_declarations": [FUNCTION]}]
    first = ask(server, stream, [USER], tools=tools, **THOUGHTS)
    content = first.candidates[0].content
    thought, text, *calls = content.parts
    assert (thought.thought, thought.text, text.text) == (True, "hm", "I add.")
    assert calls[0].function_call.args == {"a": 1, "b": 2.5}
    assert first.candidates[0].finish_reason == "STOP" and first.response_id == "aa01"
    results = {"role": "user", "parts": [response(CALL), response(CALL_2)]}
    second = ask(server, stream, [USER, content, results], tools=tools)
    assert server.heard() == identities([CHAT_USER, TURN.message, *TOOLS])
    assert server.requests[-1].messages[1]["reasoning_content"] == "hm"
    usage = second.usage_metadata
    assert (second.text, usage.prompt_token_count, usage.candidates_token_count) == ("2", 7, 5)


@whole_and_streamed
def test_thoughts_stay_here_unless_they_are_asked_for(stream: bool) -> None:
    (part,) = ask(served(stream, said("so", "hm")), stream, [USER]).candidates[0].content.parts
    assert part.text == "so"


@whole_and_streamed
def test_tokens_of_thoughts_are_told_apart_where_they_were_counted(stream: bool) -> None:
    usage = ask(
        served(stream, dataclasses.replace(said("so"), reasoning_tokens=3)), stream, [USER]
    ).usage_metadata
    assert (usage.candidates_token_count, usage.thoughts_token_count, usage.total_token_count) == (2, 3, 12)


@whole_and_streamed
def test_a_cut_answer_says_so(stream: bool) -> None:
    found = ask(served(stream, said("half", cut=True)), stream, [USER])
    assert (found.text, found.candidates[0].finish_reason) == ("half", "MAX_TOKENS")


@whole_and_streamed
@pytest.mark.parametrize("arguments", ["[1]", "not JSON", '"text"'])
def test_a_call_that_the_api_cannot_express_is_malformed(stream: bool, arguments: str) -> None:
    call = CALL | {"function": {"name": "add", "arguments": arguments}}
    (candidate,) = ask(served(stream, said("so", None, [CALL_2, call])), stream, [USER]).candidates
    assert candidate.finish_reason == "MALFORMED_FUNCTION_CALL"
    assert [part.text for part in candidate.content.parts] == ["so"]


def test_logprobs_are_those_of_the_chosen_tokens() -> None:
    answer = dataclasses.replace(said("a b"), logprobs=(("a", -0.5), (" b", -1.5)))
    (candidate,) = ask(served(False, answer), False, [USER], response_logprobs=True).candidates
    chosen = candidate.logprobs_result.chosen_candidates
    assert [(c.token, c.log_probability) for c in chosen] == [("a", -0.5), (" b", -1.5)]
    assert candidate.avg_logprobs == -1


@whole_and_streamed
def test_candidates_are_numbered(stream: bool) -> None:
    server = served(stream, [said("a"), said("b")])
    options: Any = {"model": "m", "contents": "hi", "config": {"candidate_count": 2}}
    models = server.google.models
    chunks = models.generate_content_stream(**options) if stream else [models.generate_content(**options)]
    texts = {0: "", 1: ""}
    for chunk in chunks:
        for candidate in chunk.candidates:
            texts[candidate.index or 0] += "".join(part.text for part in candidate.content.parts)
    assert texts == {0: "a", 1: "b"} and server.requests[0].n == 2


def test_the_sdk_runs_functions_by_itself() -> None:
    def add(a: int, b: float) -> float:
        """Adds."""
        return a + b

    server = served(False, said(None, None, [CALL]), said("3.5"))
    chat = server.google.chats.create(model="m", config={"tools": [add], "system_instruction": "be brief"})
    assert chat.send_message("1 + 2.5?").text == "3.5"
    system, _, turn, result = server.requests[-1].messages
    assert (system["content"], turn["tool_calls"]) == ("be brief", [CALL])
    assert result == TOOLS[0] | {"content": '{"result": 3.5}'}
    (tool,) = server.requests[0].tools
    assert tool["function"]["parameters"]["properties"]["a"] == {"type": "integer"}


@whole_and_streamed
def test_errors_are_the_sdks_own(stream: bool) -> None:
    """In a stream it comes after the first piece."""
    with pytest.raises(errors.ClientError, match="ajet: no room") as caught:
        ask(served(stream, Refused("no room", code="engine_error")), stream, [USER])
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")


def test_an_overflow_is_told_in_the_apis_words() -> None:
    told = "The input token count (9) exceeds the maximum number of tokens allowed (7)."
    with pytest.raises(errors.ClientError, match=re.escape(told)):
        ask(served(False, TooLong("the prompt has 9 tokens", 9, 8)), False, [USER])


def test_structured_output_reaches_the_sdk_parsed() -> None:
    from pydantic import BaseModel

    class Sum(BaseModel):
        value: int | None

    server = served(False, said('{"value": 2}'))
    settings = {"response_mime_type": "application/json", "response_schema": Sum}
    assert ask(server, False, [USER], **settings).parsed == Sum(value=2)
    assert server.requests[0].json_schema == {
        "title": "Sum",
        "type": "object",
        "properties": {"value": {"anyOf": [{"title": "Value", "type": "integer"}, {"type": "null"}]}},
        "required": ["value"],
    }


# --------------------------------------------------------------------------- requests


def test_instructions_and_texts_become_chat_messages() -> None:
    for body in (
        {"systemInstruction": {"parts": [{"text": "be "}, {"text": "brief"}]}},
        {"system_instruction": {"role": "user", "parts": [{"text": "be brief"}]}},
    ):
        assert parse(**body).messages == [{"role": "system", "content": "be brief"}, CHAT_USER]
    assert parse(contents=[{"parts": [{"text": "1 + "}, {"text": "1?"}]}]).messages == [CHAT_USER]


def test_the_path_names_the_model_and_says_whether_to_stream() -> None:
    for path in ("/v1/models/gemini", "/v1/projects/p/locations/l/publishers/google/models/gemini"):
        for verb, stream in (("generateContent", False), ("streamGenerateContent", True)):
            wire = find_wire(BUILTIN_WIRES, f"{path}:{verb}")
            assert wire and wire.path == f"/models/gemini:{verb}"
            request = wire.parse(json.dumps({"contents": [USER]}).encode())
            assert (request.model, request.stream) == ("gemini", stream)


def test_responses_come_before_what_the_user_says_beside_them() -> None:
    parts = [response(CALL), {"text": "go on"}, response(CALL_2, fields=None)]
    found = parse(contents=[{"role": "function", "parts": parts}]).messages
    assert found == [*TOOLS, {"role": "user", "content": "go on"}]


def test_a_response_without_an_id_answers_the_first_open_call_of_its_name() -> None:
    calls = [{"functionCall": {"name": name, "args": {}}} for name in ("add", "sub", "add")]
    results = [
        response(CALL, output, id=None, name=name)
        for name, output in (("add", "1"), ("add", "3"), ("sub", "2"))
    ]
    _, turn, *told = parse(contents=[USER, {"role": "model", "parts": calls}, {"parts": results}]).messages
    first, second, third = [call["id"] for call in turn["tool_calls"]]
    assert [(m["tool_call_id"], m["content"]) for m in told] == [(first, "1"), (third, "3"), (second, "2")]


def test_the_name_that_gemini_cli_writes_before_an_id_does_not_count() -> None:
    call = {"functionCall": {"id": f"add__{CALL['id']}", "name": "add", "args": {"a": 1, "b": 2.5}}}
    result = response(CALL, id=f"add__{CALL['id']}")
    _, turn, told = parse(contents=[USER, {"role": "model", "parts": [call]}, {"parts": [result]}]).messages
    assert (turn["tool_calls"], told) == ([CALL], TOOLS[0])


@pytest.mark.parametrize(
    ("given", "heard"),
    [
        ({"output": "2"}, "2"),
        ({"output": {"sum": 2}}, '{"sum": 2}'),
        ({"error": "no"}, '{"error": "no"}'),
        ({"result": "2", "output": "3"}, '{"result": "2", "output": "3"}'),
    ],
)
def test_a_response_is_its_output_or_the_whole_of_it(given: Any, heard: str) -> None:
    (told,) = parse(contents=[{"parts": [response(CALL, response=given)]}]).messages
    assert told["content"] == heard


def test_images_are_taken_from_users_and_from_functions() -> None:
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
    inline = {"inlineData": {"mimeType": "image/png", "data": "iVBO"}}
    linked = {"fileData": {"mimeType": "image/png", "fileUri": "https://a/b.png"}}
    (user,) = parse(contents=[{"parts": [{"text": "see"}, inline, linked]}]).messages
    assert user["content"][:2] == [{"type": "text", "text": "see"}, shown]
    assert user["content"][2]["image_url"]["url"] == "https://a/b.png"
    (tool,) = parse(contents=[{"parts": [response(CALL, parts=[inline])]}]).messages
    assert tool["content"] == [{"type": "text", "text": "2"}, shown]


def test_functions_are_the_tools_of_chat_completions() -> None:
    googles = {
        "name": "add",
        "description": "adds",
        "parameters": {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}, "propertyOrdering": ["a"]},
    }
    for function in (FUNCTION, googles, FUNCTION | {"response": {"type": "NUMBER"}}):
        assert parse(tools=[{"functionDeclarations": [function]}]).tools == [CHAT_TOOL]
    two = [{"functionDeclarations": [FUNCTION]}, {"function_declarations": [FUNCTION | {"name": "sub"}]}]
    assert [tool["function"]["name"] for tool in parse(tools=two).tools] == ["add", "sub"]


def test_bounds_that_are_texts_become_numbers() -> None:
    items = {"type": "ARRAY", "minItems": "1", "items": {"type": "STRING", "nullable": True, "enum": ["a"]}}
    (tool,) = parse(tools=[{"functionDeclarations": [{"name": "f", "parameters": items}]}]).tools
    assert tool["function"]["parameters"] == {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
    }


def test_modes_say_what_may_and_what_must_be_called() -> None:
    def calls(mode: str, *allowed: str) -> Any:
        chosen = {"mode": mode, **({"allowedFunctionNames": list(allowed)} if allowed else {})}
        tools = [{"functionDeclarations": [FUNCTION, FUNCTION | {"name": "sub"}]}]
        return parse(tools=tools, toolConfig={"functionCallingConfig": chosen})

    assert calls("AUTO").must_call is None and calls("VALIDATED").must_call is None
    assert not calls("NONE").may_call and len(calls("NONE").tools) == 2
    assert (calls("ANY").must_call, calls("ANY", "sub").must_call) == ("", "sub")
    assert calls("ANY", "add", "sub").must_call == ""


def test_the_settings_are_read() -> None:
    request = config(temperature=0.5, topP=0.9, topK=64, maxOutputTokens=9, stopSequences=["a"], seed=3)
    assert (request.temperature, request.top_p, request.top_k) == (0.5, 0.9, 64)
    assert (request.max_tokens, request.stop, request.seed) == (9, ("a",), 3)
    assert config(responseModalities=["TEXT"], presencePenalty=0, thinkingConfig={"thinkingBudget": -1})
    assert parse(safetySettings=[{"category": "x"}], labels={"a": "b"})


@pytest.mark.parametrize(
    ("settings", "schema"),
    [
        ({"responseMimeType": "text/plain"}, None),
        ({"responseMimeType": "application/json"}, {"$comment": "any JSON value"}),
        ({"responseMimeType": "application/json", "responseSchema": {"type": "OBJECT"}}, {"type": "object"}),
        (
            {"responseMimeType": "application/json", "responseJsonSchema": {"type": ["null"]}},
            {"type": ["null"]},
        ),
        (
            {"responseMimeType": "application/json", "responseJsonSchema": {"const": None, "title": None}},
            {"const": None},
        ),
    ],
)
def test_json_may_have_a_schema_of_either_form(settings: Any, schema: Any) -> None:
    assert config(**settings).json_schema == schema


def test_tools_that_google_runs_are_left_out() -> None:
    request = parse(tools=[{"googleSearch": {}}, {"functionDeclarations": [FUNCTION]}])
    assert request.tools == [CHAT_TOOL] and request.left_out == ("googleSearch",)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"cachedContent": "c"}, "cachedContent"),
        ({"generationConfig": {"presencePenalty": 1}}, "generationConfig.presencePenalty"),
        ({"generationConfig": {"logprobs": 3}}, "generationConfig.logprobs"),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "generationConfig.responseModalities"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, 'responseMimeType="text/x.enum"'),
        ({"generationConfig": {"speechConfig": {"x": 1}}}, "generationConfig.speechConfig"),
        (
            {"generationConfig": {"responseSchema": {"type": "OBJECT"}}},
            "generationConfig.responseSchema without responseMimeType: application/json",
        ),
        ({"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, 'mode="SOME"'),
        ({"toolConfig": {"retrievalConfig": {"x": 1}}}, "toolConfig.retrievalConfig"),
        (
            {
                "tools": [
                    {"functionDeclarations": [FUNCTION, FUNCTION | {"name": "sub"}, FUNCTION | {"name": "x"}]}
                ],
                "toolConfig": {
                    "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add", "sub"]}
                },
            },
            "allowedFunctionNames",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(body: Any, named: str) -> None:
    with pytest.raises(Refused, match=named) as caught:
        parse(**body)
    assert caught.value.code == "unsupported_parameter"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"contents": []}, "at least one"),
        ({"contents": "hi"}, "must be a list"),
        ({"contents": [{"role": "system", "parts": []}]}, "role must be user or model"),
        (
            {"contents": [{"parts": [{"functionResponse": {"response": {}}}]}]},
            "functionResponse.name must be text",
        ),
        (
            {"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f", "args": []}}]}]},
            "args must be an object",
        ),
        ({"generationConfig": {"maxOutputTokens": 0}}, "maxOutputTokens is 0"),
    ],
)
def test_a_bad_request_gets_one_clear_line(body: Any, told: str) -> None:
    with pytest.raises(Refused, match=told) as caught:
        parse(**body)
    assert caught.value.code == "invalid_request"


# --------------------------------------------------------------------------- over a door


def adds(request: Any, prompt: str) -> str:
    return "It is 2." if "<tool_response>" in prompt else calling("add", a=1)


def client_of(url: str, key: str) -> genai.Client:
    options = {"base_url": url.removesuffix("/v1"), "timeout": int(1000 * PATIENCE)}
    return genai.Client(api_key=key, http_options=options)


@each_door
@whole_and_streamed
def test_the_async_sdk_comes_to_one_timeline(bench: Any, tokenizer: Any, door: Door, stream: bool) -> None:
    b = bench(ScriptedEngine(tokenizer, adds))
    options: Any = {"model": "m", "config": {"tools": [{"function_declarations": [FUNCTION]}]}}

    async def turn(models: Any, contents: list[Any]) -> Any:
        if not stream:
            return await models.generate_content(contents=contents, **options)
        chunks = await models.generate_content_stream(contents=contents, **options)
        return whole([chunk async for chunk in chunks])

    async def talk(url: str, key: str) -> str:
        async with client_of(url, key).aio as client:
            first = await turn(client.models, [USER])
            content = first.candidates[0].content
            (part,) = content.parts
            result = {"role": "user", "parts": [response({"id": part.function_call.id})]}
            return str((await turn(client.models, [USER, content, result])).text)

    with b.session() as session, behind(door, b) as url:
        assert asyncio.run(talk(url, session.key)) == "It is 2."
    assert len(timelines(session.record.trained_calls)) == 1 and not session.counters["rendered_anew"]


@pytest.mark.parametrize(("training", "used"), [(True, 3), (False, 5)])
def test_top_k_is_the_rollouts_in_training_and_the_agents_in_evaluation(
    bench: Any, tokenizer: Any, training: bool, used: int
) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda request, prompt: "yes"))
    client = client_of("http://127.0.0.1:9/v1", "k")
    with b.session(policy=SamplingPolicy(training, top_k=3)) as session:
        for asked in ({"top_k": 5}, {}):
            client.models.generate_content(model="m", contents="hi", config=asked)
    assert [request.sampling.top_k for request in b.engine.requests] == [used, 3]
    assert session.counters["overridden:top_k"] == training


@each_door
def test_the_count_of_tokens_is_that_of_the_call(bench: Any, tokenizer: Any, door: Door) -> None:
    b = bench(ScriptedEngine(tokenizer, adds))
    tools = {"tools": [{"functionDeclarations": [FUNCTION]}]}
    call = {"contents": [USER], "systemInstruction": {"parts": [{"text": "be brief"}]}, **tools}
    with b.session() as session, behind(door, b) as url:
        client = client_of(url, session.key)
        counted = client.models.count_tokens(model="m", contents=[USER]).total_tokens
        asked = client.models.generate_content(model="m", contents=[USER])

        def told(verb: str, body: Any) -> Any:
            address, headers = f"{url}/models/m:{verb}", {"x-goog-api-key": session.key}
            return httpx.post(address, json=body, headers=headers, timeout=PATIENCE).json()

        whole = told("countTokens", {"generateContentRequest": {"model": "models/m", **call}})
        assert whole == told("countTokens", call)
        assert whole["totalTokens"] == told("generateContent", call)["usageMetadata"]["promptTokenCount"]
    assert counted == asked.usage_metadata.prompt_token_count < whole["totalTokens"]
    assert len(session.record.calls) == 2, "counting samples nothing"


@each_door
@pytest.mark.parametrize("place", ["x-goog-api-key", "?key=", "bearer"])
def test_the_key_is_where_googles_clients_put_it(bench: Any, tokenizer: Any, door: Door, place: str) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda request, prompt: "yes"))
    with b.session("one") as one, b.session("two"), behind(door, b) as url:
        address = f"{url.removesuffix('/v1')}/v1beta/models/m:generateContent"
        headers = {"x-goog-api-key": one.key} if place == "x-goog-api-key" else {}
        headers |= {"authorization": f"Bearer {one.key}"} if place == "bearer" else {}
        address += f"?key={one.key}" if place == "?key=" else ""
        told = httpx.post(address, json={"contents": [USER]}, headers=headers, timeout=PATIENCE).json()
    assert told["candidates"][0]["content"]["parts"] == [{"text": "yes"}]
    assert len(one.record.calls) == 1


def test_the_gateway_lists_its_models(bench: Any, tokenizer: Any) -> None:
    b = bench(ScriptedEngine(tokenizer, adds))
    with b.session() as session, behind("gateway", b) as url:
        client = client_of(url, session.key)
        (listed,) = client.models.list()
        found = client.models.get(model="any")
    assert (listed.name, found.name) == ("models/policy", "models/any")
    assert "generateContent" in found.supported_actions


def test_a_key_of_googles_own_leaves_a_call_in_its_episode(bench: Any, tokenizer: Any) -> None:
    client = client_of("http://127.0.0.1:9/v1", "AIza-of-the-user")
    with bench(ScriptedEngine(tokenizer, lambda request, prompt: "yes")).session() as session:
        assert client.models.generate_content(model="m", contents="hi").text == "yes"
    assert len(session.record.calls) == 1
