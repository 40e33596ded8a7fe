"""`ajet.open`: a training loop of one's own does what `ajet.run` does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ajet
from ajet import ConfigError, Task, WorkflowOutput
from ajet.cli import run_program
from ajet.interfaces.reader import tasks_of_step
from ajet.plugins import load_plugins
from ajet.runs.run_dir import checkpoint_step
from ajet.runs.run_state import RunState, state_of
from tests.api.asking import ask

SET = {
    "rollout.group_size": 3,
    "train.batch_size": 2,
    "train.steps": 2,
    "train.learning_rate": 1e-3,
    "backbone.local.threads": 1,
}
TASKS = [Task(f"q{i}", f"say {i}") for i in range(4)]
Agent = Callable[[Task], Any]


def distinct(task: Task, output: WorkflowOutput) -> float:
    return float(len(set(str(output.response))))


@pytest.mark.whole
def test_it_reproduces_a_run_bit_for_bit_on_the_same_plan(folder: Path, model: Path, agent: Agent) -> None:
    same: Any = {"model": model, "deterministic": True, "seed": 3, "set": SET, "progress": False}
    run = ajet.run(workflow=agent, judge=distinct, tasks=TASKS, **same)

    async def own() -> Path:
        async with ajet.open(**same) as learner:
            for step in range(2):
                batch = tasks_of_step(TASKS, step, 2, 3)
                groups = await learner.rollout(agent, batch, judge=distinct)
                await learner.train(groups)
            assert learner.step == 2
            return learner.save("my-model")

    saved = asyncio.run(own())
    assert run.checkpoint is not None
    one, other = (f / "model.safetensors" for f in (run.checkpoint, saved))
    start = (model / "model.safetensors").read_bytes()
    assert one.read_bytes() == other.read_bytes() != start
    mine = ajet.load_run(max((folder / "runs").iterdir()))
    for was, now in zip(run.metrics, mine.metrics, strict=True):
        assert {k: v for k, v in was.items() if "second" not in k} == {
            k: v for k, v in now.items() if "second" not in k
        }
    with pytest.raises(
        ConfigError, match=r"resume= .*: a training loop of its own .ajet\.open. made this run"
    ):
        ajet.run(resume=mine.dir, progress=False)


@pytest.mark.whole
def test_groups_can_be_filtered_and_scored_anew_and_any_code_is_an_episode(
    folder: Path, model: Path, agent: Agent
) -> None:
    async def own() -> None:
        async with ajet.open(model=model, set=SET, progress=False) as learner:
            one, two = await learner.rollout(
                agent, [{"query": "a"}, {"query": "b"}], group_size=2, judge=distinct
            )
            assert [e.task.query for e in (*one.episodes, *two.episodes)] == ["a", "a", "b", "b"]
            for number, episode in enumerate(two.episodes):
                episode.reward = float(number)
                assert "b" in episode.timelines[0].text
            members = []
            for number in range(2):
                async with learner.episode({"id": f"by-hand-{number}", "query": "c"}) as episode:
                    answers = [await ask(episode.task), await ask(episode.task)]
                    episode.reward = 0.5 + number
                assert [chat[-1]["content"] for chat in episode.messages] == answers
                members.append(episode)
            by_hand = ajet.Group(members[0].task, members)
            metrics = await learner.train([two, by_hand], learning_rate=3e-4)
            assert (metrics["learning_rate"], metrics["episodes"], metrics["reward"]) == (3e-4, 4, 0.75)
            with pytest.raises(ValueError, match="lost"):
                async with learner.episode({"query": "d"}) as lost:
                    await ask(lost.task)
                    raise ValueError("lost")
            assert lost.failure == "workflow:ValueError"
            with pytest.raises(ajet.AjetError, match="step 2: nothing to train on"):
                await learner.train([lost])
            (folder / "there").mkdir()
            with pytest.raises(
                ConfigError, match=r"^path=.*there: exists already.* The model is in .*step_000001"
            ):
                learner.save("there")
            assert (learner.dir / "checkpoints" / "step_000001" / "config.json").exists()

    asyncio.run(own())
    run = ajet.load_run("runs")
    assert [e.reward for e in run.episodes(step=1)] == [0.0, 1.0, 0.5, 1.5]


LOGGER = """
import ajet

class Kept(ajet.Logger):
    name = "kept"

    def _keep(self, run_dir, *words):
        with (run_dir / "kept.txt").open("a") as file:
            print(*words, file=file)

    def run_start(self, event):
        self._keep(event.run_dir, "start", event.config["run"]["seed"], event.resumed_after)

    def episode_end(self, event):
        sampled = sum(int(line.mask.sum()) for line in event.timelines)
        self._keep(event.run_dir, event.phase, event.step, event.task.query, event.reward, sampled > 0)

    def log(self, run_dir, step, metrics):
        self._keep(run_dir, "step", step)
