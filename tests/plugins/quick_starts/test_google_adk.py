"""Google's Agent Development Kit, with LiteLLM and on Google's own wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..programs import CLOSED, SYSTEM, calculate, require
from .checks import solves_alike

require("google.adk", "litellm")

from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.models.google_llm import Gemini
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


def by_litellm() -> Any:
    return LiteLlm(model="openai/m", api_base=CLOSED, api_key="k")


def by_google() -> Any:
    return Gemini(model="gemini-any", base_url="https://127.0.0.1:9")


async def solve(model: Any, mode: Any) -> str:
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


@pytest.mark.parametrize("make", [by_litellm, by_google])
def test_an_agent_is_captured_whole_and_streamed(
    make: Callable[[], Any], prepared: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    solves_alike(
        prepared, lambda: solve(make(), StreamingMode.NONE), lambda: solve(make(), StreamingMode.SSE)
    )
