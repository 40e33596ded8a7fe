"""One task through every framework: the same tokens, whoever asks; and no call in a wrong episode."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from ajet.capture.fork_replay import ForkReplay
from tests.tiers import fast

from .programs import CLOSED, MAKERS, Run, Seen, agents_of, ask_plainly, lines, require, script

RUNS = 10
frameworks = pytest.mark.parametrize("name", fast({0, 1, 3, 6, 8, 12}, list(MAKERS)))  # one of each


@pytest.fixture
def raw(prepared: Callable[..., Any]) -> tuple[Any, list[Any]]:
    """A bench, and what the task by plain HTTP leaves there."""
    bench = prepared(script)
    with bench.session() as session:
        ask_plainly()
    return bench, lines(session.record)


@frameworks
def test_every_framework_comes_to_the_same_tokens_and_sees_what_it_should(
    name: str, raw: tuple[Any, list[Any]]
) -> None:
    bench, expected = raw
    run = MAKERS[name]()  # its client exists before the episode
    with bench.session() as session:
        seen: Seen = asyncio.run(run("12 + 30"))
    assert lines(session.record) == expected
    assert len(expected) == 1, "one conversation, one timeline"
    assert [call.parent for call in session.record.calls] == [None, 0], "continued by its stored ids"
    assert seen.answer == "The result is 42."
    assert seen.calls == [("calculator", {"expression": "12 + 30"})]
    tells = name.startswith(("openai_sdk", "langgraph", "autogen")) and "responses" not in name
    assert seen.reasons == (["tool_calls", "stop"] if tells else []), "where the framework tells"
    calls = session.record.trained_calls
    assert seen.tokens == (
        sum(c.prompt.length for c in calls),
        sum(len(c.generation.token_ids) for c in calls),
    )
    assert set(agents_of(session)) == {"agent" if name.startswith("openai_sdk") else "solver"}
    assert not session.counters["rendered_anew"] and not session.counters["resolve_agent_failed"]


@pytest.mark.parametrize("name", fast({0, 3}, list(MAKERS)))
def test_a_fork_of_every_framework_recalls_the_first_answer(name: str, raw: tuple[Any, list[Any]]) -> None:
    bench, expected = raw
    run = MAKERS[name]()
    with bench.session("parent") as parent:
        asyncio.run(run("12 + 30"))
    bench.engine.requests.clear()
    with bench.session("fork") as fork:
        fork.replay = ForkReplay(parent.record, 1)
        seen: Seen = asyncio.run(run("12 + 30"))
    assert seen.answer == "The result is 42." and fork.replay.end() is None
    assert [call.replayed for call in fork.record.calls] == [True, False] and len(bench.engine.requests) == 1
    ((ids, mask, _),) = lines(fork.record)
    assert ids == expected[0][0] and sum(mask) == len(fork.record.calls[1].generation.token_ids)


def cut_by_langchain(limit: int, stream: bool, **options: Any) -> str:
    """Why LangChain says that an answer of at most so many tokens ended."""
    require("langchain_openai")
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model="m", base_url=CLOSED, api_key="k", max_retries=0, max_tokens=limit, streaming=stream, **options
    )
    told = model.invoke("hi").response_metadata
    if "finish_reason" in told:
        return str(told["finish_reason"])
    details = told.get("incomplete_details")
    return {"max_output_tokens": "length"}[details["reason"]] if details else "stop"


def cut_by_langchain_on_responses(limit: int, stream: bool) -> str:
    return cut_by_langchain(limit, stream, use_responses_api=True)


def cut_by_autogen(limit: int, stream: bool) -> str:
    """Why AutoGen says so."""
    require("autogen_ext.models.openai")
    from autogen_core.models import ModelFamily, UserMessage
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info = {key: False for key in ("vision", "function_calling", "json_output", "structured_output")}
    model = OpenAIChatCompletionClient(
        model="m",
        base_url=CLOSED,
        api_key="k",
        max_retries=0,
        max_tokens=limit,
        model_info={**info, "family": ModelFamily.UNKNOWN},
    )
    asked = [UserMessage(content="hi", source="user")]

    async def ask() -> Any:
        if not stream:
            return await model.create(asked)
        return [part async for part in model.create_stream(asked)][-1]

    return str(asyncio.run(ask()).finish_reason)


@pytest.mark.slow
def test_64_episodes_of_all_frameworks_at_once_never_mix(prepared: Callable[..., Any]) -> None:
    programs: list[Run] = [make() for make in MAKERS.values()]
    programs.append(in_a_thread(programs[0]))
    unnamed = [i for i, name in enumerate([*MAKERS, "openai_sdk in a thread"]) if "sdk" in name]

    async def workflow(task: Any) -> str:
        number = int(re.sub(r"\D", "", task.id))
        return (await programs[number % len(programs)](f"{number} + 1000")).answer

    bench = prepared(script, seconds=0.001)
    for _ in range(RUNS):
        episodes = bench.run(workflow, tasks=64, concurrency=64)
        assert len(episodes) == 64
        for episode in episodes:
            number = int(re.sub(r"\D", "", episode.plan.task.id))
            assert episode.failure is None, episode.error
            assert episode.output.response == f"The result is {number + 1000}."
            chats = [exchange.chat() for exchange in episode.record.exchanges]
            asked = [m["content"] for chat in chats for m in chat if m["role"] == "user"]
            assert asked == [f"{number} + 1000"] * 2
            solver = "agent" if number % len(programs) in unnamed else "solver"
            assert {exchange.agent for exchange in episode.record.exchanges} == {solver}
            assert [call.parent for call in episode.record.calls] == [None, 0]
            assert len(lines(episode.record)) == 1
    assert not bench.capture.counters["stray_calls"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("ask", [cut_by_langchain, cut_by_langchain_on_responses, cut_by_autogen])
def test_38_an_answer_of_exactly_max_tokens_is_told_as_cut(
    ask: Callable[[int, bool], str], stream: bool, prepared: Callable[..., Any], tokenizer: Any
) -> None:
    said = "one two three"
    size = len(tokenizer.encode(said, add_special_tokens=False))
    with prepared(lambda request, prompt: said).session() as session:
        assert ask(size, stream) == "length"
        assert ask(size + 1, stream) == "stop", "there is room for the end of the turn"
    assert [len(call.generation.token_ids) for call in session.record.calls] == [size, size + 1]


def in_a_thread(run: Run) -> Run:
    """The program in a loop of its own, in another thread."""

    async def run_there(question: str) -> Seen:
        return await asyncio.to_thread(lambda: asyncio.run(run(question)))  # type: ignore[arg-type]

    return run_there
