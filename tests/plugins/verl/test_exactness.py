"""verl's workers receive the credit of the local backbone, and their gradients are its gradients."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ajet.interfaces.progress import Silent
from ajet.job.models import model_source
from ajet.learning.batch import Learning, TokenSelection, build_batch
from ajet.learning.settings import LoraSettings
from ajet_local.modeling import load_model
from ajet_lora.adapters import Adapters
from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine, write_job
from tests.plugins.verl.exactness import TIMELINES, WAYS, episodes, job_of, keep_gradients

pytestmark = pytest.mark.models("calculator")

RATE = 1e-12
"""Too small to change a weight, so that the gradients of both mini-batches are at the same weights."""


@pytest.fixture
def job_file(machine: Machine) -> Path:
    """All weights are trained; the reference is another model."""
    model = Path(model_source("calculator", 0, Silent()))
    reference = _another(model, machine.folder / "reference")
    return _write_job(machine, model=str(model), train={"reference": str(reference)})


@pytest.fixture
def adapters_job_file(machine: Machine) -> Path:
    """Two adapters are trained, which are no new ones; the reference is the model without them."""
    model, _ = load_model(model_source("calculator", 0, Silent()), "cpu")
    adapters = Adapters(model)
    torch.manual_seed(0)
    for name, rank in (("one", 2), ("two", 4)):
        adapters.add(name, LoraSettings(rank=rank), 0)
        for parameter in adapters.parameters(name):
            parameter.data = 0.02 * torch.randn_like(parameter)
        adapters.save(name, machine.folder / "model" / "adapters" / name)
    targets = {name: {"agents": [name], "lora": {"rank": rank}} for name, rank in (("one", 2), ("two", 4))}
    # Gradients of each adapter are clipped to its own norm.
    return _write_job(
        machine, model=str(machine.folder / "model"), train={"max_grad_norm": 0.1}, targets=targets
    )


def _write_job(machine: Machine, train: dict[str, Any], **sections: Any) -> Path:
    (machine.folder / "tasks.jsonl").write_text('{"query": "q", "answer": "a"}\n')
    (machine.folder / "flow.py").write_text("async def run(task, tuner):\n    return None\n")
    job = {
        "task": {"reader": "tasks.jsonl"},
        "workflow": "flow.py:run",
        "rollout": {"group_size": 3},
        "train": {
            "algorithm": "grpo",
            "batch_size": 2,
            "mini_batches": 2,
            "learning_rate": RATE,
            "max_grad_norm": 1e9,
            "correction": "truncated",
            "entropy": 0.01,
            "kl": 0.1,
            **train,
        },
        "backbone": {
            "name": "verl",
            "verl": {
                "trainer": {"n_gpus_per_node": 2},
                # Several micro-batches of a mini-batch.
                "actor_rollout_ref": {
                    "actor": {"ppo_max_token_len_per_gpu": 64},
                    "rollout": {"max_model_len": 64},
                },
            },
        },
    }
    return write_job(machine.folder, job | sections)


def _another(model: Path, folder: Path) -> Path:
    """A copy of a model with other weights."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    torch.manual_seed(0)
    other = {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in weights.items()}
    save_file(other, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_received_credit_is_the_local_one_and_so_are_the_gradients(machine: Machine, job_file: Path) -> None:
    _check(machine, job_file)


@pytest.mark.slow  # make verify-verl
def test_so_are_the_gradients_of_two_adapters(machine: Machine, adapters_job_file: Path) -> None:
    _check(machine, adapters_job_file)


def _check(machine: Machine, job_file: Path) -> None:
    folder = machine.folder / "out"
    folder.mkdir()
    script = Path(__file__).with_name("exactness.py")
    machine.run(sys.executable, str(script), str(job_file), str(folder), seconds=4 * PATIENCE)

    job = job_of(job_file)
    targets = list(job.config.targets)
    local = build_batch(
        episodes(targets=targets or ["policy"]),
        Learning.of(job.algorithm, job.config.train, targets),
        mini_batches=2,
        learning_rate=RATE,
        seed=f"{job.config.run.seed}:1",
        selection=TokenSelection(seed=str(job.config.run.seed)),
    )
    assert local and len(local.batch.samples) == 2 * sum(TIMELINES)

    ours = _local_gradients(job, local.batch, folder / "local")
    of_rows, of_trees = (_checked(folder / way, local, ours) for way in WAYS)
    assert "tree_token_ratio" not in of_rows and of_trees["tree_token_ratio"] > 1.2


def _checked(folder: Path, local: Any, ours: list[list[torch.Tensor]]) -> dict[str, float]:
    """The metrics, if the workers have received the credit of ``local`` and made its gradients of it."""
    received = [row for file in sorted(folder.glob("received-*")) for row in torch.load(file)]
    padding = [row for row in received if not row["response_mask"].any()]
    rows = {tuple(row["input_ids"].tolist()): row for row in received if row["response_mask"].any()}
    assert padding and all(not row["weights"].any() for row in padding)
    assert len(rows) == len(received) - len(padding) == len(local.batch.samples)
    for sample in local.batch.samples:
        row = rows[tuple(sample.token_ids.tolist())]
        first = int(sample.mask.argmax())
        for name, array in (("advantages", sample.advantages), ("weights", sample.weights)):
            np.testing.assert_array_equal(row[name].numpy(), array[first:], err_msg=name)
        np.testing.assert_array_equal(row["response_mask"].numpy().astype(bool), sample.mask[first:])

    verls = [torch.load(file) for file in sorted(folder.glob("gradients-*"))]
    assert len(verls) == len(ours) == 2
    for theirs, own in zip(verls, ours, strict=True):
        difference = torch.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(theirs, own, strict=True)))
        size = torch.sqrt(sum((b**2).sum() for b in own))
        assert size > 1e-3 and difference / size < 1e-4, (difference / size).item()

    measured: dict[str, float] = torch.load(folder / "metrics.pt", weights_only=False)["metrics"]
    assert measured["tokens_trained"] == local.sampled_tokens and measured["optimizer_steps"] == 2
    assert 0 < measured["correction_capped"] < 1  # the cap was active
    assert measured["reference_kl"] != 0  # the reference is another model
    return measured


def _local_gradients(job: Any, batch: Any, folder: Path) -> list[list[torch.Tensor]]:
    """Of each mini-batch, by the local backbone's trainer."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from ajet_local.backbone import Local

    folder.mkdir()
    adapters = {name: target.lora for name, target in job.config.targets.items()}
    trainer = Local(device="cpu").trainer(
        job.model, job.config.train, seed=0, deterministic=False, progress=Silent(), adapters=adapters
    )
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: keep_gradients(optimizer, folder))
    try:
        trainer.update(batch)
    finally:
        hook.remove()
    found = [torch.load(file) for file in sorted(folder.glob("gradients-*"))]
    if not adapters:
        return found
    # Each adapter has its own optimizer, but on verl there is one, and in each layer the adapters take turns.
    return [
        [g for pair in zip(one, two, strict=True) for g in pair]
        for one, two in zip(found[::2], found[1::2], strict=True)
    ]