"""


@pytest.mark.whole
def test_loggers_and_hooks_receive_what_happens_with_the_episodes_as_they_were_scored(
    folder: Path, model: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "kept.py").write_text(LOGGER)
    plugins, seen = load_plugins.__wrapped__(), []
    hooks = ("ajet_checkpoint_saved", "ajet_run_end")
    watcher: Any = SimpleNamespace(
        __name__="watcher", **{name: ajet.hookimpl(lambda event: seen.append(event)) for name in hooks}
    )
    plugins.register(watcher, "ajet-watcher", "1")
    monkeypatch.setattr("ajet.job.parts.load_plugins", lambda: plugins)

    async def own() -> Path:
        logged = {**SET, "run.loggers": [{"type": "kept.py:Kept"}]}
        async with ajet.open(model=model, seed=3, set=logged, progress=False) as learner:
            (group,) = await learner.rollout(agent, [{"query": "a"}], group_size=2, judge=distinct)
            for number, episode in enumerate(group.episodes):
                episode.reward = float(number)
            await learner.train([group])
            learner.save("my-model")
            return learner.dir

    kept = (asyncio.run(own()) / "kept.txt").read_text().splitlines()
    assert kept == ["start 3 None", "train 1 a 0.0 True", "train 1 a 1.0 True", "step 1"]
    saved, end = seen
    assert (saved.step, saved.path) == (1, folder / "my-model")
    assert (end.result.steps, end.result.checkpoint, end.error) == (1, saved.path, None)


@pytest.mark.whole
def test_a_command_gets_no_answer_that_its_judge_reads(model: Path, folder: Path) -> None:
    (folder / "solve.py").write_text(
        "import json, os, sys, urllib.request\n"
        "task = json.load(sys.stdin)\n"
        "ask = {'model': 'm', 'max_tokens': 2, 'messages': [{'role': 'user', 'content': task['query']}]}\n"
        "request = urllib.request.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', json.dumps(ask).encode())\n"
        "request.add_header('authorization', 'Bearer ' + os.environ['OPENAI_API_KEY'])\n"
        "urllib.request.urlopen(request).read()\n"
        "print(*sorted(task['metadata']))\n"
    )
    task = {"query": "2+2?", "answer": "4", "level": 1}

    def sees(task: Task, output: WorkflowOutput) -> float:
        return float(task.metadata["answer"] == "4" and output.response == "level")

    async def rewards() -> list[float]:
        async with ajet.open(model=model, set=SET, progress=False) as learner:
            command = f"cmd:{sys.executable} solve.py"
            (group,) = await learner.rollout(command, [task], group_size=1, judge=sees)
            return [episode.reward for episode in group.episodes]

    assert asyncio.run(rewards()) == [1.0]


@pytest.mark.whole
def test_runs_of_a_loop_over_learning_rates_say_what_was_trained(
    folder: Path, model: Path, agent: Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    async def own(rate: float) -> ajet.Run:
        settings = {key: value for key, value in SET.items() if key != "train.steps"}
        async with ajet.open(model=model, set=settings, name=f"rate {rate:g}", progress=False) as learner:
            for _ in range(2):
                groups = await learner.rollout(agent, TASKS[:1], group_size=2, judge=distinct)
                await learner.train(groups, learning_rate=rate)
            learner.save(f"model-{rate:g}")
            learner.save(f"again-{rate:g}")
            return ajet.load_run(learner.dir)

    one, two = (asyncio.run(own(rate)) for rate in (1e-4, 5e-4))
    assert one.job["train"]["learning_rate"] == 1e-4 and two.job["train"]["learning_rate"] == 5e-4
    assert one.job["train"]["steps"] == 2, "its real number of steps"
    assert one.job["workflow"] == "object:agent.<locals>.local"
    assert one.job["judge"]["type"] == f"{__name__}:distinct"
    assert one.checkpoint is not None and one.checkpoint.resolve() == folder / "again-0.0001"
    assert checkpoint_step("again-0.0001") == 2
    assert state_of(one.dir, 2, 100) == RunState("finished")
    assert run_program(["list", "--name", "rate"]) == 0
    head, *lines, caveat = capsys.readouterr().out.splitlines()
    assert caveat.startswith("A reward is that of the first and of the last step")
    assert "learning rate" in head and [line.split()[-1] for line in lines] == ["0.0005", "0.0001"]
    assert all(" finished " in line and "  2  " in line for line in lines)


def test_a_loop_that_raises_has_failed(folder: Path, model: Path) -> None:
    async def own() -> None:
        async with ajet.open(model=model, set=SET, progress=False):
            raise ValueError("no more data")

    with pytest.raises(ValueError, match="no more data"):
        asyncio.run(own())
    run = ajet.load_run("runs")
    assert state_of(run.dir, 0, 2) == RunState("failed", "ValueError: no more data")
