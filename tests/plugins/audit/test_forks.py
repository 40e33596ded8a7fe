"""The audit of a run with forks: what a fork replays is trained by the episode that sampled it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from ajet.types import Task
from tests.plugins.audit.conftest import TOOL, Runs, ask, audited

pytestmark = pytest.mark.whole

FORKED: Any = {"group_size": 4, "fork": {"roots": 2, "depth": 2}}


async def steady(task: Task) -> str:
    return await talk(task, lambda: "go on")


async def talk(task: Task, told: Callable[[], str]) -> str:
    chat: list[Any] = [{"role": "user", "content": task.query}]
    for _ in range(4):
        chat += [await ask(chat, tools=[TOOL])]
        chat += [{"role": "tool", "tool_call_id": c.id, "content": "7"} for c in chat[-1].tool_calls or ()]
        chat += [{"role": "user", "content": told()}]
    return "done"


def by_member(task: Task, output: Any, episode: Any) -> float:
    return float(episode.member % 3)


def varied(request: Any, prompt: str) -> str:
    return f"it is {request.sampling.seed % 97}"


def test_a_run_with_forks_of_forks_trains_every_token_once(runs: Runs) -> None:
    for credit in ("tree", "episode"):
        found = audited(runs.run(steady, by_member, varied, rollout=FORKED, credit=credit, name=credit))
        assert found.faults == [] and found.trained
        assert found.trained + found.excluded.get("no_credit", 0) == found.sampled


def test_an_asynchronous_run_with_forks_trains_every_token_once(runs: Runs) -> None:
    settings: Any = {"credit": "tree", "asynchronous": True, "max_staleness": 1, "steps": 3}
    found = audited(runs.run(steady, by_member, varied, rollout=FORKED, **settings))
    assert found.faults == [] and found.trained


def test_forks_that_diverged_are_failed_episodes_of_which_nothing_is_trained(runs: Runs) -> None:
    drawn = itertools.count()

    async def with_a_random_tool(task: Task) -> str:
        return await talk(task, lambda: f"drawn {next(drawn)}")

    found = audited(runs.run(with_a_random_tool, by_member, varied, rollout=FORKED, credit="tree", steps=1))
    assert found.faults == [] and found.trained
