"""`run.restarts` on verl: the only inference server is killed in a step, and the run goes on from its last checkpoint."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ajet.rollout.recorder import live_lines
from ajet.runs.restarts import RESTARTS
from tests.plugins.verl.conftest import Machine, lines, printed_by, run_folder, write_job
from tests.plugins.verl.jobs import sums_job
from tests.plugins.verl.test_two_nodes import until

SECONDS = 480.0
STEPS = 3


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


def _saved(folder: Path, step: int) -> bool:
    runs = folder / "runs"
    return runs.exists() and any(runs.glob(f"*/checkpoints/step_{step:06d}"))


def _is_engine(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "EngineCore" in " ".join(process.cmdline())
    return False
