"""CrewAI: a crew of one agent with a tool, run and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import ajet

from ..programs import CLOSED, agents_of, by_rules, calculate, calling, require

require("crewai")

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("calculator")
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


def crew(stream: bool) -> Any:
    llm = LLM(model="openai/gpt-4o-mini", base_url=CLOSED, api_key="k", stream=stream, max_retries=0)
    solver = Agent(
        role="Solver", goal="Solve sums.", backstory="A clerk.", tools=[calculator], llm=llm, max_iter=4
    )
    task = Task(description="12 + 30", expected_output="A number.", agent=solver)
    return Crew(agents=[solver], tasks=[task])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_crew_is_captured(stream: bool, prepared: Callable[..., Any]) -> None:
    bench = prepared(
        by_rules(
            ("<tool_response>\n42", "The result is 42."),
            ("12 + 30", calling("calculator", expression="12 + 30")),
        )
    )
    with bench.session() as session, ajet.label(agent="solver"):
        result = asyncio.run(asyncio.to_thread(lambda: crew(stream).kickoff().raw))  # type: ignore[arg-type]
    assert "The result is 42." in str(result)
    assert agents_of(session) == ["solver", "solver"] and not session.refusals
    assert "calculator" in str(session.record.exchanges[0].chat())
