"""LlamaIndex: an agent with a tool, whose workflow streams its model's answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..programs import CLOSED, SYSTEM, calculate, require
from .checks import solves_alike

require("llama_index.core.agent.workflow", "llama_index.llms.openai_like")

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


async def solve(streaming: bool) -> str:
    llm = OpenAILike(
        model="m",
        api_base=CLOSED,
        api_key="k",
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
    )
    agent = FunctionAgent(tools=[calculator], llm=llm, system_prompt=SYSTEM, streaming=streaming)
    handler = agent.run("12 + 30")
    parts = [event async for event in handler.stream_events()]
    assert parts
    return str(await handler)


def test_an_agent_is_captured_whole_and_streamed(prepared: Callable[..., Any]) -> None:
    solves_alike(prepared, lambda: solve(False), lambda: solve(True))
