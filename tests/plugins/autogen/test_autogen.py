"""AutoGen AgentChat: who works in teams, hand-offs and tools; tools that stay in their episode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import ajet

from ..programs import CLOSED, agents_of, by_rules, calling, require

require("autogen_agentchat", "autogen_ext.models.openai")

import openai
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken
from autogen_core.models import ModelFamily, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient


def model() -> OpenAIChatCompletionClient:
    info: Any = {
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "structured_output": True,
        "family": ModelFamily.UNKNOWN,
    }
    return OpenAIChatCompletionClient(model="m", base_url=CLOSED, api_key="k", max_retries=0, model_info=info)


def agent(name: str, **options: Any) -> AssistantAgent:
    return AssistantAgent(name, model(), system_message=f"You are {name}.", description=name, **options)


class Custom(BaseChatAgent):
    """An agent of the user's own, which asks a model itself."""

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    async def on_messages(self, messages: Sequence[BaseChatMessage], token: CancellationToken) -> Response:
        said = await model().create([UserMessage(content="hi", source="user")])
        return Response(chat_message=TextMessage(content=str(said.content), source=self.name))

    async def on_reset(self, token: CancellationToken) -> None: ...


# ------------------------------------------------------------------ labels


def test_the_members_of_a_group_chat_are_told_apart(prepared: Callable[..., Any]) -> None:
    members: Any = [agent("writer"), Custom("critic", "reads"), agent("editor")]
    team = RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(5))
    with prepared(by_rules(("hi", "yes"))).session() as session:
        asyncio.run(team.run(task="hi"))
    assert agents_of(session) == ["writer", "critic", "editor", "writer"]


def test_the_manager_that_selects_a_speaker_is_an_agent_too(prepared: Callable[..., Any]) -> None:
    team = SelectorGroupChat(
        [agent("writer"), agent("editor")],
        model_client=model(),
        termination_condition=MaxMessageTermination(3),
        selector_prompt="Select one of {participants}.",
        allow_repeated_speaker=True,
    )
    bench = prepared(by_rules(("Select one of", "editor"), ("You are", "yes")))
    with bench.session() as session:
        asyncio.run(team.run(task="hi"))
    manager, *rest = agents_of(session)
    assert manager == "SelectorGroupChatManager"
    assert rest == ["editor", manager, "editor"]


def test_a_handoff_changes_the_name(prepared: Callable[..., Any]) -> None:
    team = Swarm(
        [agent("triage", handoffs=["solver"]), agent("solver")],
        termination_condition=MaxMessageTermination(4),
    )
    bench = prepared(by_rules(("You are solver.", "42"), ("You are triage.", calling("transfer_to_solver"))))
    with bench.session() as session:
        result = asyncio.run(team.run(task="hi"))
    assert agents_of(session) == ["triage", "solver", "solver"]
    assert result.messages[-1].content == "42"  # type: ignore[union-attr]


def test_an_agent_used_as_a_tool_has_a_name_of_its_own(prepared: Callable[..., Any]) -> None:
    boss = agent("boss", tools=[AgentTool(agent("expert"))], max_tool_iterations=3)
    bench = prepared(
        by_rules(
            ("You are expert.", "42"),
            ("<tool_response>", "It is 42."),
            ("You are boss.", calling("expert", task="What is it?")),
        )
    )
    with bench.session() as session:
        asyncio.run(boss.run(task="hi"))
    assert agents_of(session) == ["boss", "expert", "boss"]


def test_a_team_inside_a_tool_of_an_agent(prepared: Callable[..., Any]) -> None:
    async def panel(question: str) -> str:
        """Ask the panel."""
        team = RoundRobinGroupChat([Custom("outer", "x")], termination_condition=MaxMessageTermination(2))
        return str((await team.run(task=question)).messages[-1].content)  # type: ignore[union-attr]

    boss = agent("boss", tools=[panel], max_tool_iterations=3)
    bench = prepared(
        by_rules(
            ("<tool_response>", "It is 42."),
            ("You are boss.", calling("panel", question="?")),
            ("hi", "42"),
        )
    )
    with bench.session() as session:
        asyncio.run(boss.run(task="hi"))
    assert agents_of(session) == ["boss", "outer", "boss"]


def test_a_custom_agent_alone_and_a_streamed_run(prepared: Callable[..., Any]) -> None:
    async def consume() -> None:
        await Custom("alone", "x").run(task="hi")
        async for _ in agent("streamed").run_stream(task="hi"):
            await model().create([UserMessage(content="hi", source="user")])  # between two steps: nobody's

    with prepared(by_rules(("hi", "yes"))).session() as session:
        asyncio.run(consume())
    assert agents_of(session)[0] == "alone"
    assert agents_of(session).count("streamed") == 1
    assert set(agents_of(session)) == {"alone", "streamed", "agent"}


def test_the_users_own_label_wins(prepared: Callable[..., Any]) -> None:
    with prepared(by_rules(("hi", "yes"))).session() as session, ajet.label(agent="mine"):
        asyncio.run(agent("solver").run(task="hi"))
    assert agents_of(session) == ["mine"]


# ------------------------------------------------------------------ tools


def test_a_synchronous_tool_that_asks_a_model_stays_in_its_episode(prepared: Callable[..., Any]) -> None:
    client = openai.OpenAI(base_url=CLOSED, api_key="k", max_retries=0)

    def consult(question: str) -> str:
        messages: Any = [{"role": "user", "content": question}]
        reply = client.chat.completions.create(model="m", messages=messages)
        return reply.choices[0].message.content or ""

    tool = FunctionTool(consult, "Ask a model.")
    boss = agent("boss", tools=[tool], max_tool_iterations=3)
    bench = prepared(
        by_rules(
            ("<tool_response>", "It is 42."),
            ("You are boss.", calling("consult", question="What is it?")),
            ("What is it?", "42"),
        )
    )
    with bench.session() as session:
        asyncio.run(boss.run(task="hi"))
    assert agents_of(session) == ["boss", "boss", "boss"]


# ------------------------------------------------------------------ afterwards


def test_afterwards_autogen_is_as_it_was() -> None:
    for function in (BaseChatAgent.run, AssistantAgent.on_messages_stream):
        assert not hasattr(function, "__wrapped__")
