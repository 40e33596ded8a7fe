"""The OpenAI SDK, unchanged, answered in this process: nothing ever reaches the network."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import httpx2
import numpy as np
import openai
import pydantic
import pytest

import ajet
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.targets import Target
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.capture.wires.chat_completions import ChatCompletions
from ajet.interfaces.wire import ChatRequest, Refused
from ajet.testing import ScriptedEngine, logprob_of
from ajet.tracker.timelines import timelines
from tests import tokenizers
from tests.engines import with_patience
from tests.patience import PATIENCE

CLOSED = "http://127.0.0.1:9/v1"  # the discard port: a request that gets out fails at once
TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "description": "", "parameters": {"type": "object", "properties": {}}},
}
USER: Any = [{"role": "user", "content": "hi"}]


def calls_tool(request: Any, prompt: str) -> str:
    return (
        "42"
        if "<tool_response>" in prompt
        else '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    )


@pytest.fixture
def sdk() -> openai.OpenAI:
    return openai.OpenAI(base_url=CLOSED, api_key="k", max_retries=0)


def two_steps(client: openai.OpenAI) -> list[Any]:
    messages: list[Any] = [{"role": "user", "content": "1 + 1?"}]
    first = client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
    message = first.choices[0].message
    assert message.tool_calls
    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "2"}]
    return [first, client.chat.completions.create(model="m", messages=messages, tools=[TOOL])]


def test_a_tool_conversation_becomes_one_timeline_of_sampled_ids(bench, tokenizer, sdk) -> None:
    with bench(ScriptedEngine(tokenizer, calls_tool)).session() as session:
        first, second = two_steps(sdk)
    assert first.choices[0].finish_reason == "tool_calls"
    assert first.choices[0].message.tool_calls[0].function.arguments == '{"a": 1}'
    assert second.choices[0].message.content == "42"
    (line,) = timelines(session.record.trained_calls)
    assert first.usage.prompt_tokens + first.usage.completion_tokens < second.usage.prompt_tokens
    assert len(line.token_ids) == second.usage.total_tokens
    assert line.mask.sum() == first.usage.completion_tokens + second.usage.completion_tokens
    expected = [logprob_of(int(t), i) for i, t in enumerate(line.token_ids)]
    np.testing.assert_allclose(line.logprobs[line.mask], np.array(expected)[line.mask], rtol=1e-6)
    assert np.isnan(line.logprobs[~line.mask]).all(), "absent is not 0.0"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("said", "content"), [(calls_tool(None, ""), None), ("", "")], ids=["call", "empty"])
def test_the_client_gets_null_for_the_content_of_mere_calls(
    bench, tokenizer, sdk, said, content, stream
) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: said)).session() as session:
        found = sdk.chat.completions.create(model="m", messages=USER, tools=[TOOL], stream=stream)
        deltas = [chunk.choices[0].delta.content for chunk in found] if stream else []
    if stream:
        assert [d for d in deltas if d is not None] == ([] if content is None else [""])
    else:
        assert found.choices[0].message.content == content
    assert session.record.exchanges[0].answer.message["content"] == ""


def test_async_client_gives_the_same_record(bench, tokenizer, sdk) -> None:
    async def agent() -> None:
        client = openai.AsyncOpenAI(base_url=CLOSED, api_key="k", max_retries=0)
        messages: list[Any] = [{"role": "user", "content": "1 + 1?"}]
        first = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
        call = first.choices[0].message
        messages += [call, {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "2"}]
        await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])

    b = bench(ScriptedEngine(tokenizer, calls_tool))
    with b.session() as s1:
        asyncio.run(agent())
    with b.session() as s2:
        two_steps(sdk)
    (one,), (two,) = timelines(s1.record.trained_calls), timelines(s2.record.trained_calls)
    assert (one.token_ids == two.token_ids).all() and (one.mask == two.mask).all()


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_raw_clients_of_both_libraries_are_answered_with_their_own_objects(bench, tokenizer, module) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: "ok")).session():
        response = module.Client().post(f"{CLOSED}/chat/completions", json={"model": "m", "messages": USER})
    assert isinstance(response, module.Response)
    assert response.json()["choices"][0]["message"]["content"] == "ok"


@pytest.mark.parametrize("module", [httpx, httpx2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_as_if_it_had_been_read(bench, tokenizer, module, stream) -> None:
    async def asked(url: str) -> Any:
        async with module.AsyncClient() as client:
            return await client.send(
                client.build_request("POST", url, json={"messages": USER}), stream=stream
            )

    with bench(ScriptedEngine(tokenizer, lambda r, p: "ok")).session():
        url, client = f"{CLOSED}/chat/completions", module.Client()
        one = client.send(client.build_request("POST", url, json={"messages": USER}), stream=stream)
        two = asyncio.run(asked(url))
    for ours in (one, two):
        plain = module.Response(200, content=ours.content, headers={"content-type": "application/json"})
        for name in ("headers", "text", "encoding", "is_closed", "is_stream_consumed", "is_success"):
            assert getattr(ours, name) == getattr(plain, name), name
        assert ours.read() == asyncio.run(ours.aread()) == b"".join(ours.iter_bytes()) == plain.content
        assert ours.json()["object"] == "chat.completion" and ours.elapsed.total_seconds() >= 0
        assert str(ours.request.url) == url
        ours.close()


def test_a_call_outside_an_episode_is_refused_in_strict_mode(bench, tokenizer, sdk) -> None:
    b = bench(ScriptedEngine(tokenizer, calls_tool))
    with pytest.raises(openai.BadRequestError, match="outside any episode"):
        sdk.chat.completions.create(model="m", messages=USER)
    assert b.capture.counters["stray_calls"] == 1


def test_without_strict_mode_and_in_passthrough_a_call_goes_to_its_own_endpoint(
    bench, tokenizer, sdk
) -> None:
    b = bench(ScriptedEngine(tokenizer, calls_tool), strict=False)
    with pytest.raises(openai.APIConnectionError):
        sdk.chat.completions.create(model="m", messages=USER)
    with b.session() as session, ajet.passthrough(), pytest.raises(openai.APIConnectionError):
        sdk.chat.completions.create(model="m", messages=USER)
    assert not session.record.exchanges


def test_the_key_identifies_the_episode_in_a_thread_without_its_context(bench, tokenizer) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok"))
    with b.session() as session:
        client = openai.OpenAI(base_url=CLOSED, api_key=session.key, max_retries=0)
        thread = threading.Thread(target=lambda: client.chat.completions.create(model="m", messages=USER))
        thread.start()
        thread.join(PATIENCE)
    assert len(session.record.exchanges) == 1
    with pytest.raises(openai.AuthenticationError, match="no running episode"):
        client.chat.completions.create(model="m", messages=USER)


def test_after_its_end_an_episode_answers_and_records_nothing(bench, tokenizer, sdk) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok"))
    with b.session() as session:
        sdk.chat.completions.create(model="m", messages=USER)
        asyncio.run(b.capture.end(session))
        with pytest.raises(openai.BadRequestError, match="has ended"):
            sdk.chat.completions.create(model="m", messages=USER)
    assert len(session.record.calls) == 1


def test_client_timeout_cancels_the_generation_and_leaves_no_ghost_call(bench, tokenizer) -> None:
    engine = ScriptedEngine(tokenizer, lambda r, p: "late", seconds=600)

    def ask(seconds: float) -> None:
        client = openai.OpenAI(base_url=CLOSED, api_key="k", max_retries=0, timeout=seconds)
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(model="m", messages=USER)

    with bench(engine).session() as session:
        with_patience(ask, lambda: engine.requests)
    assert engine.cancelled == len(engine.requests) and not session.record.calls


def test_a_cancelled_task_cancels_the_generation(bench, tokenizer) -> None:
    async def agent() -> None:
        client = openai.AsyncOpenAI(base_url=CLOSED, api_key="k")
        asking = asyncio.create_task(client.chat.completions.create(model="m", messages=USER))
        while not engine.requests:
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    engine = ScriptedEngine(tokenizer, lambda r, p: "late", seconds=600)
    with bench(engine).session() as session:
        asyncio.run(agent())
    assert engine.cancelled == 1 and not session.record.calls


def test_in_training_the_rollouts_sampling_overrides_the_agents_and_is_counted(bench, tokenizer, sdk) -> None:
    engine = ScriptedEngine(tokenizer, lambda r, p: "ok")
    with bench(engine).session(policy=SamplingPolicy(training=True, temperature=0.7)) as session:
        sdk.chat.completions.create(model="m", messages=USER, temperature=0, seed=5, max_tokens=3, stop=["x"])
    sampling = engine.requests[0].sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.stop) == (0.7, 3, ("x",))
    assert session.counters["overridden:temperature"] == session.counters["overridden:seed"] == 1


def test_in_evaluation_the_agents_sampling_is_honoured_and_greedy_calls_are_not_trained(
    bench, tokenizer, sdk
) -> None:
    engine = ScriptedEngine(tokenizer, lambda r, p: "ok")
    with bench(engine).session(policy=SamplingPolicy(training=False, temperature=0.7)) as session:
        sdk.chat.completions.create(model="m", messages=USER, temperature=0)
        sdk.chat.completions.create(model="m", messages=USER)
    assert [r.sampling.temperature for r in engine.requests] == [0, 0.7]
    assert [c.temperature for c in session.record.calls] == [1.0, 0.7]
    assert timelines(session.record.trained_calls) == []


def test_in_evaluation_top_p_0_keeps_the_likeliest_token_and_each_choice_has_a_seed_of_its_own(
    bench, tokenizer, sdk
) -> None:
    engine = ScriptedEngine(tokenizer, lambda r, p: "ok")
    with bench(engine).session(policy=SamplingPolicy(training=False)):
        sdk.chat.completions.create(model="m", messages=USER, top_p=0)
        sdk.chat.completions.create(model="m", messages=USER, n=3, seed=3)
        sdk.chat.completions.create(model="m", messages=USER, seed=-1)
    sampling = [r.sampling for r in engine.requests]
    assert 0 < sampling[0].top_p < 1e-3
    assert sorted(s.seed for s in sampling[1:4]) == [3, 4, 5]
    assert sampling[4].seed >= 0


def test_length_stop_reaches_the_framework(bench, tokenizer, sdk) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: "a b c d e f")).session():
        answer = sdk.chat.completions.create(model="m", messages=USER, max_completion_tokens=2)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage and answer.usage.completion_tokens == 2


def test_a_prompt_longer_than_the_context_is_refused_by_name_and_counted(bench, tokenizer, sdk) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "", context_length=8))
    with b.session() as session, pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 50}])
    assert caught.value.code == "context_length_exceeded"
    assert session.counters["context_overflow"] == 1 and not session.record.calls


@pytest.mark.parametrize(("build", "left_out"), [(tokenizers.qwen3, 0), (tokenizers.thinker, 1)])
def test_calls_whose_tools_the_template_leaves_out_are_counted(bench, sdk, build, left_out) -> None:
    with bench(ScriptedEngine(build(), lambda r, p: "ok")).session() as session:
        sdk.chat.completions.create(model="m", messages=USER)
        sdk.chat.completions.create(model="m", messages=USER, tools=[TOOL])
    assert session.counters["tools_left_out"] == left_out


def test_n_choices_are_one_branch_each(bench, tokenizer, sdk) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: str(r.key[1]))).session() as session:
        answer = sdk.chat.completions.create(model="m", messages=USER, n=3)
    assert [c.message.content for c in answer.choices] == ["0", "1", "2"]
    assert len(timelines(session.record.trained_calls)) == 3


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"logprobs": True, "top_logprobs": 2}, "top_logprobs=2"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice"),
        ({"response_format": {"type": "grammar"}}, 'response_format.type="grammar"'),
        ({"frequency_penalty": 1.0}, "frequency_penalty=1.0"),
        ({"presence_penalty": -1.0}, "presence_penalty=-1.0"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "add"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}, *USER]}, "messages.audio"),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f"}}, *USER]},
            "messages.function_call",
        ),
        ({"web_search_options": {"x": 1}}, "web_search_options"),
        ({"stream": True, "stream_options": {"every": 5}}, "stream_options.every"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(bench, tokenizer, sdk, extra, named) -> None:
    with (
        bench(ScriptedEngine(tokenizer, lambda r, p: "ok")).session() as session,
        pytest.raises(openai.BadRequestError, match=named),
    ):
        sdk.post("/chat/completions", body={"model": "m", "messages": USER, **extra}, cast_to=object)
    assert session.counters["refused:unsupported_parameter"] == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not JSON"),
        (b"[]", "JSON object"),
        (b"{}", "messages"),
        (b'{"messages": [{"role": "wizard", "content": ""}]}', "wizard"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "image_url"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 0}', "n is 0"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": "many"}', "max_tokens"),
    ],
)
def test_a_bad_request_gets_one_clear_line(bench, tokenizer, body, said) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: "ok")).session():
        response = httpx.post(f"{CLOSED}/chat/completions", content=body)
    message = response.json()["error"]["message"]
    assert response.status_code == 400 and said in message and "\n" not in message
    assert response.headers["x-should-retry"] == "false"


def test_an_engine_failure_is_named_once_and_not_retried(bench, tokenizer) -> None:
    def fail(request: Any, prompt: str) -> str:
        raise RuntimeError("out of memory")

    engine = ScriptedEngine(tokenizer, fail)
    client = openai.OpenAI(base_url=CLOSED, api_key="k", max_retries=5)
    with bench(engine).session() as session, pytest.raises(openai.BadRequestError, match="out of memory"):
        client.chat.completions.create(model="m", messages=USER)
    assert len(engine.requests) == 1 and session.engine_error == "RuntimeError: out of memory"


@pytest.mark.parametrize("path", ["/embeddings", "/images/generations", "/audio/speech", "/moderations"])
def test_other_calls_of_models_are_refused_by_name_inside_an_episode(bench, tokenizer, sdk, path) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok"))
    with b.session() as session, pytest.raises(openai.BadRequestError, match=f"{path} is not captured"):
        sdk.post(path, body={"model": "m", "input": "hi"}, cast_to=object)
    assert session.counters["refused:unsupported_wire"] == 1
    with b.session(), ajet.passthrough(), pytest.raises(openai.APIConnectionError):
        sdk.post(path, body={"model": "m", "input": "hi"}, cast_to=object)


def test_a_wire_of_a_plugin_answers_its_path(bench, tokenizer) -> None:
    class Echo(ChatCompletions):
        path = "/v9/chat/completions"

        def reply(self, request: Any, answers: Any, reply_id: str) -> dict[str, Any]:
            return {"echo": answers[0].message["content"]}

    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok"))
    b.capture.wires = (*BUILTIN_WIRES, Echo())
    with b.session():
        replies = [
            httpx.post(f"http://x.invalid{p}/chat/completions", json={"messages": USER})
            for p in ("/v9", "/v1")
        ]
    assert (
        replies[0].json() == {"echo": "ok"} and replies[1].json()["choices"][0]["message"]["content"] == "ok"
    )


def test_repetitions_by_the_sdk_are_counted(bench, tokenizer) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "late", seconds=600))
    with b.session() as session, pytest.raises(openai.APITimeoutError):
        client = openai.OpenAI(base_url=CLOSED, api_key="k", max_retries=1, timeout=0.02)
        client.chat.completions.create(model="m", messages=USER)
    assert session.counters["sdk_retries"] == 1 and not session.record.calls


def test_the_key_may_stand_in_the_path_with_labels(bench, tokenizer) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok"))
    with b.session() as session:
        url = f"http://x.invalid/k/{session.key}/a/solver/v1/chat/completions"
        thread = threading.Thread(target=lambda: httpx.post(url, json={"messages": USER}))
        thread.start()
        thread.join(PATIENCE)
    assert [call.agent for call in session.record.calls] == ["solver"]


ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
OTHER = ADD.replace("add", "sub")


def test_logprobs_of_the_sampled_tokens(bench, tokenizer, sdk) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: "It is 2.")).session() as session:
        answer = sdk.chat.completions.create(model="m", messages=USER, logprobs=True)
    tokens = answer.choices[0].logprobs.content
    generation = session.record.calls[0].generation
    assert [t.logprob for t in tokens] == pytest.approx(generation.logprobs[:-1].tolist())
    assert "".join(t.token for t in tokens) == "It is 2."
    assert bytes(tokens[0].bytes) == tokens[0].token.encode()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("<think>\nIt is it.\n</think>\n\nIt is it.", "It is it."),
        ("<think>\n\n</think>\n\nthink", "think"),
        ("<think>\nhm", ""),
        ("a STOP", "a "),
        ("STOP", ""),
        ("", ""),
        (f"<think>\nhm\n</think>\n\nI add.\n{ADD}", f"I add.\n{ADD}"),
    ],
)
def test_the_logprobs_beside_a_text_are_those_of_its_tokens(bench, tokenizer, sdk, said, told) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: said)).session():
        asked: Any = {"model": "m", "messages": USER, "tools": [TOOL], "logprobs": True, "stop": "STOP"}
        (choice,) = sdk.chat.completions.create(**asked).choices
    assert "".join(token.token for token in choice.logprobs.content).strip("\n") == told
    assert choice.message.tool_calls or choice.message.content == told


def test_a_refusal_of_a_hosted_model_is_what_the_assistant_said(bench, tokenizer, sdk) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "2"))
    for spoken in ({"refusal": "I cannot."}, {"content": [{"type": "refusal", "refusal": "I cannot."}]}):
        with b.session():
            said: Any = {"role": "assistant", "content": None, **spoken}
            sdk.chat.completions.create(model="m", messages=[*USER, said, *USER])
        assert "I cannot." in tokenizer.decode(b.engine.requests[-1].prompt_ids)


# ---------------------------------------------------------------- structured output


SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "sum",
        "schema": {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]},
    },
}
REQUIRED: Any = {"tool_choice": "required", "tools": [TOOL]}
NAMED: Any = {"tool_choice": {"type": "function", "function": {"name": "add"}}, "tools": [TOOL]}
SUB = {**TOOL, "function": {**TOOL["function"], "name": "sub"}}


@pytest.mark.parametrize(
    ("asked", "said", "fault"),
    [
        ({"response_format": {"type": "json_object"}}, '{"sum": 2}', ""),
        ({"response_format": {"type": "json_object"}}, "2", "must be a JSON object"),
        ({"response_format": {"type": "json_object"}}, "It is 2.", "must be JSON"),
        ({"response_format": SCHEMA}, '{"sum": 2}', ""),
        ({"response_format": SCHEMA}, '{"sum": "2"}', r'does not fit the JSON schema at \$\.sum: "2"'),
        ({"response_format": SCHEMA, "max_tokens": 2}, '{"sum": 2}', ""),
        ({"response_format": SCHEMA, "tools": [TOOL]}, ADD, ""),
        (REQUIRED, ADD, ""),
        (REQUIRED, "2", "must call a tool"),
        (NAMED, ADD, ""),
        (NAMED, OTHER, "must call a tool, but is text"),  # it was not offered
        ({**NAMED, "tools": [TOOL, SUB]}, OTHER, "must call 'add', but calls 'sub'"),
        ({"parallel_tool_calls": False, "tools": [TOOL]}, ADD, ""),
        ({"parallel_tool_calls": False, "tools": [TOOL]}, f"{ADD}\n{ADD}", "may call one tool, but calls 2"),
        ({"tool_choice": "none", "tools": [TOOL]}, "2", ""),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_the_form_asked_for_is_an_error_and_is_recorded(
    bench, tokenizer, sdk, asked, said, fault, stream
) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: said)).session() as session:

        def call() -> Any:
            answer = sdk.chat.completions.create(model="m", messages=USER, stream=stream, **asked)
            return list(answer) if stream else answer

        if fault and stream and "response_format" not in asked:
            with pytest.raises(openai.APIError, match=fault):
                call()
        elif fault:  # of JSON, before a client reads any of it: at the first piece of something else, some stop reading
            with pytest.raises(openai.UnprocessableEntityError, match=fault) as caught:
                call()
            assert caught.value.code == "invalid_structured_output"
        else:
            call()
    assert len(session.record.calls) == 1, "what was sampled stays trainable"


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ({"tool_choice": "required"}, "not among the tools"),
        ({**NAMED, "tools": [{**TOOL, "function": {"name": "sub"}}]}, "'add', but it is not among the tools"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
            "not a valid JSON schema",
        ),
        ({"response_format": {"type": "json_schema"}}, "schema must be an object"),
    ],
)
def test_a_form_that_no_answer_can_have_is_refused_before_sampling(
    bench, tokenizer, sdk, asked, fault
) -> None:
    engine = ScriptedEngine(tokenizer, lambda r, p: "2")
    with bench(engine).session(), pytest.raises(openai.BadRequestError, match=fault):
        sdk.post("/chat/completions", body={"messages": USER, **asked}, cast_to=object)
    assert not engine.requests


def test_parse_with_a_pydantic_model(bench, tokenizer, sdk) -> None:
    class Sum(pydantic.BaseModel):
        sum: int

    with bench(ScriptedEngine(tokenizer, lambda r, p: '{"sum": 2}')).session():
        answer = sdk.chat.completions.parse(model="m", messages=USER, response_format=Sum)
    assert answer.choices[0].message.parsed == Sum(sum=2)


@pytest.mark.parametrize("said", ['```json\n{"sum": 2}\n```', "It is 2."])
@pytest.mark.parametrize("door", ["chat", "responses"])
def test_a_streamed_answer_without_the_form_is_recorded_though_the_sdk_would_stop_at_its_first_piece(
    bench, tokenizer, sdk, said, door
) -> None:
    class Sum(pydantic.BaseModel):
        sum: int

    with bench(ScriptedEngine(tokenizer, lambda r, p: said)).session() as session:
        opened = (
            sdk.chat.completions.stream(model="m", messages=USER, response_format=Sum)
            if door == "chat"
            else sdk.responses.stream(model="m", input="hi", text_format=Sum)
        )
        with pytest.raises(openai.UnprocessableEntityError), opened as events:
            list(events)
    assert len(session.record.calls) == 1


# ---------------------------------------------------------------- requests that no message leads to


def ask(bench: Any, session: Any, **request: Any) -> Any:
    """A request as a wire would make it; the reply's id is the text of its last message."""

    async def answer() -> Any:
        asked = ChatRequest("m", request.pop("messages", ()), request.pop("tools", ()), **request)
        choices = await session.choices(asked, "agent", None, False)
        return session.take(asked, choices, "r1")

    return bench.portal.submit(answer()).result(PATIENCE)


