"""smolagents: agents that call tools, and agents that write code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ajet.tracker.breaks import find_breaks

from ..programs import CLOSED, agents_of, by_rules, calculate, calling, lines, require

require("smolagents")

from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

model = OpenAIServerModel("m", api_base=CLOSED, api_key="k")

LONG = 32_768
"""Its system prompts are."""


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: The expression.
    """
    return calculate(expression)


def run(agent: Any) -> str:
    return str(agent.run("12 + 30"))


def test_an_agent_that_calls_tools_is_captured_whole_and_streamed(prepared: Callable[..., Any]) -> None:
    """It sends its tool calls back as text, so that each call is a timeline of its own."""
    bench = prepared(
        by_rules(
            ("Observation:\n42", calling("final_answer", answer="42")),
            ("12 + 30", calling("calculator", expression="12 + 30")),
        ),
        context_length=LONG,
    )
    for stream in (False, True):
        with bench.session() as session:
            agent = ToolCallingAgent([calculator], model, verbosity_level=0, stream_outputs=stream)
            assert run(agent) == "42"
        assert agents_of(session) == ["agent", "agent"] and not session.refusals
        assert [found.cause for found in find_breaks(session.record)] == ["answer edited"], "as it must be"


def test_an_agent_that_writes_code_is_captured_in_a_thread(prepared: Callable[..., Any]) -> None:
    code = "Thought: I calculate.\n<code>\nfinal_answer(calculator('12 + 30'))\n</code>"
    with prepared(by_rules(("12 + 30", code)), context_length=LONG).session() as session:
        agent = CodeAgent([calculator], model, verbosity_level=0)
        assert asyncio.run(asyncio.to_thread(run, agent)) == "42"  # type: ignore[arg-type]
    assert agents_of(session) == ["agent"] and len(lines(session.record)) == 1
