"""One two-step tool task by every client, streamed and not: the same tokens, whatever the dialect and the door."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai

from ajet.testing import ScriptedEngine
from ajet.tracker.timelines import timelines
from tests.engines import Waiting
from tests.tiers import thinned

from ..plugins.programs import SCHEMA, TOOL, ask_plainly, calling, lines, script
from .clients import HOOKED, OTHERS, QUESTION, by_node
from .doors import Door, behind, whole_and_streamed

CLOSED = "http://127.0.0.1:9"  # the discard port: a request that gets out fails at once
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}


def adds(request: Any, prompt: str) -> str:
    return "It is 2." if "<tool_response>" in prompt else calling("add", a=1)


# ---------------------------------------------------------------- one task, whoever asks


@whole_and_streamed
@pytest.mark.parametrize(
    ("door", "name"),
    [*(("hook", name) for name in HOOKED), *(("gateway", name) for name in (*HOOKED, *OTHERS))],
)
@thinned
def test_every_client_comes_to_the_same_tokens_and_sees_what_it_should(
    bench, tokenizer, door: Door, name: str, stream: bool
) -> None:
    b = bench(ScriptedEngine(tokenizer, script))
    with b.session() as session:
        ask_plainly()
    expected = lines(session.record)
    assert len(expected) == 1, "one conversation, one timeline"
    with b.session() as session, behind(door, b) as url:
        seen = (HOOKED | OTHERS)[name](url, session.key, stream)
    assert lines(session.record) == expected
    calls = session.record.calls
    assert [call.parent for call in calls] == [None, 0], "continued by its stored ids"
    assert seen.answer == "The result is 42."
    assert seen.calls == [("calculator", {"expression": "12 + 30"})]
    assert seen.reasons == ["tool_calls", "stop"]
    assert seen.tokens == (
        sum(c.prompt.length for c in calls),
        sum(len(c.generation.token_ids) for c in calls),
    )
    assert not session.counters["rendered_anew"] and len(calls) == 2


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_curl_prints_the_events_while_they_are_sampled(bench, tokenizer) -> None:
    told: list[str] = []
    b = bench(Waiting(tokenizer, lambda r, p: "one two three four five", until=lambda: len(told) > 3))
    body = json.dumps({"model": "m", "messages": [QUESTION], "stream": True})
    with b.session() as session, behind("gateway", b) as url:
        command = ["curl", "-sSN", "--max-time", "90", f"{url}/chat/completions", "-d", body]
        command += ["-H", f"Authorization: Bearer {session.key}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
            assert curl.stdout
            for line in curl.stdout:
                if line.startswith("data: "):
                    told.append(line)
    assert curl.returncode == 0 and told[-1].strip() == "data: [DONE]"
    assert len(session.record.calls) == 1


# ---------------------------------------------------------------- numbers as JavaScript writes them

NUMBERS = '{"a": 1.0, "b": -0.0, "c": 12345678901234567890, "d": 1e21, "e": [1.50, 1E-7], "f": {"g": 2.0}}'
BY_JAVASCRIPT = '{"a":1,"b":0,"c":12345678901234567000,"d":1e+21,"e":[1.5,1e-7],"f":{"g":2}}'


def numbers(request: Any, prompt: str) -> str:
    if "<tool_response>" in prompt:
        return "Done."
    return f'<tool_call>\n{{"name": "calculator", "arguments": {NUMBERS}}}\n</tool_call>'


def send_back_by_chat(client: httpx.Client) -> None:
    messages: list[Any] = [QUESTION]
    asked = {"model": "m", "messages": messages, "tools": [TOOL]}
    message = client.post("/chat/completions", json=asked).json()["choices"][0]["message"]
    message["tool_calls"][0]["function"]["arguments"] = BY_JAVASCRIPT
    messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "2"}]
    assert client.post("/chat/completions", json=asked).status_code == 200


def send_back_by_responses(client: httpx.Client) -> None:
    items: list[Any] = [QUESTION]
    asked = {"model": "m", "input": items, "tools": [{"type": "function", **TOOL["function"]}]}
    (call,) = client.post("/responses", json=asked).json()["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "2"}
    items += [call | {"arguments": BY_JAVASCRIPT}, output]
    assert client.post("/responses", json=asked).status_code == 200


def send_back_by_messages(client: httpx.Client) -> None:
    messages: list[Any] = [QUESTION]
    tool = {"name": "calculator", "input_schema": SCHEMA}
    asked = {"model": "m", "max_tokens": 500, "messages": messages, "tools": [tool]}
    (call,) = client.post("/messages", json=asked).json()["content"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "2"}
    messages.append({"role": "assistant", "content": [call | {"input": "HERE"}]})
    messages.append({"role": "user", "content": [result]})
    body = json.dumps(asked).replace('"HERE"', BY_JAVASCRIPT)  # Python would write some numbers otherwise
    assert client.post("/messages", content=body).status_code == 200


def send_back_by_contents(client: httpx.Client) -> None:
    contents: list[Any] = [{"role": "user", "parts": [{"text": QUESTION["content"]}]}]
    asked = {
        "contents": contents,
        "tools": [{"functionDeclarations": [{"name": "calculator", "parametersJsonSchema": SCHEMA}]}],
    }
    (candidate,) = client.post("/models/m:generateContent", json=asked).json()["candidates"]
    (part,) = candidate["content"]["parts"]
    call = part["functionCall"]
    result = {"id": call["id"], "name": call["name"], "response": {"output": "2"}}
    contents.append({"role": "model", "parts": [{"functionCall": call | {"args": "HERE"}}]})
    contents.append({"role": "user", "parts": [{"functionResponse": result}]})
    body = json.dumps(asked).replace('"HERE"', BY_JAVASCRIPT)
    assert client.post("/models/m:generateContent", content=body).status_code == 200


SENDING_BACK = [send_back_by_chat, send_back_by_responses, send_back_by_messages, send_back_by_contents]


@pytest.mark.parametrize("send", SENDING_BACK)
def test_numbers_that_javascript_wrote_again_are_recognised(bench, tokenizer, send) -> None:
    b = bench(ScriptedEngine(tokenizer, numbers))
    with b.session() as session, httpx.Client(base_url=f"{CLOSED}/v1") as client:
        send(client)
    assert [call.parent for call in session.record.calls] == [None, 0]
    assert len(timelines(session.record.trained_calls)) == 1 and not session.counters["rendered_anew"]


@pytest.mark.whole
@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_numbers_that_node_wrote_again_are_recognised(bench, tokenizer, wire) -> None:
    b = bench(ScriptedEngine(tokenizer, numbers))
    with b.session() as session, behind("gateway", b) as url:
        seen = by_node(wire, url, session.key, False)
    assert seen.calls == [("calculator", json.loads(BY_JAVASCRIPT))], "the script is as JavaScript is"
    assert [call.parent for call in session.record.calls] == [None, 0]
    assert len(timelines(session.record.trained_calls)) == 1 and not session.counters["rendered_anew"]


# ---------------------------------------------------------------- what else the wires have in common


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
    assert told == pytest.approx(first.generation.logprobs[:-1].tolist()), "without the token that ends it"
    assert last.choices[0].logprobs.token_logprobs == pytest.approx(second.generation.logprobs[:-1].tolist())


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_tool_that_is_not_called_is_an_error_of_the_dialect(bench, tokenizer, stream) -> None:
    client = openai.OpenAI(base_url=f"{CLOSED}/v1", api_key="k", max_retries=0)
    claude = anthropic.Anthropic(base_url=CLOSED, api_key="k", max_retries=0)
    flat: Any = {"type": "function", "name": "add", "parameters": PARAMETERS}
    tool: Any = {"name": "add", "input_schema": PARAMETERS}
    options: Any = {"model": "m", "stream": stream}
    with bench(ScriptedEngine(tokenizer, lambda r, p: "no")).session():
        with pytest.raises(openai.APIError, match="must call"):
            list(client.responses.create(input="hi", tools=[flat], tool_choice="required", **options))
        with pytest.raises(genai.errors.ClientError, match="must call"):
            google: Any = genai.Client(api_key="k", http_options={"base_url": CLOSED})
            calling: Any = {"mode": "ANY"}
            declared: Any = {"name": "add", "parameters_json_schema": PARAMETERS}
            config: Any = {
                "tools": [{"function_declarations": [declared]}],
                "tool_config": {"function_calling_config": calling},
            }
            models = google.models
            ask = models.generate_content_stream if stream else models.generate_content
            list(ask(model="m", contents="hi", config=config))
        with pytest.raises(anthropic.APIError, match="must call"):
            force: Any = {"type": "tool", "name": "add"}
            asked = {"max_tokens": 9, "messages": [QUESTION], "tools": [tool], "tool_choice": force}
            list(claude.messages.create(**asked, **options))


@pytest.mark.parametrize("path", ["/messages/batches", "/embeddings"])
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
