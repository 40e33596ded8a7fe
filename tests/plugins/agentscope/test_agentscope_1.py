"""AgentScope 1.x, the last with a tuner of its own: in an environment of its own (`make test-matrix`)."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from ajet import Tuner
from ajet.plugins import load_plugins
from ajet.tracker.timelines import timelines

from ..programs import CLOSED, SYSTEM, agents_of, by_rules, calculate, calling, require, script

require("agentscope")
if not importlib.metadata.version("agentscope").startswith("1."):
    pytest.skip("AgentScope 1 is not installed: make test-matrix", allow_module_level=True)

from agentscope.agent import AgentBase, ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg, TextBlock
from agentscope.model import OpenAIChatModel
from agentscope.tool import Toolkit, ToolResponse

REPLY = ReActAgent.reply


def model() -> OpenAIChatModel:
    return OpenAIChatModel(
        "m", api_key="k", stream=False, client_kwargs={"base_url": CLOSED, "max_retries": 0}
    )


def agent(name: str, *tools: Any, prompt: str | None = None, using: Any = None) -> ReActAgent:
    toolkit = Toolkit()
    for tool in tools:
        toolkit.register_tool_function(tool)
    made = ReActAgent(
        name=name,
        sys_prompt=prompt or f"You are {name}.",
        model=using or model(),
        formatter=OpenAIChatFormatter(),
        toolkit=toolkit,
        memory=InMemoryMemory(),
    )
    made.set_console_output_enabled(False)
    return made


def ask(who: ReActAgent, text: str = "hi") -> str:
    return asyncio.run(who(Msg("user", text, "user"))).get_text_content() or ""


def calculator(expression: str) -> ToolResponse:
    """Evaluate an arithmetic expression."""
    return ToolResponse(content=[TextBlock(type="text", text=calculate(expression))])


def test_the_two_steps_of_a_sum_are_one_timeline(prepared: Callable[..., Any]) -> None:
    solver = agent("solver", calculator, prompt=SYSTEM)  # made before the episode
    with prepared(script).session() as session:
        assert ask(solver, "12 + 30") == "The result is 42."
    (line,) = timelines(session.record.trained_calls)
    assert line.mask.sum() == sum(len(c.generation.token_ids) for c in session.record.calls)
    assert agents_of(session) == ["solver", "solver"]


def test_an_agent_used_as_a_tool_has_a_name_of_its_own(prepared: Callable[..., Any]) -> None:
    async def consult(question: str) -> ToolResponse:
        """Ask the expert."""
        said = await agent("expert")(Msg("boss", question, "user"))
        return ToolResponse(content=[TextBlock(type="text", text=said.get_text_content() or "")])

    bench = prepared(
        by_rules(
            ("You are expert.", "42"),
            ("<tool_response>", "It is 42."),
            ("You are boss.", calling("consult", question="What is it?")),
        )
    )
    with bench.session() as session:
        assert ask(agent("boss", consult)) == "It is 42."
    assert agents_of(session) == ["boss", "expert", "boss"]


def test_the_explicit_model_carries_its_labels_to_the_episode(prepared: Callable[..., Any]) -> None:
    with prepared(by_rules(("hi", "yes"))).session() as session:
        tuner = Tuner(CLOSED, session.key, load_plugins().handles)
        ask(agent("solver", using=tuner.as_agentscope_model(agent="critic", stream=False)))
    assert agents_of(session) == ["critic"]


def test_an_agent_whose_reply_is_called_directly_has_its_name_too(prepared: Callable[..., Any]) -> None:
    async def reply(who: ReActAgent) -> None:
        await who.reply(Msg("user", "hi", "user"))

    with prepared(by_rules(("hi", "yes"))).session() as session:

        class Polite(ReActAgent):
            """Defined while the job runs, with a reply of its own."""

            async def reply(self, *args: Any, **kwargs: Any) -> Msg:
                return await super().reply(*args, **kwargs)

        polite = Polite("polite", "Be polite.", model(), OpenAIChatFormatter(), memory=InMemoryMemory())
        polite.set_console_output_enabled(False)
        for who in (agent("solver"), polite):
            asyncio.run(reply(who))
        asyncio.run(agent("caller")(Msg("user", "hi", "user")))
    assert agents_of(session) == ["solver", "polite", "caller"]


def test_afterwards_agentscope_is_as_it_was() -> None:
    assert ReActAgent.reply is REPLY and "__init_subclass__" not in vars(AgentBase)
