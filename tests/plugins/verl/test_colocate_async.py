"""Episodes that go on while the weights change: tokens keep the version that sampled them."""

from __future__ import annotations

import base64
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.rollout.recorder import live_lines
from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine, lines, printed_by, run_folder, write_job
from tests.plugins.verl.test_two_nodes import until

pytestmark = pytest.mark.models("calculator")

STEPS = 4

FLOW = """
import asyncio
import random
import re

from ajet import WorkflowOutput


async def run(task, tuner):
    slow = int(re.search(r"\\d+", task.query)[0]) % 2
    client = tuner.as_openai_client()
    messages = [{"role": "user", "content": task.query}]
    for _ in range(4):
        answer = await client.chat.completions.create(model="m", messages=messages, max_tokens=12)
        messages += [{"role": "assistant", "content": answer.choices[0].message.content}, {"role": "user", "content": "and?"}]
        await asyncio.sleep(2.0 * slow)  # then others are learned from in between
    return WorkflowOutput(reward=float(random.random() < 0.5))
"""


def versions_of(episode: dict[str, Any]) -> np.ndarray:
    """The weight versions of an episode's sampled tokens, in order."""
    calls = [np.frombuffer(base64.b64decode(c["tokens"]["versions"]), "<i4") for c in episode["calls"]]
    return np.concatenate(calls)


def write_slow_job(folder: Path, save_every: int = STEPS) -> Path:
    """A job whose episodes take longer than a step."""
    (folder / "flow.py").write_text(FLOW)
    (folder / "tasks.jsonl").write_text("".join(f'{{"query": "What is {i} + 2?"}}\n' for i in range(8)))
    job = {
        "task": {"reader": "tasks.jsonl"},
        "workflow": "flow.py:run",
        "model": "calculator",
        "rollout": {"group_size": 4, "timeout": "60s", "concurrency": 16},
        "train": {
            "batch_size": 2,
            "steps": STEPS,
            "save_every": save_every,
            "max_staleness": 2,
            "asynchronous": True,
            "correction": "truncated",
            "kl": 0.01,
            "learning_rate": 1e-4,
        },
        "run": {"dir": "runs"},
        "backbone": {"name": "verl", "verl": {"actor_rollout_ref": {"rollout": {"max_model_len": 512}}}},
    }
    return write_job(folder, job)


def test_episodes_span_weight_versions_within_the_bound(machine: Machine) -> None:
    machine.ajet("run", str(write_slow_job(machine.folder)), seconds=4 * PATIENCE)

    run = run_folder(machine.folder)
    episodes = [line for line in lines(run / "episodes.jsonl") if line["type"] == "episode"]
    assert len({e["id"] for e in episodes}) == len(episodes) >= STEPS * 8
    assert not [e for e in episodes if e["failure"]]
    spans = []
    for episode in episodes:
        versions = versions_of(episode)
        assert versions.min() >= 0 and (np.diff(versions) >= 0).all()
        spans.append(int(versions.max() - versions.min()))
    assert max(spans) >= 1

    steps = [line for line in lines(run / "metrics.jsonl") if line["type"] == "train"]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert 1 <= max(line["staleness"] for line in steps) <= 2
    assert all(
        line["correction_weight"] > 0 and 0 <= line["correction_capped"] <= 1
        for line in steps
        if line["tokens_trained"]
    )
    assert all(line["episodes"] == 8 for line in steps)
    assert steps[0]["reference_kl"] == 0 != steps[-1]["reference_kl"]  # the initial weights are the reference


@pytest.mark.slow  # a job and its resumption: make verify-verl
def test_a_killed_job_resumes_with_the_groups_of_its_queue(machine: Machine) -> None:
    folder = machine.folder
    write_slow_job(folder, save_every=1)
    running = machine.start(sys.executable, "-m", "ajet", "run", "job.yaml")
    until(
        lambda: running.poll() is not None or any(folder.glob("runs/*/checkpoints/step_000002")), 4 * PATIENCE
    )
    assert running.poll() is None, printed_by(running)[-4000:]
    os.killpg(running.pid, signal.SIGKILL)
    running.wait(PATIENCE)
    until(lambda: not any("VLLM" in command for command in machine.commands()), PATIENCE)
    for path in machine.orphans():  # of a kill with -9 they stay: docs/verl.md
        path.unlink()
    run = run_folder(folder)
    resumed = max(int(path.name.removeprefix("step_")) for path in (run / "checkpoints").glob("step_*"))
    assert resumed in (2, 3)

    assert "resuming" in machine.ajet("run", "--resume", str(run), seconds=4 * PATIENCE)

    steps = [line for line in live_lines(run / "metrics.jsonl") if line["type"] == "train"]
    assert [line["step"] for line in steps][-(STEPS - resumed) :] == list(range(resumed + 1, STEPS + 1))
    episodes = live_lines(run / "episodes.jsonl")
    assert len({e["id"] for e in episodes}) == len(episodes)
    later = [e for e in episodes if e["step"] > resumed]
    assert all(sum(e["step"] == step for e in later) >= 8 for step in range(resumed + 1, STEPS + 1))
    assert any(versions_of(e).min() < resumed for e in later), "groups of the saved queue were trained"
    assert all(0 <= line["staleness"] <= 2 for line in steps)
