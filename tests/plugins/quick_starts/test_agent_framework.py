"""Microsoft Agent Framework: an agent with a tool, run and streamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..programs import CLOSED, SYSTEM, calculate, require
from .checks import solves_alike

require("agent_framework.openai")

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


def agent() -> Any:
    client = OpenAIChatCompletionClient(model="m", base_url=CLOSED, api_key="k")
    return Agent(client=client, instructions=SYSTEM, tools=[calculator])


async def whole() -> str:
    return str((await agent().run("12 + 30")).text)


async def streamed() -> str:
    parts = [update.text async for update in agent().run("12 + 30", stream=True) if update.text]
    assert len(parts) > 1
    return "".join(parts)


def test_an_agent_is_captured_whole_and_streamed(prepared: Callable[..., Any]) -> None:
    solves_alike(prepared, whole, streamed)
