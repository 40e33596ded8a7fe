"""Runs that crash, meet a full disk or are started twice: nothing is recorded twice, and they can be resumed."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ajet.rollout.checkpoints import checkpoints
from ajet.rollout.recorder import JOURNAL, METRICS, live_lines
from tests.e2e.conftest import EPISODES
from tests.patience import PATIENCE

pytestmark = pytest.mark.e2e


def started(project: Any, name: str, *options: str) -> tuple[Any, Path]:
    """A run that has begun to write its journal, and its folder."""
    process = project.start("run", "job.yaml", "--set", f"run.dir={name}", *options)
    deadline = time.monotonic() + PATIENCE
    while not list((project.folder / name).glob("*/checkpoints/step_*")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.02)
    return process, project.runs(name)[0]


def last_line(project: Any, *arguments: str, code: int = 1) -> str:
    output = project.ajet(*arguments, code=code)
    assert "Traceback" not in output, output
    return str(output.strip().splitlines()[-1])


@pytest.mark.slow
def test_a_run_folder_has_one_writer_and_a_killed_one_can_be_resumed(project: Any) -> None:
    process, run_dir = started(project, "one", "--steps", "500")
    line = last_line(project, "run", "--resume", str(run_dir))
    assert line.startswith(f"error: {run_dir}: process {process.pid} on "), line
    assert "is running it" in line and "then resume" in line
    assert process.poll() is None, "the first one is not disturbed"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    done = live_lines(run_dir / METRICS)[-1]["step"]
    output = project.ajet("run", "--resume", str(run_dir), "--steps", str(done + 1))
    assert f"process {process.pid} on " in output and "did not shut down" in output, output
    steps = Counter(line["step"] for line in live_lines(run_dir / METRICS) if line["type"] == "train")
    assert steps == dict.fromkeys(range(1, done + 2), 1)
    ids = [line["id"] for line in live_lines(run_dir / JOURNAL)]
    assert len(ids) == len(set(ids)) == EPISODES * (done + 1)
    assert not (run_dir / "running.json").exists()


@pytest.mark.slow
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(project: Any) -> None:
    project.ajet("run", "job.yaml", "--steps", "2")
    (run_dir,) = project.runs("runs")
    last = checkpoints(run_dir)[-1]
    os.truncate(last / "trainer.pt", 1000)
    output = project.ajet("run", "--resume", str(run_dir), "--steps", "3")
    assert f"checkpoint {last} is damaged and is skipped (trainer.pt has 1000 bytes" in output, output
    assert "after step 1" in output
    assert [path.name for path in checkpoints(run_dir)] == ["step_000002", "step_000003"]
