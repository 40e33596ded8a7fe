"""The two-step tool task of `tests.plugins.programs` by bare clients: SDKs, raw HTTP, curl, Node.js.

Each takes the base URL (up to ``/v1``), the key and whether to stream, and returns what it saw.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
import requests
from google import genai

from ajet.interfaces.workflow import EpisodeEndpoint
from tests.patience import PATIENCE

from ..plugins.programs import SCHEMA, SYSTEM, TOOL, Seen, calculate

Client = Callable[[str, str, bool], Seen]
NODE = Path(__file__).parents[1] / "node"
QUESTION: Any = {"role": "user", "content": "12 + 30"}


@dataclass(frozen=True)
class Turn:
    """One answer of the model, whatever the dialect. ``said`` is what goes back into the chat."""

    said: list[Any]
    text: str
    reason: str
    calls: Mapping[str, tuple[str, str]]
    """By id: name and arguments as JSON text."""
    tokens: tuple[int, int]


def solve(ask: Callable[[list[Any]], Turn], chat: list[Any], results: Callable[..., list[Any]]) -> Seen:
    """Ask, run the calculator, ask again; ``results`` words its results in the dialect."""
    seen = Seen("", tokens=(0, 0))
    while not seen.answer:
        turn = ask(chat)
        assert seen.tokens
        seen.tokens = (seen.tokens[0] + turn.tokens[0], seen.tokens[1] + turn.tokens[1])
        seen.reasons.append(turn.reason)
        called = {call_id: json.loads(arguments) for call_id, (_, arguments) in turn.calls.items()}
        seen.calls += [(name, called[call_id]) for call_id, (name, _) in turn.calls.items()]
        chat = chat + turn.said
        if called:
            chat = chat + results({call_id: calculate(**values) for call_id, values in called.items()})
        else:
            seen.answer = turn.text
    return seen


# ------------------------------------------------------------------ chat completions


def tool_messages(results: Mapping[str, str]) -> list[Any]:
    return [{"role": "tool", "tool_call_id": i, "content": text} for i, text in results.items()]


def turn_of(message: Mapping[str, Any], reason: str, usage: Mapping[str, int]) -> Turn:
    """A turn of a chat completion. What is sent back lacks the reasoning, as with most clients."""
    calls = message.get("tool_calls") or []
    sent: dict[str, Any] = {"role": "assistant", "content": message.get("content")}
    if calls:
        keys = ("id", "type", "function")
        sent["tool_calls"] = [{k: c[k] for k in keys} for c in calls]
    functions = {c["id"]: (c["function"]["name"], c["function"]["arguments"]) for c in calls}
    tokens = (usage["prompt_tokens"], usage["completion_tokens"])
    return Turn([sent], message.get("content") or "", reason, functions, tokens)


def completed(text: str) -> Turn:
    """A turn of a chat completion."""
    reply = json.loads(text)
    (choice,) = reply["choices"]
    return turn_of(choice["message"], choice["finish_reason"], reply["usage"])


def joined(lines: Iterable[str]) -> Turn:
    """A turn of the chunks of a chat completion, as lines of server-sent events."""
    message: dict[str, Any] = {"content": None, "tool_calls": {}}
    reason, usage, last = "", {}, ""
    for line in lines:
        last = line or last
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line.removeprefix("data: "))
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            reason = choice["finish_reason"] or reason
            delta = choice["delta"]
            if delta.get("content") is not None:
                message["content"] = (message["content"] or "") + delta["content"]
            for piece in delta.get("tool_calls") or ():
                call = message["tool_calls"].setdefault(piece["index"], piece)
                if call is not piece:
                    call["function"]["arguments"] += piece["function"]["arguments"]
    assert last == "data: [DONE]"
    return turn_of({**message, "tool_calls": list(message["tool_calls"].values())}, reason, usage)


Post = Callable[[str, str, bytes], str]
"""Posts JSON to a URL with a key; the response's body."""


