"""The OpenAI SDK, unchanged, answered in this process: nothing ever reaches the network."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import httpx2
import numpy as np
import openai
import pytest

import ajet
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.targets import Target
from ajet.testing import ScriptedEngine, logprob_of
from ajet.tracker.timelines import timelines

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
        thread.join(10)
    assert len(session.record.exchanges) == 1
    with pytest.raises(openai.BadRequestError, match="outside any episode"):
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
    engine = ScriptedEngine(tokenizer, lambda r, p: "late", seconds=30)
    with bench(engine).session() as session, pytest.raises(openai.APITimeoutError):
        openai.OpenAI(base_url=CLOSED, api_key="k", max_retries=0, timeout=0.1).chat.completions.create(
            model="m", messages=USER
        )
    assert engine.cancelled == 1 and not session.record.calls


def test_a_cancelled_task_cancels_the_generation(bench, tokenizer) -> None:
    async def agent() -> None:
        client = openai.AsyncOpenAI(base_url=CLOSED, api_key="k")
        async with asyncio.timeout(0.1):
            await client.chat.completions.create(model="m", messages=USER)

    engine = ScriptedEngine(tokenizer, lambda r, p: "late", seconds=30)
    with bench(engine).session() as session, pytest.raises(TimeoutError):
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


def test_n_choices_are_one_branch_each(bench, tokenizer, sdk) -> None:
    with bench(ScriptedEngine(tokenizer, lambda r, p: str(r.key[1]))).session() as session:
        answer = sdk.chat.completions.create(model="m", messages=USER, n=3)
    assert [c.message.content for c in answer.choices] == ["0", "1", "2"]
    assert len(timelines(session.record.trained_calls)) == 3


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"stream": True}, "stream=true"),
        ({"logprobs": True}, "logprobs=true"),
        ({"tool_choice": "required"}, 'tool_choice="required"'),
        ({"response_format": {"type": "json_object"}}, "response_format=json_object"),
        ({"frequency_penalty": 1.0}, "frequency_penalty=1.0"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls=false"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(bench, tokenizer, sdk, extra, named) -> None:
    with (
        bench(ScriptedEngine(tokenizer, lambda r, p: "ok")).session() as session,
        pytest.raises(openai.BadRequestError, match=named),
    ):
        sdk.chat.completions.create(model="m", messages=USER, **extra)
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


def test_other_llm_wires_are_refused_by_name_inside_an_episode(bench, tokenizer, sdk) -> None:
    with (
        bench(ScriptedEngine(tokenizer, lambda r, p: "ok")).session(),
        pytest.raises(openai.BadRequestError, match="/responses is not captured"),
    ):
        sdk.responses.create(model="m", input="hi")


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
