"""Whole jobs by the installed `ajet` program, with Trinity's processes on this CPU."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from ajet.rollout.recorder import JOURNAL, METRICS, live_lines
from tests.patience import PATIENCE

pytestmark = pytest.mark.models("calculator")

MATH = Path(__file__).parents[3] / "examples" / "math"
SECONDS = 4 * PATIENCE
SMALL = {
    "eval.episodes": 16,
    "eval.greedy": "false",
    "train.batch_size": 4,
    "rollout.group_size": 4,
    "train.save_every": 1,
}
"""A run whose steps take about two seconds."""
EXACT = 1e-4
"""Largest difference between the logprobs of the engine and of Trinity at the same weights, both in float32."""
LATE = """
import asyncio, random
import agent

async def run(task):
    await asyncio.sleep(random.expovariate(1 / 0.3))
    return await agent.run(task)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The math example, with an agent that is late at random beside its own."""
    for name in ("agent.py", "job.yaml", "make_tasks.py"):
        shutil.copy(MATH / name, tmp_path)
    (tmp_path / "late.py").write_text(LATE)
    subprocess.run(
        [sys.executable, "make_tasks.py", "--out", "tasks"], cwd=tmp_path, check=True, capture_output=True
    )
    return tmp_path


def start(folder: Path, *arguments: str, **keys: Any) -> subprocess.Popen[str]:
    """`ajet run` with keys of the job."""
    sets = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    with (folder / f"{len(list(folder.glob('*.out')))}.out").open("w") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "ajet", "run", *arguments, *sets],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def printed(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.out")))


def finish(process: subprocess.Popen[str], folder: Path) -> None:
    """Wait for its successful end."""
    try:
        status = process.wait(SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
    assert status == 0, printed(folder)[-4000:]


def run_folder(folder: Path) -> Path:
    (found,) = (folder / "runs").iterdir()
    return found


def wait_for(condition: Any, process: subprocess.Popen[str], folder: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, printed(folder)[-4000:]
        time.sleep(0.05)


def learner_of(process: subprocess.Popen[str]) -> psutil.Process | None:
    """The first process of the learner of a run."""
    try:
        children = psutil.Process(process.pid).children()
    except psutil.NoSuchProcess:
        return None
    for child in children:
        try:
            if "ajet_trinity.remote.launch" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                return child
        except psutil.Error:
            continue
    return None


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [line for line in live_lines(run / METRICS) if line["type"] == "train"]


def assert_trained_exactly_once(run: Path, steps: int) -> None:
    """Each step stands in the metrics once, each episode in the journal once, and the optimizer of the last checkpoint has
    taken exactly the steps that the metrics count."""
    lines = steps_of(run)
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    episodes = Counter(line["id"] for line in live_lines(run / JOURNAL) if line["phase"] == "train")
    assert set(episodes.values()) == {1}
    assert {int(name.partition(".")[0]) for name in episodes} == set(range(1, steps + 1))
    last = run / "checkpoints" / f"step_{steps:06d}"
    state = json.loads((last / "trinity.json").read_text())
    taken = sum(line["optimizer_steps"] for line in lines)
    assert state == {"step": sum(line["optimizer_steps"] > 0 for line in lines), "version": steps}
    (file,) = (last / "trinity" / "actor").glob("optim_*.pt")
    optimizer = torch.load(file, weights_only=False)
    assert {int(one["step"]) for one in optimizer["state"].values()} == {int(taken)}


def test_three_steps_of_the_math_example_go_on_after_the_run_was_killed(
    folder: Path, nothing_left: str
) -> None:
    first = start(folder, "job.yaml", "--backbone", "trinity", "--steps", "3", **SMALL)
    wait_for(lambda: any((folder / "runs").glob("*/checkpoints/step_000001/files.json")), first, folder)
    learner = learner_of(first)
    assert learner is not None
    ray = Path(learner.environ()["RAY_TMPDIR"])
    first.kill()
    first.wait()
    learner.wait(PATIENCE)  # it ends by itself: its parent is dead
    assert not ray.exists()
    run = run_folder(folder)
    finish(start(folder, "--resume", str(run)), folder)
    assert_trained_exactly_once(run, 3)
    for line in steps_of(run):
        assert line["logprob_diff_max"] < EXACT, line["step"]
        assert line["tokens_trained"] > 0 and line["grad_norm"] > 0
    assert not (run / "running.json").exists()


def test_a_learner_that_is_killed_is_an_error_without_restarts(folder: Path, nothing_left: str) -> None:
    process = start(folder, "job.yaml", "--backbone", "trinity", **SMALL)
    wait_for(lambda: learner_of(process) is not None, process, folder)
    learner = learner_of(process)
    assert learner is not None
    learner.kill()
    assert process.wait(SECONDS) == 1
    assert "error: backbone trinity: its process was ended by SIGKILL during the start of Trinity" in printed(
        folder
    )


@pytest.mark.slow
def test_five_killed_learners_lose_and_repeat_nothing(folder: Path, nothing_left: str) -> None:
    steps, kills = 12, 5
    chance = random.Random(0)
    process = start(
        folder, "job.yaml", "--backbone", "trinity", "--steps", str(steps), **SMALL, **{"run.restarts": kills}
    )
    for kill in range(kills):
        done = 2 * kill + 1
        wait_for(
            lambda done=done: any((folder / "runs").glob(f"*/checkpoints/step_{done:06d}/files.json")),
            process,
            folder,
        )
        wait_for(lambda: learner_of(process) is not None, process, folder)
        time.sleep(chance.uniform(0, 3))
        learner = learner_of(process)
        assert learner is not None, printed(folder)[-4000:]
        learner.kill()
        wait_for(lambda kill=kill: printed(folder).count("restart ") > kill, process, folder)
    finish(process, folder)
    run = run_folder(folder)
    assert_trained_exactly_once(run, steps)
    assert len((run / "restarts.jsonl").read_text().splitlines()) == kills


@pytest.mark.slow
def test_under_random_delays_staleness_is_bounded_and_each_episode_is_trained_once(
    folder: Path, nothing_left: str
) -> None:
    steps = 10
    process = start(
        folder,
        "job.yaml",
        "--backbone",
        "trinity",
        "--steps",
        str(steps),
        **SMALL,
        **{
            "workflow": "late.py:run",
            "train.asynchronous": "true",
            "train.max_staleness": 1,
            "train.correction": "truncated",
        },
    )
    chance = random.Random(1)
    while process.poll() is None:  # Trinity is late, too: it stops for a while
        time.sleep(chance.uniform(0, 2))
        learner = learner_of(process)
        workers = (
            [c for c in learner.children(recursive=True) if "WorkerDict" in " ".join(c.cmdline())]
            if learner
            else []
        )
        for worker in workers:
            os.kill(worker.pid, signal.SIGSTOP)
            time.sleep(chance.uniform(0, 2))
            os.kill(worker.pid, signal.SIGCONT)
    finish(process, folder)
    run = run_folder(folder)
    assert_trained_exactly_once(run, steps)
    staleness = [line["staleness"] for line in steps_of(run)]
    assert max(staleness) == 1  # it was used, and no more
    assert sum(line["episodes_stale"] for line in steps_of(run)) == 0
