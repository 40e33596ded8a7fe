"""Strands: an agent with a tool; its answers are always streamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..programs import CLOSED, SYSTEM, calculate, require
from .checks import solves_alike

require("strands", "strands.models.openai")

from strands import Agent, tool
from strands.models.openai import OpenAIModel


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: The expression.
    """
    return calculate(expression)


def agent() -> Any:
    model = OpenAIModel(client_args={"base_url": CLOSED, "api_key": "k", "max_retries": 0}, model_id="m")
    return Agent(model=model, tools=[calculator], system_prompt=SYSTEM, callback_handler=None)


async def at_once() -> str:
    return str(await agent().invoke_async("12 + 30"))


async def streamed() -> str:
    parts = [event["data"] async for event in agent().stream_async("12 + 30") if "data" in event]
    assert len(parts) > 1
    return "".join(parts)


def test_an_agent_is_captured_whole_and_streamed(prepared: Callable[..., Any]) -> None:
    solves_alike(prepared, at_once, streamed)
