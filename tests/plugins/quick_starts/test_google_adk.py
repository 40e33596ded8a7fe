"""Google's Agent Development Kit: with LiteLLM it is captured; on Google's own wire it is refused with the remedy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ..programs import CLOSED, SYSTEM, calculate, require, script
from .checks import solves_alike

require("google.adk", "litellm")

from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import Client, errors, types


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


async def solve(mode: Any) -> str:
    model = LiteLlm(model="openai/m", api_base=CLOSED, api_key="k")
    agent = LlmAgent(name="solver", model=model, instruction=SYSTEM, tools=[calculator])
    runner = InMemoryRunner(agent=agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="u")
    events = runner.run_async(
        user_id="u",
        session_id=session.id,
        new_message=types.Content(role="user", parts=[types.Part(text="12 + 30")]),
        run_config=RunConfig(streaming_mode=mode),
    )
    said = [
        part.text
        async for event in events
        for part in (event.content.parts if event.content and not event.partial else None) or ()
        if part.text
    ]
    return said[-1]


def test_an_agent_with_litellm_is_captured_whole_and_streamed(prepared: Callable[..., Any]) -> None:
    solves_alike(prepared, lambda: solve(StreamingMode.NONE), lambda: solve(StreamingMode.SSE))


@pytest.mark.parametrize("is_async", [False, True], ids=["httpx", "aiohttp"])
def test_googles_own_wire_is_refused_with_the_remedy(is_async: bool, prepared: Callable[..., Any]) -> None:
    options = types.HttpOptions(base_url="https://127.0.0.1:9")
    asked: dict[str, Any] = {"model": "gemini", "contents": "hi"}
    with prepared(script).session() as session, pytest.raises(errors.ClientError, match="LiteLLM"):
        client = Client(api_key="k", http_options=options)
        if is_async:
            asyncio.run(client.aio.models.generate_content(**asked))
        else:
            client.models.generate_content(**asked)
    (refusal,) = session.refusals
    assert refusal.url == "https://127.0.0.1:9/v1beta/models/gemini:generateContent"
