"""Sampling and training at the same time: two ranks learn, a third answers; staleness is bounded and corrected for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ajet.rollout.recorder import live_lines
from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine, run_folder, write_job
from tests.plugins.verl.jobs import sums_job

pytestmark = pytest.mark.models("calculator")

STEPS, STALENESS = 4, 2


def separate(ranks: int, servers: int) -> dict[str, Any]:
    """The section ``backbone.verl`` of a job with so many training ranks and vLLM servers."""
    weights = {"backend": "cpu_file", "custom_backend_module": "ajet_verl_cpu.weights"}
    rollout = {"nnodes": 1, "n_gpus_per_node": servers, "checkpoint_engine": weights}
    return {
        "mode": "separate_async",
        "ray_kwargs": {"ray_init": {"+num_gpus": ranks + servers}},
        "trainer": {"n_gpus_per_node": ranks},
        "actor_rollout_ref": {"rollout": rollout},
    }


@pytest.mark.slow  # three ranks on two cores take five minutes: make verify-verl
def test_two_ranks_learn_while_a_third_answers(machine: Machine) -> None:
    verl = separate(ranks=2, servers=1)
    train = {
        "steps": STEPS,
        "mini_batches": 2,
        "max_staleness": STALENESS,
        "correction": "truncated",
        "save_every": 4,
    }
    write_job(machine.folder, sums_job(machine.folder, train=train, backbone={"name": "verl", "verl": verl}))

    machine.ajet("run", "job.yaml", seconds=4 * PATIENCE)

    run = run_folder(machine.folder)
    steps = [line for line in live_lines(run / "metrics.jsonl") if line["type"] == "train"]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert all(line["optimizer_steps"] <= 2 for line in steps)
    assert sum(line["tokens_trained"] for line in steps) > 0
    assert all(0 <= line["staleness"] <= STALENESS for line in steps)
    assert max(line["staleness"] for line in steps) > 0, "nothing was sampled beside an update"
    assert all(math.isfinite(line["loss"]) and line["logprob_diff_max"] < 1e-3 for line in steps)
    assert all("correction_weight" in line for line in steps if line["tokens_trained"])
    versions = {v for line in live_lines(run / "episodes.jsonl") for v in [line["phase"]]}
    assert versions == {"train", "validation"}
    shards = list(run.glob("checkpoints/step_000004/global_step_4/actor/model_world_size_2_rank_*.pt"))
    assert len(shards) == 2
