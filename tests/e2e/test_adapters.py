"""Two targets with an adapter each, from job file to checkpoint, and what becomes of a checkpoint."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from ajet.rollout.checkpoints import checkpoints
from ajet.rollout.recorder import JOURNAL, METRICS, live_lines
from tests.e2e.test_runs import kill_and_resume, story, weights

pytestmark = pytest.mark.e2e

AGENT = """
import openai
client = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
async def ask(agent, messages):
    answer = await client.chat.completions.create(
        model="m", messages=messages, max_tokens=6, extra_headers={"x-ajet-agent": agent})
    return answer.choices[0].message.content or ""
async def run(task):
    first = await ask("solver", [{"role": "user", "content": task.query}])
    second = await ask("critic", [{"role": "user", "content": f"judge: {first}"}])
    return first + second
def judge(task, output):
    return float(len(set(str(output.response))))
"""
TARGETS = {
    "solver": {"agents": ["solver"], "lora": {"rank": 4}},
    "critic": {"agents": ["critic"], "lora": {"rank": 2}},
}


@pytest.fixture
def targets(project: Any) -> Any:
    (project.folder / "agent.py").write_text(AGENT)
    job = yaml.safe_load((project.folder / "job.yaml").read_text())
    job["train"] |= {"steps": 4, "kl": 0.01, "learning_rate": 1e-2}
    project.job(**job, targets=TARGETS)
    return project


def adapter_bytes(checkpoint: Path, name: str) -> bytes:
    return (checkpoint / "adapters" / name / "adapter_model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_killed_run_of_two_adapters_ends_bit_equal_to_the_uninterrupted_one(targets: Any) -> None:
    targets.ajet("run", "job.yaml", "--set", "run.dir=whole")
    targets.ajet("audit", "whole")
    (whole,) = targets.runs("whole")
    found = weights(whole)
    assert {name.partition(":")[0] for name in found if ".safetensors" in name} == {
        f"adapters/{name}/adapter_model.safetensors" for name in TARGETS
    }
    killed = kill_and_resume(targets, random.Random(3), "killed")
    assert weights(killed) == found
    assert story(killed) == story(whole)
    metrics = [m for m in live_lines(whole / METRICS) if m["type"] == "train"]
    assert all(m["logprob_diff_max"] < 1e-3 for m in metrics)
    assert all(m["tokens_trained"] + m["tokens_zero_advantage"] == m["tokens_sampled"] for m in metrics)
    assert metrics[-1]["reference_kl"] != 0


@pytest.mark.slow
def test_an_asynchronous_run_trains_adapters(targets: Any) -> None:
    options = ("--no-deterministic", "--set", "train.asynchronous=true")
    targets.ajet("run", "job.yaml", "--set", "run.dir=beside", *options)
    (run_dir,) = targets.runs("beside")
    last = load_file(checkpoints(run_dir)[-1] / "adapters/solver/adapter_model.safetensors")
    assert any(np.any(array) for name, array in last.items() if "lora_B" in name)


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_exported_and_trained_on(targets: Any) -> None:
    targets.ajet("run", "job.yaml", "--set", "run.dir=first")
    (run_dir,) = targets.runs("first")
    checkpoint = checkpoints(run_dir)[-1]

    targets.ajet(
        "run",
        "job.yaml",
        "--model",
        str(checkpoint),
        "--set",
        "train.targets=[solver]",
        "--set",
        "run.dir=second",
    )
    further = checkpoints(targets.runs("second")[0])[-1]
    assert adapter_bytes(further, "critic") == adapter_bytes(checkpoint, "critic")
    assert adapter_bytes(further, "solver") != adapter_bytes(checkpoint, "solver")

    targets.ajet("eval", "job.yaml", "--model", str(checkpoint))

    output = targets.ajet("export", str(checkpoint), "out", code=2)
    assert "critic, solver" in output and "--target NAME" in output
    targets.ajet("export", str(checkpoint), "out", "--target", "solver")
    assert (targets.folder / "out/model.safetensors").is_file()
    base = yaml.safe_load((targets.folder / "job.yaml").read_text())["model"]
    answers = [greedy(targets, str(model)) for model in (checkpoint / "adapters/solver", "out", base)]
    assert answers[0] == answers[1] != answers[2]
    refused = targets.ajet("eval", *BY_FLAGS, "--model", str(checkpoint), code=2)
    assert "target 'policy': the model contains the adapters of critic, solver" in refused


BY_FLAGS = ("--workflow", "agent.py:run", "--judge", "agent.py:judge", "--tasks", "tasks.jsonl")


def greedy(project: Any, model: str) -> list[str]:
    """What a model answers to the tasks, with its target's adapter for both agents."""
    name = f"greedy-{len(list(project.folder.iterdir()))}"
    project.ajet("eval", *BY_FLAGS, "--greedy", "--model", model, "--set", f"run.dir={name}")
    lines = live_lines(project.runs(name)[0] / JOURNAL)
    # The id begins with the step of the checkpoint, which an exported model does not have.
    return sorted(json.dumps([line["id"].partition("/")[2], line["response"]]) for line in lines)
