"""Haystack: an agent with a tool, run and streamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..programs import CLOSED, SCHEMA, SYSTEM, TOOL, calculate, require
from .checks import solves_alike

require("haystack")

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

calculator = Tool(
    name="calculator",
    description=TOOL["function"]["description"],
    parameters=SCHEMA,
    function=calculate,
)


def agent() -> Any:
    generator = OpenAIChatGenerator(
        api_key=Secret.from_token("k"), model="m", api_base_url=CLOSED, max_retries=0
    )
    return Agent(chat_generator=generator, tools=[calculator], system_prompt=SYSTEM)


async def whole() -> str:
    result = await agent().run_async(messages=[ChatMessage.from_user("12 + 30")])
    return str(result["last_message"].text)


async def streamed() -> str:
    parts: list[str] = []
    result = agent().run(
        messages=[ChatMessage.from_user("12 + 30")],
        streaming_callback=lambda chunk: parts.append(chunk.content),
    )
    assert len(parts) > 2
    return str(result["last_message"].text)


def test_an_agent_is_captured_whole_and_streamed(prepared: Callable[..., Any]) -> None:
    solves_alike(prepared, whole, streamed)
