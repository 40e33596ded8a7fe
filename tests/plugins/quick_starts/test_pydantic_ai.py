"""pydantic-ai: an agent with a plain tool, run and streamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..programs import CLOSED, SYSTEM, calculate, require
from .checks import solves_alike

require("pydantic_ai")

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=CLOSED, api_key="k"))
agent = Agent(model, system_prompt=SYSTEM)


@agent.tool_plain
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


async def whole() -> str:
    return str((await agent.run("12 + 30")).output)


async def streamed() -> str:
    parts = []

    async def handle(context: Any, events: Any) -> None:
        parts.extend([event async for event in events])

    result = await agent.run("12 + 30", event_stream_handler=handle)
    assert len(parts) > 4
    return str(result.output)


def test_an_agent_is_captured_whole_and_streamed(prepared: Callable[..., Any]) -> None:
    solves_alike(prepared, whole, streamed)
