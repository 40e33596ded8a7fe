"""langgraph-supervisor, langgraph-swarm and deepagents: several agents, each under its own name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ..programs import CLOSED, agents_of, by_rules, calculate, calling, lines, require

require("langchain_openai", "langchain.agents", "langgraph_supervisor", "langgraph_swarm", "deepagents")

from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm

model = ChatOpenAI(model="m", base_url=CLOSED, api_key="k", max_retries=0)
ASK: Any = {"messages": [{"role": "user", "content": "What is 12 + 30?"}]}
TOOL_USED = "<tool_response>\n42\n</tool_response>"


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


def expert(kind: str) -> Any:
    if kind == "create_agent":
        return create_agent(model, [calculator], system_prompt="You are the expert.", name="math_expert")
    return create_react_agent(model, [calculator], prompt="You are the expert.", name="math_expert")


@pytest.mark.parametrize("kind", ["create_react_agent", "create_agent"])
def test_the_supervisor_and_its_experts_have_their_own_names(kind: str, prepared: Callable[..., Any]) -> None:
    bench = prepared(
        by_rules(
            ("Successfully transferred back", "It is 42."),
            (TOOL_USED, "42"),
            ("You are the expert.", calling("calculator", expression="12 + 30")),
            ("You supervise.", calling("transfer_to_math_expert")),
        )
    )
    team = create_supervisor([expert(kind)], model=model, prompt="You supervise.").compile()
    with bench.session() as session:
        state = asyncio.run(team.ainvoke(ASK))
    assert state["messages"][-1].text == "It is 42."
    assert agents_of(session) == ["supervisor", "math_expert", "math_expert", "supervisor"]


def test_the_agents_of_a_swarm_have_their_own_names(prepared: Callable[..., Any]) -> None:
    bench = prepared(
        by_rules(
            (TOOL_USED, "It is 42."),
            ("You are the expert.", calling("calculator", expression="12 + 30")),
            ("You greet.", calling("transfer_to_math_expert")),
        )
    )
    handoff = create_handoff_tool(agent_name="math_expert", description="Ask the expert.")
    host = create_react_agent(model, [handoff], prompt="You greet.", name="host")
    swarm = create_swarm([host, expert("create_react_agent")], default_active_agent="host").compile()
    with bench.session() as session:
        state = asyncio.run(swarm.ainvoke(ASK))
    assert state["messages"][-1].text == "It is 42."
    assert agents_of(session) == ["host", "math_expert", "math_expert"]


def test_a_deep_agent_and_its_subagents_have_their_own_names(prepared: Callable[..., Any]) -> None:
    bench = prepared(
        by_rules(
            ("<tool_response>\nIt is 42.\n</tool_response>", "The expert says 42."),
            (TOOL_USED, "It is 42."),
            ("You are the expert.", calling("calculator", expression="12 + 30")),
            ("You lead.", calling("task", description="12 + 30", subagent_type="math_expert")),
        ),
        context_length=32768,
    )
    subagent: Any = {
        "name": "math_expert",
        "description": "It calculates.",
        "system_prompt": "You are the expert.",
        "tools": [calculator],
    }
    agent = create_deep_agent(model=model, system_prompt="You lead.", subagents=[subagent], name="lead")
    with bench.session() as session:
        state = asyncio.run(agent.ainvoke(ASK))
    assert state["messages"][-1].text == "The expert says 42."
    assert agents_of(session) == ["lead", "math_expert", "math_expert", "lead"]


def test_a_streamed_team_is_the_same_tokens(prepared: Callable[..., Any]) -> None:
    bench = prepared(
        by_rules((TOOL_USED, "It is 42."), ("You are", calling("calculator", expression="12 + 30")))
    )
    team = create_swarm([expert("create_react_agent")], default_active_agent="math_expert").compile()

    async def streamed() -> int:
        return len([part async for part in team.astream(ASK, stream_mode="messages", subgraphs=True)])

    with bench.session() as one:
        team.invoke(ASK)
    with bench.session() as two:
        assert asyncio.run(streamed()) > 2
    assert lines(one.record) == lines(two.record)
    assert agents_of(one) == agents_of(two) == ["math_expert", "math_expert"]
