"""LoRA adapters on verl: one for each target, exported as they were trained."""

from __future__ import annotations

import os
import signal
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ajet.rollout.checkpoints import checkpoints, step_of
from ajet.rollout.episode import Plan
from ajet.rollout.journal import episode_from_json
from ajet.rollout.recorder import live_lines
from ajet.tracker.timelines import Timeline, timelines
from ajet.types import ConfigError, Task
from ajet_lora.adapters import base_of
from ajet_verl import lora
from ajet_verl.alignment import RunPaths, compose
from ajet_verl.plugin import Verl
from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine, lines, printed_by, run_folder, write_job
from tests.plugins.verl.jobs import sums_job
from tests.plugins.verl.test_alignment import job_of
from tests.plugins.verl.test_two_nodes import until

pytestmark = pytest.mark.models("calculator")

SECONDS = 4 * PATIENCE
STEPS = 2
FLOW = """
from ajet import WorkflowOutput


async def run(task, tuner):
    messages = [{"role": "user", "content": task.query}]
    for agent in ("solver", "critic", "solver"):
        client = tuner.as_openai_client(agent=agent)
        answer = await client.chat.completions.create(model="m", messages=messages, max_tokens=8)
        messages += [{"role": "assistant", "content": answer.choices[0].message.content}, {"role": "user", "content": "and?"}]
    return WorkflowOutput(response=answer.choices[0].message.content)


def judge(task, output):
    return len(str(output.response)) / 8
"""
TARGETS = {
    "solver": {"agents": ["solver"], "lora": {"rank": 4}},
    "critic": {"agents": ["critic"], "lora": {"rank": 2, "modules": ["q_proj", "v_proj"]}},
}


def lora_job(folder: Path, **sections: Any) -> dict[str, Any]:
    """A job of two agents, each with an adapter of its own."""
    (folder / "flow.py").write_text(FLOW)
    train = {"steps": STEPS, "learning_rate": 1e-2, "save_every": STEPS, "kl": 0.01}
    job = sums_job(folder, run={"dir": "runs"}, train=train, eval={"episodes": 2})
    return {**job, "workflow": "flow.py:run", "judge": "flow.py:judge", "targets": TARGETS, **sections}


def test_what_verl_receives_has_an_adapter_for_each_target(tmp_path: Path) -> None:
    targets = {**TARGETS, "judge": {"agents": ["judge"], "lora": {"rank": 8, "alpha": 4}}}
    job = job_of(tmp_path, targets=targets, train={"targets": ["solver", "critic"]})
    assert isinstance(job.backbone, Verl)
    config = compose(job, job.backbone, RunPaths("a/model"))
    assert config.actor_rollout_ref.model.lora_rank == 8, "vLLM has room for the largest"
    assert config.actor_rollout_ref.rollout.load_format == "auto", "the trainer sends no base weights"
    assert lora.of(config.actor_rollout_ref.model) == {
        "solver": {"rank": 4, "alpha": None, "modules": None, "trained": True},
        "critic": {"rank": 2, "alpha": None, "modules": ["q_proj", "v_proj"], "trained": True},
        "judge": {"rank": 8, "alpha": 4, "modules": None, "trained": False},
    }


def test_a_model_with_adapters_needs_targets_of_their_names(tmp_path: Path) -> None:
    for name in ("solver", "other"):
        folder = tmp_path / name / "adapters" / name
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
    job = job_of(tmp_path, targets=TARGETS)
    assert lora.folder(str(tmp_path / "solver"), job) == str(tmp_path / "solver")
    assert lora.folder(str(tmp_path), job) is None
    with pytest.raises(ConfigError, match="contains the adapters of other, but no target of the job"):
        lora.folder(str(tmp_path / "other"), job)


