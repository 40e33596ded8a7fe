"""Environments of episodes: whatever becomes of one, what it created is released."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from ajet.capture.process.install import install
from ajet.environments import ServedEnvironment, State, environment
from ajet.rollout.episode import Plan
from ajet.testing import ScriptedEngine
from ajet.types import EpisodeView, JudgeOutput, Task, WorkflowOutput
from ajet_environments.service.server import serving
from tests.patience import PATIENCE
from tests.plugins.commands.episodes import short
from tests.tiers import fast

from .conftest import health, settled

CLIENT: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
SYNC: Any = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
SAID = {"role": "assistant", "content": "go"}
LOOKED = threading.Event()
"""Threads that hang do so until the test has looked: what is released then, was not released by them."""


def say(request: Any, prompt: str) -> str:
    return "go"


async def ask() -> None:
    await CLIENT.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])


def plans(url: str, does: list[Any]) -> list[Plan]:
    """An episode each, whose task carries how it goes wrong."""
    made = []
    for i, what in enumerate(does):
        params = {"does": what} if isinstance(what, dict) else {}
        about = {"url": url, "env_type": "counting", "task_id": "2", "params": params}
        task = Task(f"t{i}", f"question {i}", metadata={"environment": about, "does": what})
        made.append(Plan(f"1.{i}/t{i}/0", f"{i}/0", task, 0, i))
    return made


def run(
    bench: Any, tokenizer: Any, workflow: Any, plans: list[Plan], judge: Any = None, **settings: Any
) -> Any:
    rollout = bench(ScriptedEngine(tokenizer, say)).rollout(
        workflow, judge or (lambda task, output: 1.0), **{"concurrency": 64, **settings}
    )
    return asyncio.run(rollout.run(plans, lambda episode: None))


async def agent(task: Task) -> str:
    async with environment(task) as env:
        await ask()
        await env.step(SAID)
        match task.metadata["does"]:
            case "raise":
                raise KeyError("lost")
            case "hang":
                await asyncio.sleep(60)
            case "swallow":
                for _ in range(100):
                    try:
                        await asyncio.sleep(0.05)
                    except asyncio.CancelledError:
                        continue
    return "done"


def sync_agent(task: Task) -> str:
    with environment(task) as env:
        SYNC.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
        env.step(SAID)
        match task.metadata["does"]:
            case "raise":
                raise KeyError("lost")
            case "hang":
                LOOKED.wait(60)
    return "done"


@pytest.mark.whole
@pytest.mark.parametrize("workflow", fast({0}, [agent, sync_agent]))
def test_with_a_fifth_of_episodes_failing_or_hanging_creates_equal_releases(
    bench: Any, tokenizer: Any, url: str, workflow: Any
) -> None:
    late: list[Any] = ["hang", {"start": 9.0}, {"step": 9.0}, "swallow"]
    wrong: list[Any] = ["raise", "hang", {"start": "raise"}, {"step": "raise"}, {"start": 9.0}, {"step": 9.0}]
    wrong += [{"evaluate": "raise"}, {"close": "raise"}]
    wrong += ["swallow"] if workflow is agent else []
    does = [wrong[i // 5 % len(wrong)] if i % 5 == 0 else "well" for i in range(90)]
    deadlines = {f"t{i}": 4.0 for i, what in enumerate(does) if what in late}
    LOOKED.clear()
    episodes = run(bench, tokenizer, workflow, plans(url, does), deadlines=deadlines)
    found = settled(url, 90, seconds=PATIENCE)
    LOOKED.set()
    failed = Counter(e.failure for e in episodes)
    assert (
        failed["timeout"] >= 4
        and failed["workflow:KeyError"] >= 2
        and failed["workflow:EnvironmentFailed"] >= 6
    )
    assert failed[None] == 90 - 18 + does.count({"close": "raise"})
    assert found["created"] == found["released"] == 90 and found["open"] == 0
    assert found["expired"] == 0, "released by the episodes, not by the service's patience"


@pytest.mark.whole
def test_episodes_that_are_cancelled_release(bench: Any, tokenizer: Any, url: str) -> None:
    rollout = bench(ScriptedEngine(tokenizer, say)).rollout(agent)

    async def stopped() -> None:
        enough = asyncio.Event()
        running = asyncio.ensure_future(
            rollout.run(plans(url, [*(["hang"] * 10), *([{"start": 0.8}] * 10)]), lambda e: None, enough)
        )
        while (await asyncio.to_thread(health, url))["created"] < 20:
            await asyncio.sleep(0.01)
        enough.set()
        await running

    asyncio.run(stopped())
    found = settled(url, 20)
    assert found["created"] == found["released"] == 20 and found["open"] == 0 and found["expired"] == 0


def test_every_attempt_has_an_environment_of_its_own(bench: Any, tokenizer: Any, url: str) -> None:
    episodes = run(bench, tokenizer, agent, plans(url, ["raise"]), retries=2)
    assert episodes[0].attempt == 2
    found = settled(url, 3)
    assert found["created"] == found["released"] == 3


def test_a_thread_that_outlives_its_episode_opens_nothing_more(bench: Any, tokenizer: Any, url: str) -> None:
    ended, refused = threading.Event(), threading.Event()

    def late(task: Task) -> None:
        ended.wait(60)
        try:
            with environment(task):
                pass
        except Exception:
            refused.set()

    [episode] = run(bench, tokenizer, late, plans(url, ["well"]), timeout=0.3)
    ended.set()
    assert episode.failure == "timeout" and refused.wait(PATIENCE)
    assert health(url)["created"] == 0


@pytest.mark.whole
def test_killed_subprocesses_leave_nothing_open(
    bench: Any, tokenizer: Any, impatient: str, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text(
        "import json, os, sys, httpx2\n"
        "from ajet import Task\n"
        "from ajet.environments import environment\n"
        "task = Task(**json.load(sys.stdin))\n"
        "with environment(task) as env:\n"
        "    head = {'authorization': 'Bearer ' + os.environ['AJET_API_KEY']}\n"
        "    body = {'model': 'm', 'messages': [{'role': 'user', 'content': '?'}]}\n"
        "    httpx2.post(os.environ['AJET_BASE_URL'] + '/chat/completions', json=body, headers=head)\n"
        "    env.step({'role': 'assistant', 'content': 'go'})\n"
        "    if task.metadata['does'] == 'killed':\n"
        "        os.kill(os.getpid(), 9)\n"
        "print(json.dumps({'response': 'done', 'metadata': {'score': env.score}}))\n"
    )
    made = bench(ScriptedEngine(tokenizer, say))
    with install(made.capture) as around:
        rollout = made.rollout(agent, concurrency=4)
        workflow = short(f"{sys.executable} agent.py", tmp_path)
        handles = {"as_base_url": around.gateway.as_base_url}
        rollout = replace(rollout, runner=replace(rollout.runner, workflow=workflow, handles=handles))
        does = ["killed", "well", "well", "well"]
        episodes = asyncio.run(rollout.run(plans(impatient, does), lambda episode: None))
    assert Counter(e.failure for e in episodes) == {None: 3, "workflow:signal 9": 1}
    assert {e.output.metadata["score"] for e in episodes if e.failure is None} == {0.5}
    found = settled(impatient, 4)
    assert found["created"] == found["released"] == 4 and found["open"] == 0
    assert found["expired"] == 1, "a killed process tells nobody: the service's patience ends"


def test_the_score_is_in_the_outputs_metadata_for_the_judge(bench: Any, tokenizer: Any, url: str) -> None:
    seen = []

    def judge(task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        seen.append(dict(output.metadata))
        return JudgeOutput(output.metadata["score"])

    [episode] = run(bench, tokenizer, agent, plans(url, ["well"]), judge)
    assert episode.failure is None and episode.reward == 0.5 and seen == [{"score": 0.5}]


class Counts(ServedEnvironment):
    env_type = "counts"

    def start(self) -> str:
        self.count = 0
        return "go"

    def step(self, message: Mapping[str, Any]) -> State:
        self.count += 1
        return State([{"role": "user", "content": str(self.count)}], is_terminated=self.count == 3)

    def evaluate(self) -> float:
        return self.count / 3


def test_a_score_that_the_agent_asks_for_on_its_way_is_not_that_of_the_end() -> None:
    async def steps(url: str) -> float | None:
        async with environment(url=url, env_type="counts", task_id="1") as env:
            while not env.state.is_terminated:
                await env.step(SAID)
                if env.state.messages[0]["content"] == "1":
                    assert await env.evaluate() == env.score == pytest.approx(1 / 3)
        return env.score

    def steps_sync(url: str) -> float | None:
        with environment(url=url, env_type="counts", task_id="1") as env:
            for _ in range(3):
                env.step(SAID)
                env.evaluate()
            env.step(SAID)
        return env.score

    with serving(Counts) as url:
        assert asyncio.run(steps(url)) == 1.0 and steps_sync(url) == pytest.approx(4 / 3)


def test_requests_to_the_service_are_no_missed_calls(bench: Any, tokenizer: Any, url: str) -> None:
    made = bench(ScriptedEngine(tokenizer, say))
    with install(made.capture, refuse_missed=True):
        rollout = made.rollout(agent)
        [episode] = asyncio.run(rollout.run(plans(url, ["well"]), lambda e: None))
    assert episode.failure is None and episode.missed == ()
    assert json.dumps(episode.output.metadata) == '{"score": 0.5}'
