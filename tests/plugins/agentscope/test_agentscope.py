"""AgentScope 2: which agent calls, the explicit model, prompts without the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ajet
from ajet import Tuner
from ajet.plugins import load_plugins
from ajet.runs.runtime import frameworks_prepared

from ..programs import CLOSED, agents_of, by_rules, calling, require

require("agentscope.credential")

from agentscope.agent import Agent, InjectionConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit

ALLOWED = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="")


def model(**options: Any) -> OpenAIChatModel:
    credential = OpenAICredential(api_key="k", base_url=CLOSED)
    return OpenAIChatModel(
        **{"credential": credential, "model": "m", "stream": False, "max_retries": 0, **options}
    )


def agent(name: str, **options: Any) -> Agent:
    return Agent(name, f"You are {name}.", model(), **options)


def reply(who: Agent, text: str = "hi") -> str:
    return asyncio.run(who.reply(UserMsg("user", text))).get_text_content() or ""


def prompts(session: Any) -> str:
    return "\n".join(m["content"] for e in session.record.exchanges for m in e.chat())


# ------------------------------------------------------------------ labels


def test_agents_in_turn_are_told_apart(prepared: Callable[..., Any]) -> None:
    first, second = agent("first"), agent("second")  # made before the episode
    with prepared(by_rules(("first", "go on"), ("second", "done"))).session() as session:
        assert reply(second, reply(first)) == "done"
    assert agents_of(session) == ["first", "second"]


def test_agents_at_once_are_told_apart(prepared: Callable[..., Any]) -> None:
    crowd = [agent(f"a{i}") for i in range(8)]

    async def all_of_them() -> None:
        await asyncio.gather(*(a.reply(UserMsg("user", "hi")) for a in crowd))

    with prepared(by_rules(("You are", "yes")), seconds=0.002).session() as session:
        asyncio.run(all_of_them())
    for exchange in session.record.exchanges:
        assert exchange.chat()[0]["content"] == f"You are {exchange.agent}."


def test_an_agent_used_as_a_tool_has_a_name_of_its_own(prepared: Callable[..., Any]) -> None:
    async def consult(question: str) -> str:
        """Ask the expert."""
        message = await agent("expert").reply(UserMsg("boss", question))
        return message.get_text_content() or ""

    boss = agent("boss", toolkit=Toolkit(tools=[FunctionTool(consult, permission=ALLOWED)]))
    bench = prepared(
        by_rules(
            ("You are expert.", "42"),
            ("<tool_response>", "It is 42."),
            ("You are boss.", calling("consult", question="What is it?")),
        )
    )
    with bench.session() as session:
        assert reply(boss) == "It is 42."
    assert agents_of(session) == ["boss", "expert", "boss"]


def test_a_streamed_reply_is_labelled_and_leaves_no_name_behind(prepared: Callable[..., Any]) -> None:
    async def consume() -> None:
        async for _ in agent("solver").reply_stream(UserMsg("user", "hi")):
            await model()([UserMsg("user", "hi")])  # not of the agent

    with prepared(by_rules(("hi", "yes"))).session() as session:
        asyncio.run(consume())
    assert set(agents_of(session)) == {"solver", "agent"}
    assert agents_of(session).count("solver") == 1


def test_the_users_own_label_wins(prepared: Callable[..., Any]) -> None:
    with prepared(by_rules(("hi", "yes"))).session() as session, ajet.label(agent="mine"):
        reply(agent("solver"))
    assert agents_of(session) == ["mine"]


# ------------------------------------------------------------------ the clock


def test_prompts_of_an_episode_hold_no_time_of_day(prepared: Callable[..., Any]) -> None:
    with prepared(by_rules(("hi", "yes"))).session() as session:
        reply(agent("solver"))
    assert "current-time" not in prompts(session)


def test_an_agent_that_asks_for_the_runtime_state_by_name_has_it(prepared: Callable[..., Any]) -> None:
    asking = InjectionConfig(inject_runtime_state=True)
    with prepared(by_rules(("hi", "yes"))).session() as session:
        reply(agent("solver", injection_config=asking))
    assert "<current-time>" in prompts(session)


def test_afterwards_agentscope_is_as_it_was() -> None:
    names = ("reply", "reply_stream", "compress_context", "_inject_runtime_state")
    before = [vars(Agent)[name] for name in names]
    with frameworks_prepared(load_plugins().manager.hook, None):  # type: ignore[arg-type]
        assert not any(vars(Agent)[name] is old for name, old in zip(names, before, strict=True))
    assert [vars(Agent)[name] for name in names] == before


# ------------------------------------------------------------------ the explicit model


def test_the_explicit_model_carries_its_labels_to_the_episode(prepared: Callable[..., Any]) -> None:
    with prepared(by_rules(("hi", "yes"))).session() as session:
        tuner = Tuner(CLOSED, session.key, load_plugins().handles)
        mine = tuner.as_agentscope_model(agent="critic", stream=False)
        assert isinstance(mine, OpenAIChatModel)
        reply(Agent("solver", "Be brief.", mine))
    assert agents_of(session) == ["critic"]


# ------------------------------------------------------------------ failures


def test_a_refused_call_is_asked_once(prepared: Callable[..., Any]) -> None:
    bench = prepared(by_rules(("hi", "yes")))
    bench.engine.context_length = 4
    with bench.session() as session:
        try:
            reply(agent("solver"))
        except Exception as error:
            assert "context" in str(error)
    assert session.counters["context_overflow"] == 1
