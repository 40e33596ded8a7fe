"""One task through every framework: the same tokens, whoever asks; and no call in a wrong episode."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from ajet.tracker.timelines import timelines

from .programs import CLOSED, MAKERS, SYSTEM, TOOL, Run, Seen, agents_of, script

RUNS = 10
frameworks = pytest.mark.parametrize("name", MAKERS)


def lines(record: Any) -> list[tuple[list[int], list[bool]]]:
    """The timelines of a record, comparable."""
    return [(line.token_ids.tolist(), line.mask.tolist()) for line in timelines(record.trained_calls)]


@pytest.fixture
def raw(prepared: Callable[..., Any]) -> tuple[Any, list[Any]]:
    """The task by plain HTTP: what every framework is to come to."""
    import httpx2

    bench = prepared(script)
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "12 + 30"}]
    with bench.session() as session, httpx2.Client() as client:
        for _ in range(2):
            body = {"model": "m", "messages": messages, "tools": [TOOL]}
            message = client.post(f"{CLOSED}/chat/completions", json=body).json()["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls", []):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "42"})
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
    assert seen.answer == "The result is 42."
    assert seen.calls == [("calculator", {"expression": "12 + 30"})]
    assert seen.reasons in ([], ["tool_calls", "stop"]), "where the framework tells"
    calls = session.record.trained_calls
    assert seen.tokens == (
        sum(c.prompt.length for c in calls),
        sum(len(c.generation.token_ids) for c in calls),
    )
    assert set(agents_of(session)) == {"agent" if name.startswith("openai_sdk") else "solver"}
    assert not session.counters["rendered_anew"] and not session.counters["resolve_agent_failed"]


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
    assert not bench.capture.counters["stray_calls"]


def in_a_thread(run: Run) -> Run:
    """The program in a loop of its own, in another thread."""

    async def run_there(question: str) -> Seen:
        return await asyncio.to_thread(lambda: asyncio.run(run(question)))  # type: ignore[arg-type]

    return run_there