def test_text_without_a_chat_is_continued_as_it_is(bench, tokenizer) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: " and <tool_call> it goes on"))
    prompt = "<|im_start|>user\nOnce upon a time"
    with b.session() as session:
        (one,) = ask(b, session, prompt=prompt, stop=("goes",))
        ids = [*tokenizer.encode(prompt), *session.record.calls[0].generation.token_ids.tolist()]
        (two,) = ask(b, session, prompt=ids)
    assert one.message["content"] == " and <tool_call> it " and one.prompt_tokens == len(
        tokenizer.encode(prompt)
    )
    assert two.message["content"] == " and <tool_call> it goes on"
    (line,) = timelines(session.record.trained_calls)
    assert line.mask.sum() == one.completion_tokens + two.completion_tokens and not session.record.exchanges
    for nothing in ("", [], [len(tokenizer)], [-1]):
        with b.session() as other, pytest.raises(Refused, match="at least one token"):
            ask(b, other, prompt=nothing)


def test_an_earlier_reply_is_continued_by_its_id(bench, tokenizer) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda r, p: "ok"))
    system = {"role": "system", "content": "Be brief."}
    with b.session() as session:
        ask(b, session, messages=[system, *USER], instructed=True)
        ask(b, session, messages=[system, *USER], instructed=True, after="r1")
        ask(b, session, messages=[system, *USER], instructed=True, after="r1")
        ask(b, session, messages=USER, tools=[TOOL], after="r1")
        with pytest.raises(Refused, match="no earlier reply 'r9'"):
            ask(b, session, messages=USER, after="r9")
    lines = timelines(session.record.trained_calls)
    assert sorted(len(line.spans) for line in lines) == [1, 3], "other tools, other conversation"
    roles = ["".join(m["role"][0] for m in e.chat()) for e in session.record.exchanges]
    assert roles[:3] == ["sua", "suaua", "suauaua"] and roles[3] == "uauauaua", (
        "instructions do not carry over"
    )


