"""Does it learn? The math example as it is, by `--backbone verl` alone; and an agent program with 1 to 9 timelines."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ajet.rollout.recorder import live_lines
from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine, run_folder, write_job
from tests.plugins.verl.jobs import sums_job

MATH = Path(__file__).parents[3] / "examples" / "math"
MINUTES = 15
GAP = 1e-3
"""Largest difference between the logprobs of vLLM and of the workers at the same weights, both in float32 on a CPU."""
MODES = {
    "sync": (),
    "colocate_async": (
        "train.asynchronous=true",
        "train.max_staleness=2",
        "train.correction=truncated",
    ),
    "separate_async": (
        "backbone.verl.mode=separate_async",
        "backbone.verl.ray_kwargs.ray_init={+num_gpus: 2}",
        "backbone.verl.actor_rollout_ref.rollout.nnodes=1",
        "backbone.verl.actor_rollout_ref.rollout.n_gpus_per_node=1",
        "backbone.verl.actor_rollout_ref.rollout.checkpoint_engine.backend=cpu_file",
        "backbone.verl.actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=ajet_verl_cpu.weights",
        "train.mini_batches=2",
        "train.max_staleness=2",
        "train.correction=truncated",
    ),
}
"""What `--set` changes in the example for each mode; a CPU's weights travel through a file, a GPU's through NCCL."""
pytestmark = [pytest.mark.slow, pytest.mark.models("calculator")]


@pytest.mark.parametrize("mode", MODES)
def test_the_math_example_learns_in_each_mode(machine: Machine, mode: str) -> None:
    folder = machine.folder
    for name in ("agent.py", "job.yaml", "make_tasks.py"):
        shutil.copy(MATH / name, folder)
    machine.run(sys.executable, "make_tasks.py", "--out", "tasks", seconds=PATIENCE)
    changed = [part for setting in MODES[mode] for part in ("--set", setting)]
    began = time.monotonic()
    machine.ajet("run", "job.yaml", "--backbone", "verl", *changed, seconds=MINUTES * 60 * 2)
    seconds = time.monotonic() - began
    run = run_folder(folder)
    before, after, metrics = _before_and_after(run)
    steps = [line for line in live_lines(run / "metrics.jsonl") if line["type"] == "train"]
    gaps, staleness = ([line[name] for line in steps] for name in ("logprob_diff_max", "staleness"))
    print(
        f"\nmath example on verl, {mode}: accuracy {before:.3f} -> {after:.3f}, greedy {metrics['greedy'][0]:.3f} -> "
        f"{metrics['greedy'][1]:.3f}, {seconds:.0f} s; staleness up to {max(staleness):.0f}, "
        f"logprob_diff_max up to {max(gaps):.1e}, not 0 in {sum(gap > 0 for gap in gaps)} of {len(gaps)} steps"
    )
    assert after >= before + 0.2
    assert max(gaps) < GAP and sum(gap > 0 for gap in gaps) >= len(gaps) / 4
    assert max(staleness) == (0 if mode == "sync" else pytest.approx(1.5, abs=0.5))
    assert seconds < MINUTES * 60 or mode != "sync"


def test_voters_with_1_to_9_timelines_learn(machine: Machine) -> None:
    job = sums_job(
        machine.folder,
        rollout={"group_size": 8, "timeout": "120s", "sampling": {"max_tokens": 64}},
        train={"steps": 24, "batch_size": 8, "learning_rate": 8e-5, "adam_epsilon": 1e-4, "save_every": 24},
        eval={"episodes": 64, "sampling": {"max_tokens": 64}},
    )
    job["workflow"] = f"{Path(__file__).with_name('voters.py')}:run"
    job["judge"] = None
    job["task"] = {
        name: f"tasks/{part}.jsonl" for name, part in (("reader", "train"), ("validation", "validation"))
    }
    command = [
        sys.executable,
        str(MATH / "make_tasks.py"),
        "--out",
        "tasks",
        "--train",
        "400",
        "--validation",
        "64",
    ]
    machine.run(*command, seconds=PATIENCE)
    write_job(machine.folder, job)
    machine.ajet("run", "job.yaml", seconds=MINUTES * 60 * 2)
    run = run_folder(machine.folder)
    before, after, _ = _before_and_after(run, "reward")
    timelines = [
        line["timelines_per_episode"] for line in live_lines(run / "metrics.jsonl") if line["type"] == "train"
    ]
    print(
        f"\nvoters on verl: reward {before:.3f} -> {after:.3f}, {min(timelines):.1f} to {max(timelines):.1f} timelines an episode"
    )
    assert after >= before + 0.1
    assert max(timelines) > 2


def _before_and_after(run: Path, name: str = "accuracy") -> tuple[float, float, dict[str, Any]]:
    """A metric of the first and the last validation; all kinds' of both."""
    found: dict[str, list[float]] = {}
    for line in live_lines(run / "metrics.jsonl"):
        if line["type"] in ("validation", "greedy"):
            found.setdefault(line["type"], []).append(line[name])
    both = {kind: (values[0], values[-1]) for kind, values in found.items()}
    return *both["validation"], both