def test_two_adapters_train_and_their_export_scores_as_the_run_did(machine: Machine) -> None:
    folder = machine.folder
    write_job(folder, lora_job(folder))
    machine.ajet("run", "job.yaml", seconds=SECONDS)
    run = run_folder(folder)

    steps = [line for line in lines(run / "metrics.jsonl") if line["type"] == "train"]
    assert [line["step"] for line in steps] == [1, 2]
    assert all(line["logprob_diff_max"] < 1e-4 for line in steps), "vLLM samples with what is trained"
    assert steps[0]["reference_kl"] == 0 != steps[-1]["reference_kl"], "the reference is the base model"

    (checkpoint,) = checkpoints(run)
    with pytest.raises(ConfigError, match=r"contains the adapters of critic, solver\. Choose one"):
        Verl().export(checkpoint, folder / "merged", None)
    for name in TARGETS:
        weights = load_file(checkpoint / weights_of(name))
        assert any(weight.any() for key, weight in weights.items() if "lora_B" in key), "it has learned"
        Verl().export(checkpoint, folder / f"merged-{name}", name)

    found = [line for line in live_lines(run / "episodes.jsonl") if line["phase"] == "validation"]
    found = [line for line in found if line["step"] == STEPS]
    assert len(found) == 2
    task = Task("a task")
    for line in found:
        episode = episode_from_json(line, Plan(line["id"], line["id"], task, line["member"], 0))
        for timeline in timelines(episode.record.trained_calls):
            (name,) = {span.target for span in timeline.spans}
            models = loaded(folder / f"merged-{name}"), unmerged(checkpoint / "adapters" / name)
            for model in models:
                np.testing.assert_allclose(
                    scored(model, timeline), timeline.logprobs[timeline.mask], atol=1e-4
                )
            base = scored(loaded(base_of(checkpoint / "adapters" / name)), timeline)
            assert np.abs(base - timeline.logprobs[timeline.mask]).max() > 1e-3, "the base model does not"


@pytest.mark.slow  # a job and its resumption: make verify-verl
def test_a_killed_asynchronous_run_goes_on_with_its_adapters(machine: Machine) -> None:
    folder = machine.folder
    job = lora_job(folder)
    train = {**job["train"], "steps": 3, "save_every": 1, "asynchronous": True}
    write_job(folder, {**job, "train": train, "task": {"reader": "train.jsonl"}})
    running = machine.start(sys.executable, "-m", "ajet", "run", "job.yaml")
    until(lambda: running.poll() is not None or any(folder.glob("runs/*/checkpoints/step_000001")), SECONDS)
    assert running.poll() is None, printed_by(running)[-4000:]
    os.killpg(running.pid, signal.SIGKILL)
    running.wait(PATIENCE)
    until(lambda: not any("VLLM" in command for command in machine.commands()), PATIENCE)
    for path in machine.orphans():  # of a kill with -9 they stay: docs/verl.md
        path.unlink()
    run = run_folder(folder)
    saved = checkpoints(run)[-1]
    assert step_of(saved) < 3
    before = {name: (saved / weights_of(name)).read_bytes() for name in TARGETS}

    assert "resuming" in machine.ajet("run", "--resume", str(run), seconds=SECONDS)

    steps = [line for line in live_lines(run / "metrics.jsonl") if line["type"] == "train"]
    assert steps[-1]["step"] == 3
    for line in steps:
        assert line["logprob_diff_max"] < 1e-4
        assert (line["reference_kl"] != 0) == (line["step"] > 1), "new adapters would be the base model again"
    after = {name: (checkpoints(run)[-1] / weights_of(name)).read_bytes() for name in TARGETS}
    assert all(after[name] != before[name] for name in TARGETS)


def weights_of(name: str) -> str:
    """The file of an adapter's weights in a checkpoint."""
    return f"adapters/{name}/adapter_model.safetensors"


@cache
def loaded(folder: str | Path) -> Any:
    """A model of transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


@cache
def unmerged(folder: Path) -> Any:
    """A model of peft, from an adapter's folder."""
    from peft import PeftModel

    return PeftModel.from_pretrained(loaded.__wrapped__(base_of(folder)), str(folder)).eval()


@torch.no_grad()
def scored(model: Any, timeline: Timeline) -> np.ndarray:
    """The logprobs of the sampled tokens of a timeline, float32[T]."""
    ids = torch.from_numpy(timeline.token_ids.astype(np.int64))
    logprobs = model(ids[None]).logits[0, :-1].log_softmax(-1)
    found: np.ndarray = logprobs.gather(1, ids[1:, None])[:, 0].numpy()
    return found[timeline.mask[1:]]
