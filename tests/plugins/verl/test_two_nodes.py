"""Two Ray nodes: one job on both, killed and resumed; what verl received is what --dry-run printed."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.interfaces.reader import tasks_of_step
from ajet.rollout.recorder import live_lines
from ajet.utils.keys import leaves
from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine, printed_by, run_folder, write_job
from tests.plugins.verl.jobs import sums_job

pytestmark = pytest.mark.models("calculator")

SECONDS = 4 * PATIENCE
STEPS, BATCH = 4, 4


@pytest.fixture
def cluster(machine: Machine) -> Iterator[str]:
    """Two nodes, each with one rank, under two addresses of this machine. Yields RAY_ADDRESS."""
    head, other = "127.0.0.2", "127.0.0.3"  # Ray takes 127.0.0.1 for "find one"
    with socket.socket() as probe:
        probe.bind((head, 0))
        port = probe.getsockname()[1]
    options = [
        "--num-gpus=1",
        "--num-cpus=16",
        f"--object-store-memory={200 << 20}",
        "--block",
        "--disable-usage-stats",
    ]
    ray = [str(Path(sys.executable).with_name("ray")), "start"]
    first = ["--head", f"--port={port}", f"--node-ip-address={head}", "--include-dashboard=false"]
    nodes = [machine.start(*ray, *first, *options)]
    try:
        until(lambda: "Ray runtime started" in printed_by(nodes[0]), PATIENCE)
        nodes.append(machine.start(*ray, f"--address={head}:{port}", f"--node-ip-address={other}", *options))
        until(lambda: "Ray runtime started" in printed_by(nodes[1]), PATIENCE)
        yield f"{head}:{port}"
    finally:
        for node in nodes:
            node.send_signal(signal.SIGTERM)
        for node in nodes:
            node.wait(PATIENCE)


def until(condition: Any, seconds: float) -> None:
    """Wait for something to be true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


@pytest.mark.slow  # five programs, two of them whole jobs: make verify-verl
def test_a_job_on_two_nodes_killed_in_a_step_goes_on_at_the_saved_one(machine: Machine, cluster: str) -> None:
    folder = machine.folder
    verl = {"trainer": {"nnodes": 2}}
    job = sums_job(folder, backbone={"name": "verl", "verl": verl}, run={"dir": "runs"})
    write_job(folder, job)
    dry = machine.ajet("run", "job.yaml", "--dry-run", seconds=PATIENCE)

    running = machine.start(sys.executable, "-m", "ajet", "run", "job.yaml", RAY_ADDRESS=cluster)
    until(lambda: running.poll() is not None or (folder / "runs").exists(), SECONDS)
    until(lambda: running.poll() is not None or _saved(folder, 2), SECONDS)
    assert running.poll() is None, printed_by(running)[-4000:]
    until(lambda: any(line["step"] == 3 for line in live_lines(_run(folder) / "episodes.jsonl")), SECONDS)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait(PATIENCE)
    until(lambda: not any("VLLM" in command for command in machine.commands()), PATIENCE)
    for path in machine.orphans():  # of a kill with -9 they stay: docs/verl.md
        path.unlink()
    run = _run(folder)
    first = live_lines(run / "episodes.jsonl")

    printed = machine.ajet("run", "--resume", str(run), seconds=SECONDS, RAY_ADDRESS=cluster)
    assert "resuming" in printed

    checkpoint = sorted((run / "checkpoints").glob("step_*"))[-1]
    assert checkpoint.name == f"step_{STEPS:06d}"
    assert len(list(checkpoint.glob("global_step_*/actor/model_world_size_2_rank_*.pt"))) == 2, (
        "two ranks learned"
    )
    assert_goes_on_with_the_plan(run, first)
    assert_received(run, dry)
    exported = folder / "exported"
    machine.ajet("export", str(checkpoint), str(exported), "--backbone", "verl", seconds=4 * PATIENCE)
    options = ["--model", str(exported), "--set", "run.dir=evals"]
    assert "accuracy" in machine.ajet("eval", "job.yaml", *options, seconds=4 * PATIENCE)


def _run(folder: Path) -> Path:
    return run_folder(folder)


def _saved(folder: Path, step: int) -> bool:
    return (_run(folder) / "checkpoints" / f"step_{step:06d}").exists()


def assert_goes_on_with_the_plan(run: Path, before: list[dict[str, Any]]) -> None:
    """Each step of the plan was trained once, on its own tasks; what came before the checkpoint stayed."""
    from ajet.job.layers import resumed_layers
    from ajet.job.prepare import prepare

    job = prepare(resumed_layers(run))
    live = [line for line in live_lines(run / "episodes.jsonl") if line["phase"] == "train"]
    resumed = max(line["step"] for line in before if line["phase"] == "train" and line in live)
    assert resumed in (2, 3), "the checkpoint of step 2, or of 3 if it was quick"
    for step in range(1, STEPS + 1):
        ran = {line["id"] for line in live if line["step"] == step}
        tasks = tasks_of_step(job.tasks, step - 1, BATCH, job.config.run.seed)
        assert ran == {
            f"{step}.{i}/{task.id}/{member}" for i, task in enumerate(tasks) for member in range(4)
        }
    kept = [line for line in before if line["phase"] == "train" and line["step"] <= 2]
    assert all(line in live for line in kept)
    steps = [line["step"] for line in live_lines(run / "metrics.jsonl") if line["type"] == "train"]
    assert steps == list(range(1, STEPS + 1))


def assert_received(run: Path, dry: str) -> None:
    """verl received, key by key, what --dry-run printed; a run folder and a model's folder have been filled in."""
    _, described = yaml.safe_load_all(dry[dry.index("# ") :])
    told = dict(leaves(described))
    got = dict(leaves(yaml.safe_load((run / "verl.yaml").read_text())))
    assert told.keys() == got.keys()
    for key, value in told.items():
        if isinstance(value, str) and "<run folder>" in value:
            assert got[key] in (value.replace("<run folder>", str(run)), run.name)
        elif value == "calculator":
            assert "calculator-" in got[key]
        elif key not in ("trainer.val_before_train", "trainer.resume_mode", "trainer.resume_from_path"):
            # The rest is not of --resume.
            assert got[key] == value, key
