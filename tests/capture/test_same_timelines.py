"""One two-step tool task through every wire, streamed and not: the same tokens, whatever the dialect."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest

from ajet.testing import ScriptedEngine
from ajet.tracker.timelines import timelines

CLOSED = "http://127.0.0.1:9"  # the discard port: a request that gets out fails at once
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
QUESTION: Any = {"role": "user", "content": "1 + 1?"}
RULES = "Use the tool."


def adds(request: Any, prompt: str) -> str:
    if "<tool_response>" in prompt:
        return "<think>\nTwo.\n</think>\n\nIt is 2."
    return (
        "<think>\nAdd them.\n</think>\n\nI add.\n"
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    )


def by_chat(stream: bool) -> str:
    client = openai.OpenAI(base_url=f"{CLOSED}/v1", api_key="k", max_retries=0)
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}

    def ask(messages: Any) -> Any:
        if not stream:
            return client.chat.completions.create(model="m", messages=messages, tools=[tool])
        with client.chat.completions.stream(model="m", messages=messages, tools=[tool]) as events:
            return events.get_final_completion()

    messages: list[Any] = [{"role": "system", "content": RULES}, QUESTION]
    first = ask(messages).choices[0]
    assert first.finish_reason == "tool_calls"
    call = first.message.tool_calls[0]
    sent = {"id": call.id, "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    messages.append({"role": "assistant", "content": first.message.content, "tool_calls": [sent]})
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "2"})
    return str(ask(messages).choices[0].message.content)


def by_responses(stream: bool, after: bool = False) -> str:
    client = openai.OpenAI(base_url=f"{CLOSED}/v1", api_key="k", max_retries=0)
    tool: Any = {"type": "function", "name": "add", "parameters": PARAMETERS, "strict": None}

    def ask(**options: Any) -> Any:
        options = {"model": "m", "instructions": RULES, "tools": [tool], **options}
        if not stream:
            return client.responses.create(**options)
        with client.responses.stream(**options) as events:
            return events.get_final_response()

    first = ask(input=[QUESTION])
    call = next(item for item in first.output if item.type == "function_call")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
    again = {"input": [QUESTION, *first.output, output]}
    second = ask(**({"input": [output], "previous_response_id": first.id} if after else again))
    assert first.output_text == "I add." and second.status == "completed"
    return str(second.output_text)


def by_previous_response(stream: bool) -> str:
    return by_responses(stream, after=True)


def by_anthropic(stream: bool) -> str:
    client = anthropic.Anthropic(base_url=CLOSED, api_key="k", max_retries=0)
    tool: Any = {"name": "add", "input_schema": PARAMETERS}

    def ask(messages: Any) -> Any:
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        options: Any = {
            "model": "m",
            "max_tokens": 500,
            "system": RULES,
            "tools": [tool],
            "thinking": thinking,
        }
        if not stream:
            return client.messages.create(messages=messages, **options)
        with client.messages.stream(messages=messages, **options) as events:
            return events.get_final_message()

    first = ask([QUESTION])
    assert first.stop_reason == "tool_use" and [b.type for b in first.content[:2]] == ["thinking", "text"]
    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "2"}
    answer = {"role": "assistant", "content": first.content}
    second = ask([QUESTION, answer, {"role": "user", "content": [result]}])
    assert second.stop_reason == "end_turn"
    return str(second.content[-1].text)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("agent", [by_chat, by_responses, by_previous_response, by_anthropic])
def test_a_tool_task_has_the_timeline_of_chat_completions(
    bench, tokenizer, agent: Callable[[bool], str], stream: bool
) -> None:
    b = bench(ScriptedEngine(tokenizer, adds))
    with b.session() as expected:
        by_chat(False)
    with b.session() as session:
        assert agent(stream) == "It is 2."
    (one,), (two,) = timelines(expected.record.trained_calls), timelines(session.record.trained_calls)
    assert (one.token_ids == two.token_ids).all() and (one.mask == two.mask).all()
    np.testing.assert_array_equal(one.logprobs, two.logprobs)
    assert not session.counters["rendered_anew"] and len(session.record.calls) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_goes_on_with_the_very_tokens(bench, tokenizer, stream) -> None:
    client = openai.OpenAI(base_url=f"{CLOSED}/v1", api_key="k", max_retries=0)
    prompt = tokenizer.encode("once upon", add_special_tokens=False)
    with bench(ScriptedEngine(tokenizer, lambda r, p: " a time")).session() as session:
        found: Any = client.completions.create(model="m", prompt=prompt, stream=stream)
        text = "".join(c.choices[0].text for c in found) if stream else found.choices[0].text
    assert text == " a time"
    (line,) = timelines(session.record.trained_calls)
    assert line.token_ids[: len(prompt)].tolist() == prompt
    assert line.mask[: len(prompt)].sum() == 0


@pytest.mark.parametrize("stream", [False, True])
def test_the_logprobs_are_those_that_were_recorded(bench, tokenizer, stream) -> None:
    client = openai.OpenAI(base_url=f"{CLOSED}/v1", api_key="k", max_retries=0)
    with bench(ScriptedEngine(tokenizer, lambda r, p: "a time")).session() as session:
        asked: Any = {"model": "m", "input": "once", "include": ["message.output_text.logprobs"]}
        if stream:
            with client.responses.stream(**asked) as events:
                response: Any = events.get_final_response()
        else:
            response = client.responses.create(**asked)
        legacy: Any = client.completions.create(model="m", prompt="once", logprobs=0, stream=stream)
        last = list(legacy)[-1] if stream else legacy
    content = response.output[0].content[0].model_dump()  # the SDK before 2.0 knows no logprobs there
    told = [t["logprob"] for t in content["logprobs"]]
    first, second = session.record.calls
    assert told == pytest.approx(first.generation.logprobs.tolist())
    assert last.choices[0].logprobs.token_logprobs == pytest.approx(second.generation.logprobs.tolist())


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_tool_that_is_not_called_is_an_error_of_the_dialect(bench, tokenizer, stream) -> None:
    client = openai.OpenAI(base_url=f"{CLOSED}/v1", api_key="k", max_retries=0)
    claude = anthropic.Anthropic(base_url=CLOSED, api_key="k", max_retries=0)
    flat: Any = {"type": "function", "name": "add", "parameters": PARAMETERS}
    tool: Any = {"name": "add", "input_schema": PARAMETERS}
    options: Any = {"model": "m", "stream": stream}
    with bench(ScriptedEngine(tokenizer, lambda r, p: "no")).session():
        with pytest.raises(openai.APIError, match="has to call"):
            list(client.responses.create(input="hi", tools=[flat], tool_choice="required", **options))
        with pytest.raises(anthropic.APIError, match="has to call"):
            force: Any = {"type": "tool", "name": "add"}
            asked = {"max_tokens": 9, "messages": [QUESTION], "tools": [tool], "tool_choice": force}
            list(claude.messages.create(**asked, **options))


@pytest.mark.parametrize("path", ["/responses/compact", "/messages/count_tokens", "/messages/batches"])
def test_calls_beside_generation_are_refused_by_name(bench, tokenizer, path) -> None:
    with bench(ScriptedEngine(tokenizer, adds)).session():
        response = httpx.post(f"{CLOSED}/v1{path}", json={"model": "m"})
    assert response.status_code == 400 and f"{path} is not captured" in response.text


def test_the_key_of_an_anthropic_client_finds_its_episode(bench, tokenizer) -> None:
    b = bench(ScriptedEngine(tokenizer, adds))
    with b.session() as session:

        def ask() -> None:  # a thread has no context of its own: only the key tells the episode
            client = anthropic.Anthropic(base_url=CLOSED, api_key=session.key, max_retries=0)
            client.messages.create(model="m", max_tokens=50, messages=[QUESTION])

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert len(session.record.calls) == 1
