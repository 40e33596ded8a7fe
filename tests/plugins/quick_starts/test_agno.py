"""Agno: an agent with a tool, run and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ajet.tracker.breaks import find_breaks

from ..programs import CLOSED, SYSTEM, calculate, require, script
from .checks import solves_alike

require("agno")

from agno.agent import Agent
from agno.models.openai import OpenAIChat


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


def agent() -> Any:
    model = OpenAIChat(id="m", base_url=CLOSED, api_key="k", max_retries=0)
    return Agent(model=model, tools=[calculator], system_message=SYSTEM, telemetry=False)


async def whole() -> str:
    return str((await agent().arun("12 + 30")).content)


async def streamed() -> str:
    parts = [event.content async for event in agent().arun("12 + 30", stream=True) if event.content]
    assert len(parts) > 1
    return "".join(parts)


def test_an_agent_is_captured_whole_and_streamed(prepared: Callable[..., Any]) -> None:
    """It gives tool calls other ids, so they are recognised by the merge policy `text` only."""
    solves_alike(prepared, whole, streamed, by_text=True)


def test_without_the_merge_policy_text_the_renamed_tool_calls_are_reported(
    prepared: Callable[..., Any],
) -> None:
    with prepared(script).session() as session:
        asyncio.run(whole())  # type: ignore[arg-type]
    assert [found.cause for found in find_breaks(session.record)] == ["tool-call ids changed"]
