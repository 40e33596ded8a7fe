"""Unchanged agents of AgentScope 1 under a runner. Skipped where AgentScope 2 is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ajet_online import Runner, SamplingRate, ShadowRun, read_only
from tests.patience import PATIENCE
from tests.plugins.online.fake_explorer import KEY, FakeExplorer, Message, call_tools, fake_explorer, say

agentscope = pytest.importorskip("agentscope")
if not agentscope.__version__.startswith("1."):
    pytest.skip("another AgentScope is installed", allow_module_level=True)

REFUSAL = "tool 'send_mail' is not read-only, so it does not run in a shadow run"


def text(message: Message) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def recite(messages: list[Message]) -> Message:
    """Repeats what the user has said, so that an answer tells what its agent remembers."""
    return say(" ".join(text(message) for message in messages if message["role"] == "user"))


def use_tools(messages: list[Message]) -> Message:
    results = [text(message) for message in messages if message["role"] == "tool"]
    return say(" | ".join(results)) if results else call_tools("search", "send_mail", text="cats")


@pytest.fixture
def explorer() -> Iterator[FakeExplorer]:
    with fake_explorer() as fake:
        fake.answer = recite
        yield fake


def agent_of(explorer: FakeExplorer) -> Any:
    from agentscope.agent import ReActAgent
    from agentscope.formatter import OpenAIChatFormatter
    from agentscope.memory import InMemoryMemory
    from agentscope.message import TextBlock
    from agentscope.model import OpenAIChatModel
    from agentscope.tool import Toolkit, ToolResponse

    def result(said: str) -> Any:
        return ToolResponse(content=[TextBlock(type="text", text=said)])

    @read_only
    def search(text: str) -> Any:
        """Search."""
        return result("found")

    def send_mail(text: str) -> Any:
        """Send."""
        return result("sent")

    toolkit = Toolkit()
    toolkit.register_tool_function(search)
    toolkit.register_tool_function(send_mail)
    model = OpenAIChatModel(
        "m",
        api_key=explorer.production["api_key"],
        client_kwargs={"base_url": explorer.production["base_url"]},
        stream=False,
    )
    return ReActAgent(
        "solver",
        "Use the tools.",
        model,
        OpenAIChatFormatter(),
        toolkit=toolkit,
        memory=InMemoryMemory(),
    )


def watching(explorer: FakeExplorer, runs: list[ShadowRun], **options: Any) -> Runner:
    return Runner(explorer=explorer.url, key=KEY, select=SamplingRate(1.0), reward=runs.append, **options)


def message(said: str) -> Any:
    from agentscope.message import Msg

    return Msg("user", said, "user")


def test_a_call_is_repeated_with_read_only_tools(
    explorer: FakeExplorer, capsys: pytest.CaptureFixture[str]
) -> None:
    explorer.answer = use_tools
    agent, runs = agent_of(explorer), list[ShadowRun]()
    with watching(explorer, runs) as runner:
        assert asyncio.run(agent(message("cats"))).get_text_content() == "found | sent"
        assert runner.wait(PATIENCE)
    assert [run.messages[-1]["content"] for run in runs] == [f"found | {REFUSAL}"]
    assert runs[0].agent == "solver" and REFUSAL not in capsys.readouterr().out


@pytest.mark.parametrize("direct", [False, True])
def test_it_is_repeated_with_the_memory_before_the_call(direct: bool, explorer: FakeExplorer) -> None:
    agent, runs = agent_of(explorer), list[ShadowRun]()

    async def talk() -> list[str]:
        call = agent.reply if direct else agent
        return [(await call(message(word))).get_text_content() for word in ("one", "two")]

    def user(messages: Any) -> str | None:
        return "more" if len(messages) == 2 else None

    with watching(explorer, runs, user=user) as runner:
        assert asyncio.run(talk()) == ["one", "one two"]
        assert runner.wait(PATIENCE)
    assert sorted(run.messages[-1]["content"] for run in runs) == ["one more", "one two more"]
    assert len(asyncio.run(agent.memory.get_memory())) == 4
    assert agent.state_dict()["memory"] == agent.memory.state_dict()


def test_other_agents_of_a_hub_do_not_hear_shadow_runs(explorer: FakeExplorer) -> None:
    from agentscope.pipeline import MsgHub

    first, second, runs = agent_of(explorer), agent_of(explorer), list[ShadowRun]()

    async def talk() -> None:
        async with MsgHub([first, second]):
            await first(message("one"))
            assert await asyncio.to_thread(runner.wait, PATIENCE)

    with watching(explorer, runs) as runner:
        asyncio.run(talk())
    assert len(runs) == 1 and len(asyncio.run(second.memory.get_memory())) == 1


def test_a_structured_answer_leaves_the_users_toolkit_alone(explorer: FakeExplorer) -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        number: int

    def answer(messages: list[Message]) -> Message:
        is_told = any(message["role"] == "tool" for message in messages)
        return say("done") if is_told else call_tools("generate_response", number=7)

    explorer.answer = answer
    agent, runs = agent_of(explorer), list[ShadowRun]()
    before = set(agent.toolkit.tools)
    with watching(explorer, runs, read_only=("generate_response",)) as runner:
        reply = asyncio.run(agent(message("cats"), structured_model=Answer))
        assert runner.wait(PATIENCE)
    assert reply.metadata == {"number": 7} and runs[0].response.metadata == {"number": 7}
    assert runs[0].error is None
    # The user's own call registers the tool in it; the shadow run has added nothing.
    assert set(agent.toolkit.tools) - before <= {"generate_response"}