def by_raw_http(post: Post, url: str, key: str, stream: bool) -> Seen:
    def ask(chat: list[Any]) -> Turn:
        body: dict[str, Any] = {"model": "m", "messages": chat, "tools": [TOOL], "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        text = post(f"{url}/chat/completions", key, json.dumps(body).encode())
        return joined(text.splitlines()) if stream else completed(text)

    return solve(ask, [{"role": "system", "content": SYSTEM}, QUESTION], tool_messages)


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", "content-type": "application/json"}


def by_httpx(module: Any) -> Post:
    def post(url: str, key: str, body: bytes) -> str:
        with module.stream("POST", url, content=body, headers=headers(key), timeout=PATIENCE) as response:
            return "\n".join(response.iter_lines())

    return post


def with_urllib(url: str, key: str, body: bytes) -> str:
    with urllib.request.urlopen(
        urllib.request.Request(url, body, headers(key)), timeout=PATIENCE
    ) as response:
        return str(response.read().decode())


def with_requests(url: str, key: str, body: bytes) -> str:
    with requests.post(url, body, headers=headers(key), stream=True, timeout=PATIENCE) as response:
        return "\n".join(line.decode() for line in response.iter_lines())


def with_curl(url: str, key: str, body: bytes) -> str:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    command = ["curl", "-sSN", "--fail-with-body", "--max-time", str(PATIENCE), url, "--data-binary", "@-"]
    for name, value in headers(key).items():
        command += ["-H", f"{name}: {value}"]
    return subprocess.run(command, input=body, capture_output=True, check=True).stdout.decode()


# ------------------------------------------------------------------ SDKs


def by_chat(url: str, key: str, stream: bool) -> Seen:
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=PATIENCE)

    def ask(chat: list[Any]) -> Turn:
        asked: Any = {"model": "m", "messages": chat, "tools": [TOOL]}
        if stream:
            usage: Any = {"include_usage": True}
            with client.chat.completions.stream(**asked, stream_options=usage) as events:
                reply: Any = events.get_final_completion()
        else:
            reply = client.chat.completions.create(**asked)
        choice = reply.choices[0]
        return turn_of(choice.message.model_dump(), choice.finish_reason, reply.usage.model_dump())

    return solve(ask, [{"role": "system", "content": SYSTEM}, QUESTION], tool_messages)


def by_responses(url: str, key: str, stream: bool, after: bool = False) -> Seen:
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=PATIENCE)
    tool: Any = {"type": "function", "strict": None, **TOOL["function"]}
    ids: list[str] = []

    def ask(chat: list[Any]) -> Turn:
        options: Any = {"model": "m", "instructions": SYSTEM, "tools": [tool], "input": chat}
        if after and ids:  # the earlier chat is known there; only what follows it is sent
            outputs = [item for item in chat if getattr(item, "type", None) is None and "output" in item]
            options |= {"input": outputs, "previous_response_id": ids[-1]}
        if stream:
            with client.responses.stream(**options) as events:
                reply: Any = events.get_final_response()
        else:
            reply = client.responses.create(**options)
        ids.append(reply.id)
        assert reply.status == "completed"
        calls = {i.call_id: (i.name, i.arguments) for i in reply.output if i.type == "function_call"}
        tokens = (reply.usage.input_tokens, reply.usage.output_tokens)
        return Turn(reply.output, reply.output_text, "tool_calls" if calls else "stop", calls, tokens)

    def outputs(results: Mapping[str, str]) -> list[Any]:
        return [{"type": "function_call_output", "call_id": i, "output": text} for i, text in results.items()]

    return solve(ask, [QUESTION], outputs)


def by_anthropic(url: str, key: str, stream: bool) -> Seen:
    client = anthropic.Anthropic(
        base_url=url.removesuffix("/v1"), api_key=key, max_retries=0, timeout=PATIENCE
    )
    tool = {"name": "calculator", "description": TOOL["function"]["description"], "input_schema": SCHEMA}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    options: Any = {"model": "m", "max_tokens": 500, "system": SYSTEM, "tools": [tool], "thinking": thinking}

    def ask(chat: list[Any]) -> Turn:
        if stream:
            with client.messages.stream(messages=chat, **options) as events:
                reply: Any = events.get_final_message()
        else:
            reply = client.messages.create(messages=chat, **options)
        blocks = reply.content
        calls = {b.id: (b.name, json.dumps(b.input)) for b in blocks if b.type == "tool_use"}
        reason = {"tool_use": "tool_calls", "end_turn": "stop"}[reply.stop_reason]
        text = "".join(b.text for b in blocks if b.type == "text")
        tokens = (reply.usage.input_tokens, reply.usage.output_tokens)
        return Turn([{"role": "assistant", "content": blocks}], text, reason, calls, tokens)

    def outputs(results: Mapping[str, str]) -> list[Any]:
        blocks = [{"type": "tool_result", "tool_use_id": i, "content": text} for i, text in results.items()]
        return [{"role": "user", "content": blocks}]

    return solve(ask, [QUESTION], outputs)