def test_an_answer_of_a_frozen_model_that_was_cut_says_so_and_what_was_replaced_is_counted(
    bench, tokenizer, sdk
) -> None:
    class Critic:
        async def complete(self, messages: Any, tools: Any, sampling: Any) -> Any:
            return {"role": "assistant", "content": '{"a": "half', "finish_reason": "length"}

    targets = (Target("critic", ("*",), Critic(), trained=False),)
    with bench(ScriptedEngine(tokenizer, lambda r, p: "")).session(targets=targets) as session:
        asked = {"model": "m", "messages": USER, "temperature": 0, "response_format": {"type": "json_object"}}
        choice = sdk.chat.completions.create(**asked).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("length", '{"a": "half')
    assert session.counters["overridden:temperature"] == 1


def test_labels_and_target_patterns_choose_who_answers(bench, tokenizer, sdk) -> None:
    class Critic:
        async def complete(self, messages: Any, tools: Any, sampling: Any) -> Any:
            return {"role": "assistant", "content": "frozen"}

    targets = (Target("critic", ("critic*",), Critic(), trained=False), Target("solver", ("*",)))
    with bench(ScriptedEngine(tokenizer, lambda r, p: "sampled")).session(targets=targets) as session:
        with ajet.label(agent="critic-1"):
            frozen = sdk.chat.completions.create(model="m", messages=USER)
        sampled = sdk.chat.completions.create(model="m", messages=USER)
    assert [a.choices[0].message.content for a in (frozen, sampled)] == ["frozen", "sampled"]
    assert [(e.agent, e.target) for e in session.record.exchanges] == [
        ("critic-1", "critic"),
        ("agent", "solver"),
    ]
    assert [c.agent for c in session.record.calls] == ["agent"], "a chat model's answer has no tokens"


