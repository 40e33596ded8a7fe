"""Episodes that go on while the weights change: tokens keep the version that sampled them."""

from __future__ import annotations

import base64

import numpy as np

from tests.plugins.verl.conftest import Machine, lines, run_folder, write_job

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


def test_episodes_span_weight_versions_within_the_bound(machine: Machine) -> None:
    folder = machine.folder
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
            "save_every": STEPS,
            "max_staleness": 2,
            "asynchronous": True,
            "correction": "truncated",
            "kl": 0.01,
            "learning_rate": 1e-4,
        },
        "run": {"dir": "runs"},
        "backbone": {"name": "verl", "verl": {"actor_rollout_ref": {"rollout": {"max_model_len": 512}}}},
    }
    machine.ajet("run", str(write_job(folder, job)), seconds=600)

    run = run_folder(folder)
    episodes = [line for line in lines(run / "episodes.jsonl") if line["type"] == "episode"]
    assert len({e["id"] for e in episodes}) == len(episodes) >= STEPS * 8
    assert not [e for e in episodes if e["failure"]]
    spans = []
    for episode in episodes:
        versions = np.concatenate(
            [np.frombuffer(base64.b64decode(c["tokens"]["versions"]), "<i4") for c in episode["calls"]]
        )
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