def by_google(url: str, key: str, stream: bool) -> Seen:
    options: Any = {"base_url": url.removesuffix("/v1"), "timeout": int(1000 * PATIENCE)}
    client = genai.Client(api_key=key, http_options=options)
    function = {**TOOL["function"], "parameters_json_schema": SCHEMA}
    del function["parameters"]
    config: Any = {
        "system_instruction": SYSTEM,
        "tools": [{"function_declarations": [function]}],
        "thinking_config": {"include_thoughts": True},
    }

    def ask(chat: list[Any]) -> Turn:
        options: Any = {"model": "m", "contents": chat, "config": config}
        whole, streamed = client.models.generate_content, client.models.generate_content_stream
        chunks = list(streamed(**options)) if stream else [whole(**options)]
        parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]  # type: ignore[index, union-attr]
        calls = {c.id: (c.name, json.dumps(c.args)) for part in parts if (c := part.function_call)}
        usage, reason = chunks[-1].usage_metadata, chunks[-1].candidates[0].finish_reason  # type: ignore[index]
        assert usage and reason == "STOP"
        prompt, total = usage.prompt_token_count or 0, usage.total_token_count or 0
        text = "".join(part.text for part in parts if part.text and not part.thought)
        said = {"role": "model", "parts": parts}
        return Turn([said], text, "tool_calls" if calls else "stop", calls, (prompt, total - prompt))  # type: ignore[arg-type]

    def outputs(results: Mapping[str, str]) -> list[Any]:
        told = [{"id": i, "name": "calculator", "response": {"output": text}} for i, text in results.items()]
        return [{"role": "user", "parts": [{"function_response": one} for one in told]}]

    return solve(ask, [{"role": "user", "parts": [{"text": QUESTION["content"]}]}], outputs)


# ------------------------------------------------------------------ Node.js


def by_node(wire: str, url: str, key: str, stream: bool) -> Seen:
    """The npm package ``openai`` in a process of its own."""
    if not shutil.which("node"):
        pytest.skip("Node.js is not installed")
    if not (NODE / "node_modules" / "openai").exists():
        pytest.skip("the npm package openai is not installed: npm install --prefix tests/node")
    task = {"wire": wire, "stream": stream, "system": SYSTEM, "question": QUESTION["content"], "tool": TOOL}
    ran = subprocess.run(
        ["node", str(NODE / "agent.mjs")],
        input=json.dumps(task),
        env={**os.environ, **EpisodeEndpoint(url, key).environment()},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert not ran.returncode, ran.stderr
    told = json.loads(ran.stdout)
    calls = [(name, values) for name, values in told["calls"]]
    prompt, completion = told["tokens"]
    return Seen(told["answer"], told["reasons"], calls, (prompt, completion))


HOOKED: dict[str, Client] = {
    "httpx": partial(by_raw_http, by_httpx(httpx)),
    "httpx2": partial(by_raw_http, by_httpx(httpx2)),
    "openai": by_chat,
    "openai on responses": by_responses,
    "openai after an earlier response": partial(by_responses, after=True),
    "anthropic": by_anthropic,
    "google": by_google,
}
"""What the hook sees in this process."""
OTHERS: dict[str, Client] = {
    "urllib": partial(by_raw_http, with_urllib),
    "requests": partial(by_raw_http, with_requests),
    "curl -N": partial(by_raw_http, with_curl),
    "openai for Node.js": partial(by_node, "chat"),
    "openai for Node.js on responses": partial(by_node, "responses"),
}
"""What only the gateway can answer."""
