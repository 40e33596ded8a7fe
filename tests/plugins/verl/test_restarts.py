"""`run.restarts` on verl: inference servers die or hang in a step, and the run goes on from its last checkpoint."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ajet.rollout.recorder import live_lines
from ajet.runs.restarts import RESTARTS
from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine, lines, printed_by, run_folder, write_job
from tests.plugins.verl.jobs import sums_job
from tests.plugins.verl.test_separate_async import separate
from tests.plugins.verl.test_two_nodes import until

pytestmark = pytest.mark.models("calculator")

SECONDS = 4 * PATIENCE
STEPS = 3
SLOW = """
import asyncio
import random

from ajet import WorkflowOutput


async def run(task, tuner):
    client = tuner.as_openai_client()
    messages = [{"role": "user", "content": task.query}]
    for _ in range(4):
        answer = await client.chat.completions.create(model="m", messages=messages, max_tokens=12)
        messages += [{"role": "assistant", "content": answer.choices[0].message.content}, {"role": "user", "content": "and?"}]
        await asyncio.sleep(3 * random.random())  # some episodes end while a server dies, others go on
    return WorkflowOutput(response=answer.choices[0].message.content)
"""


@pytest.mark.slow  # a whole job and a restart: make verify-verl
def test_a_run_whose_last_server_dies_restarts_from_its_checkpoint(machine: Machine) -> None:
    folder = machine.folder
    task = {"reader": "train.jsonl", "validation": None}
    job = sums_job(folder, run={"dir": "runs", "restarts": 1}, train={"steps": STEPS}, task=task)
    write_job(folder, job)
    running = machine.start(sys.executable, "-m", "ajet", "run", "job.yaml")
    until(lambda: running.poll() is not None or _saved(folder, 1), SECONDS)
    assert running.poll() is None, printed_by(running)[-4000:]
    run = run_folder(folder)
    first = [line["id"] for line in live_lines(run / "episodes.jsonl") if line["step"] == 1]

    killed = time.monotonic()
    engines = [process for process in machine.processes() if _is_engine(process)]
    assert engines
    for engine in engines:
        engine.kill()
    until(lambda: running.poll() is not None or (run / RESTARTS).exists(), SECONDS)
    seconds = time.monotonic() - killed
    code = running.wait(SECONDS)
    printed = printed_by(running)
    assert code == 0, printed[-6000:]
    assert seconds < 60 + 30, "an error within a minute, and the end of the cluster"

    (restart,) = lines(run / RESTARTS)
    assert restart["restart"] == 1 and restart["after_step"] >= 1
    assert f"restart 1 of 1, after step {restart['after_step']}: backbone verl: " in printed
    steps = [line["step"] for line in live_lines(run / "metrics.jsonl") if line["type"] == "train"]
    # verl tells a step's metrics after the update of the servers, so those of the step that is saved may be missing.
    assert [step for step in steps if step > restart["after_step"]] == list(
        range(restart["after_step"] + 1, STEPS + 1)
    )
    live: list[dict[str, Any]] = live_lines(run / "episodes.jsonl")
    assert [line["id"] for line in live if line["step"] == 1] == first, "what was saved was not run again"
    for path in machine.orphans():  # shared memory of the killed engine
        path.unlink()


@pytest.mark.slow  # a whole job and a restart each: make verify-verl
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_step_that_loses_one_of_two_servers_ends_and_is_not_repeated(
    machine: Machine, how: signal.Signals
) -> None:
    folder = machine.folder
    (folder / "flow.py").write_text(SLOW)
    task = {"reader": "train.jsonl", "validation": None}
    verl = {"trainer": {"n_gpus_per_node": 2}, "ray_kwargs": {"ray_init": {"+num_gpus": 2}}}
    train = {"steps": STEPS, "save_every": STEPS}
    run_settings = {"dir": "runs", "restarts": 1}
    job = sums_job(folder, run=run_settings, train=train, task=task, backbone={"name": "verl", "verl": verl})
    write_job(folder, {**job, "workflow": "flow.py:run"})
    running = machine.start(sys.executable, "-m", "ajet", "run", "job.yaml")
    until(lambda: running.poll() is not None or _ended(folder, 2), SECONDS)
    assert running.poll() is None, printed_by(running)[-4000:]
    began = time.monotonic()
    engines = [process for process in machine.processes() if _is_engine(process)]
    assert len(engines) == 2
    engines[0].send_signal(how)
    until(lambda: running.poll() is not None or "inference servers died (" in printed_by(running), SECONDS)
    seconds = time.monotonic() - began
    code = running.wait(SECONDS)
    printed = printed_by(running)
    assert code == 0, printed[-6000:]
    assert seconds < 60 + 30, "named within a minute, and its calls ran again"
    assert ("it is ended" in printed) == (how == signal.SIGSTOP)

    run = run_folder(folder)
    (restart,) = lines(run / RESTARTS)
    assert restart["after_step"] == 2, "the step that lost a server was saved"
    assert "1 of 2 inference servers died (" in restart["why"]
    _check_whole(run)
    for path in machine.orphans():  # shared memory of the killed engine
        path.unlink()


@pytest.mark.slow  # a whole job: make verify-verl
def test_with_servers_of_their_own_the_run_goes_on_without_a_dead_one(machine: Machine) -> None:
    folder = machine.folder
    (folder / "flow.py").write_text(SLOW)
    job = sums_job(
        folder,
        run={"dir": "runs"},
        train={"steps": STEPS, "save_every": STEPS},
        task={"reader": "train.jsonl", "validation": None},
        backbone={"name": "verl", "verl": separate(ranks=1, servers=2)},
    )
    write_job(folder, {**job, "workflow": "flow.py:run"})
    running = machine.start(sys.executable, "-m", "ajet", "run", "job.yaml")
    until(lambda: running.poll() is not None or _ended(folder, 2), SECONDS)
    assert running.poll() is None, printed_by(running)[-4000:]
    engines = [process for process in machine.processes() if _is_engine(process)]
    # Number 0 is that on the trainer's own GPU, which only validates.
    ranks = {process.environ()["VERL_REPLICA_RANK"]: process for process in engines}
    assert ranks.keys() == {"0", "1", "2"}
    ranks["1"].kill()
    code = running.wait(SECONDS)
    printed = printed_by(running)
    assert code == 0, printed[-6000:]
    assert "1 of 2 inference servers died (" in printed and "the run goes on with the others" in printed

    run = run_folder(folder)
    assert not (run / RESTARTS).exists()
    _check_whole(run)
    for path in machine.orphans():  # shared memory of the killed engine
        path.unlink()


def _ended(folder: Path, step: int) -> list[dict[str, Any]]:
    """The episodes of a step that have ended so far."""
    runs = list((folder / "runs").glob("*/episodes.jsonl"))
    return [line for line in live_lines(runs[0]) if line["step"] == step] if runs else []


def _check_whole(run: Path) -> None:
    """Each step has learned from all of its episodes, and none has failed."""
    episodes = live_lines(run / "episodes.jsonl")
    for step in range(1, STEPS + 1):
        of_step = [line for line in episodes if line["step"] == step]
        assert len(of_step) == len({line["id"] for line in of_step}) == 16
        assert not [line for line in of_step if line["failure"]]
    steps = [line["step"] for line in live_lines(run / "metrics.jsonl") if line["type"] == "train"]
    assert steps == list(range(1, STEPS + 1))


def _saved(folder: Path, step: int) -> bool:
    runs = folder / "runs"
    return runs.exists() and any(runs.glob(f"*/checkpoints/step_{step:06d}"))


def _is_engine(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "EngineCore" in " ".join(process.cmdline())
    return False
