"""dspy, whose HTTP client is its own: a predictor, an agent with tools, and streamed answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import ajet

from ..programs import CLOSED, agents_of, calculate, lines, require

require("dspy")

import dspy


def model() -> Any:
    return dspy.LM("openai/m", api_base=CLOSED, api_key="k", cache=False, num_retries=0)


def answers(request: Any, prompt: str) -> str:
    """In the form of dspy's chat adapter: a tool call, then its end, then the answer."""
    if "next_tool_name" not in prompt.rpartition("<|im_start|>system")[2].partition("<|im_end|>")[0]:
        return "[[ ## reasoning ## ]]\nA sum.\n\n[[ ## answer ## ]]\n42\n\n[[ ## completed ## ]]"
    tool, arguments = (
        ("finish", "{}") if "observation_0" in prompt else ("calculator", '{"expression": "12 + 30"}')
    )
    return (
        f"[[ ## next_thought ## ]]\nA sum.\n\n[[ ## next_tool_name ## ]]\n{tool}\n\n"
        f"[[ ## next_tool_args ## ]]\n{arguments}\n\n[[ ## completed ## ]]"
    )


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_predictor_is_captured(is_async: bool, prepared: Callable[..., Any]) -> None:
    predict = dspy.ChainOfThought("question -> answer")
    bench = prepared(answers)
    with bench.session() as session, dspy.context(lm=model()), ajet.label(agent="solver"):
        found = asyncio.run(predict.acall(question="12 + 30")) if is_async else predict(question="12 + 30")
    assert found.answer == "42"
    assert agents_of(session) == ["solver"] and len(session.record.trained_calls) == 1


def test_an_agent_with_tools_is_captured(prepared: Callable[..., Any]) -> None:
    agent = dspy.ReAct("question -> answer", tools=[calculator])
    with prepared(answers).session() as session, dspy.context(lm=model()):
        found = agent(question="12 + 30")
    assert found.answer == "42" and "42" in found.trajectory["observation_0"]
    assert agents_of(session) == ["agent"] * 3 and not session.refusals


def test_streamed_answers_are_the_same_tokens(prepared: Callable[..., Any]) -> None:
    bench = prepared(answers)
    predict = dspy.ChainOfThought("question -> answer")

    async def streamed() -> list[Any]:
        listener = dspy.streaming.StreamListener(signature_field_name="answer")
        program = dspy.streamify(predict, stream_listeners=[listener])
        return [part async for part in program(question="12 + 30")]

    with dspy.context(lm=model()):
        with bench.session() as one:
            predict(question="12 + 30")
        with bench.session() as two:
            parts = asyncio.run(streamed())
    assert parts[-1].answer == "42" and len(parts) > 1
    assert lines(one.record) == lines(two.record)
