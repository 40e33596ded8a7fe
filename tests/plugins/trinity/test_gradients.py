"""Trinity's gradients are those of the local backbone, on a recorded batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ajet.interfaces.progress import Silent
from ajet.learning.loop import assert_all_trained
from ajet_local.backbone import Local
from ajet_trinity import alignment
from ajet_trinity.engine import Sampler
from ajet_trinity.learner import TrinityLearner
from ajet_trinity.plugin import Trinity
from ajet_trinity.trainer import TrinityTrainer
from tests.plugins.trinity.recorded import batch_of, job_of

CLOSE = 1e-4
ALL_TERMS: dict[str, Any] = {
    "batch_size": 3,
    "mini_batches": 2,
    "epochs": 2,
    "learning_rate": 1e-3,
    "adam_epsilon": 1e-3,
    "weight_decay": 0.1,
    "max_grad_norm": 0.5,
    "kl": 0.1,
    "entropy": 0.02,
    "correction": "truncated",
    "algorithm": {"type": f"{Path(__file__).parent / 'measuring.py'}:Measuring"},
}
"""Several optimizer steps, of which each needs the weights of the one before it, and every term of the loss."""
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "grpo": ({"batch_size": 3, "learning_rate": 1e-3, "adam_epsilon": 1e-3}, 1),
    "all-terms": (ALL_TERMS, 1),
    "two-ranks": (ALL_TERMS, 2),
}
"""The job's section `train`, and the number of workers."""


class NoEngine:
    """Nothing samples here."""

    tokenizer = None
    model_type = "qwen3"
    context_length = 160


def trained_by_trinity(job: Any, model: Path, folder: Path) -> tuple[list[Any], Any]:
    """The gradients of each optimizer step, and the metrics."""
    backbone = job.backbone
    assert isinstance(backbone, Trinity)
    place = alignment.Place(model=str(model), run_dir=folder, context=160, attempt=folder.name)
    place.spool.create()
    config = alignment.compose(job, backbone, place)
    config["trainer"]["trainer_config"]["actor"]["optim"]["optimizer_impl"] = "ajet_trinity_cpu.gradients"
    environment = {
        "AJET_TRINITY_GRADIENTS": str(folder / "gradients.pt"),
        "RAY_OVERRIDE_RESOURCES": json.dumps({"GPU": backbone.gpus, "CPU": 16}),
    }
    learner = TrinityLearner(place.spool, config, environment, 300)
    trainer = TrinityTrainer(
        learner,
        Sampler(NoEngine(), lambda: None),  # type: ignore[arg-type]
        model=model,
        layout=alignment.layout_of(job, backbone),
        temperature=1.0,
    )
    try:
        batch = batch_of(job)
        metrics = trainer.update(batch.batch)
        assert_all_trained(batch, metrics, 1)
    finally:
        learner.close()
    return torch.load(folder / "gradients.pt"), metrics


def trained_here(job: Any, model: Path) -> tuple[list[Any], Any]:
    """The same, by the local backbone."""
    trainer: Any = Local().trainer(
        str(model),
        job.config.train,
        seed=0,
        deterministic=False,
        progress=Silent(),
        needs=job.algorithm.needs,
    )
    gradients: list[Any] = []
    clip = torch.nn.utils.clip_grad_norm_

    def watched(parameters: Any, *arguments: Any) -> Any:
        gradients.append([p.grad.clone() for p in parameters])
        return clip(parameters, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", watched)
        metrics = trainer.update(batch_of(job).batch)
    return gradients, metrics


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("grpo", marks=pytest.mark.slow),
        "all-terms",
        pytest.param("two-ranks", marks=pytest.mark.slow),
    ],
)
def test_gradients_equal_those_of_the_local_backbone(
    name: str, model: Path, tmp_path: Path, nothing_left: str
) -> None:
    train, ranks = CASES[name]
    job = job_of(tmp_path, {"train": train, "rollout": {"group_size": 3}}, {"gpus": ranks})
    theirs, reported = trained_by_trinity(job, model, tmp_path)
    ours, expected = trained_here(job, model)
    assert len(theirs) == len(ours) == expected["optimizer_steps"]
    largest = 0.0
    for one, other in zip(theirs, ours, strict=True):
        assert [g.shape for g in one] == [g.shape for g in other]
        largest = max(largest, *(float((g - h).abs().max()) for g, h in zip(one, other, strict=True)))
    norms = [torch.cat([g.flatten() for g in step]).norm().item() for step in ours]
    print(f"\n{name}: largest difference {largest:.2e}, norms {norms}")
    assert largest < CLOSE
    assert min(norms) > 100 * CLOSE
    same = [
        "loss",
        "optimizer_steps",
        "tokens_trained",
        "tokens_zero_advantage",
        "logprob_diff_mean",
        "grad_norm",
    ]
    for metric in [*same, *(["reference_kl", "entropy", "lowest_min"] if "kl" in train else [])]:
        assert reported[metric] == pytest.approx(expected[metric], abs=CLOSE, rel=CLOSE), metric
