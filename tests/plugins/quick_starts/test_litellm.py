"""LiteLLM: completions, whole and streamed, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from ..programs import CLOSED, SYSTEM, TOOL, calculate, lines, require, script
from .checks import solves

require("litellm")

import litellm

OPTIONS: dict[str, Any] = {"model": "openai/m", "api_base": CLOSED, "api_key": "k", "tools": [TOOL]}


async def complete(messages: list[Any], is_async: bool, stream: bool) -> Any:
    if is_async:
        reply = await litellm.acompletion(messages=messages, stream=stream, **OPTIONS)
        chunks = [chunk async for chunk in reply] if stream else []
    else:
        reply = await asyncio.to_thread(litellm.completion, messages=messages, stream=stream, **OPTIONS)
        chunks = await asyncio.to_thread(list, reply) if stream else []
    return litellm.stream_chunk_builder(chunks, messages) if stream else reply


async def solve(is_async: bool, stream: bool) -> str:
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "12 + 30"}]
    while True:
        message = (await complete(messages, is_async, stream)).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return str(message.content)
        for call in message.tool_calls:
            result = calculate(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_completions_are_captured_whole_and_streamed(is_async: bool, prepared: Callable[..., Any]) -> None:
    bench = prepared(script)
    whole = solves(bench, lambda: solve(is_async, False))
    streamed = solves(bench, lambda: solve(is_async, True))
    assert lines(whole.record) == lines(streamed.record)