def test_the_callers_messages_stay_as_they_were(bench, tokenizer, sdk) -> None:
    messages: Any = [{"role": "developer", "content": [{"type": "text", "text": "be brief"}]}, *USER]
    copy = [dict(m) for m in messages]
    with bench(ScriptedEngine(tokenizer, lambda r, p: "ok")).session():
        sdk.chat.completions.create(model="m", messages=messages)
    assert messages == copy


def test_the_key_of_an_ended_episode_opens_no_other_one(bench, tokenizer) -> None:
    running = bench(ScriptedEngine(tokenizer, lambda r, p: "yes"))
    with running.session("one") as ended:
        pass
    body = {"model": "m", "messages": USER}
    with running.session("two") as open_one:
        for path, headers in (
            ("/v1", {"authorization": f"Bearer {ended.key}"}),
            ("/v1", {"x-api-key": ended.key}),
            (f"/k/{ended.key}/v1", {}),
        ):
            url = f"http://127.0.0.1:9{path}/chat/completions"
            reply = httpx.post(url, json=body, headers=headers)
            assert reply.status_code == 401 and reply.json()["error"]["code"] == "invalid_api_key"
        assert not open_one.record.exchanges
        own = httpx.post(url, json=body, headers={"authorization": f"Bearer {open_one.key}"})
        assert own.status_code == 200, "a key that opens something is enough"
