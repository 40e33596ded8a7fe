"""Defaults that depend on the model, the GPUs and the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ajet import ConfigError
from ajet.job.job import Job
from ajet_verl.alignment import RunPaths, compose
from ajet_verl.lengths import GIB
from ajet_verl.plugin import Verl
from tests.plugins.verl.models import model
from tests.plugins.verl.test_alignment import job_of


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has 8 GPUs of 80 GiB and 128 cores."""
    monkeypatch.setattr("ajet_verl.scale.on_gpus", lambda: True)
    monkeypatch.setattr("ajet_verl.scale.gpu_count", lambda: 8)
    monkeypatch.setattr("ajet_verl.scale.gpu_memory", lambda: 80 * GIB)
    monkeypatch.setattr("os.cpu_count", lambda: 128)
    monkeypatch.setattr("ajet_verl.alignment.platform_defaults", lambda backbone: {})
    installed(monkeypatch, "flash_attn", "cupy")


def installed(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """The machine has these packages, and no others that verl can do without."""
    monkeypatch.setattr("ajet_verl.scale.find_spec", lambda name: name if name in packages else None)


def received(job: Job, settings: Verl) -> Any:
    """The configuration that verl gets."""
    return compose(job, settings, RunPaths(job.model))


def prepared(folder: Path, name: str = "qwen3-8b", **sections: Any) -> tuple[Job, Verl]:
    model(folder, name)
    job = job_of(folder, model=f"./{name}", **sections)
    assert isinstance(job.backbone, Verl)
    return job, job.backbone


def parallel(settings: Verl) -> int:
    return (
        settings.explicit.get("actor_rollout_ref", {}).get("rollout", {}).get("tensor_model_parallel_size", 1)
    )  # type: ignore[no-any-return]


def test_a_real_model_has_a_lower_learning_rate_and_the_starter_has_not(tmp_path: Path) -> None:
    job, _ = prepared(tmp_path)
    assert job.config.train.learning_rate == 1e-6
    assert "8.2B parameters" in job.layers.source_of("train.learning_rate")
    assert job_of(tmp_path).config.train.learning_rate == 1e-5


def test_adapters_of_a_real_model_learn_at_a_higher_rate(tmp_path: Path) -> None:
    job, _ = prepared(tmp_path, targets={"a": {"lora": {"rank": 16}}})
    assert job.config.train.learning_rate == 1e-5
    assert "adapters of a model with 8.2B parameters" in job.layers.source_of("train.learning_rate")


def test_all_episodes_of_a_step_run_at_once_as_far_as_vllm_has_room(tmp_path: Path) -> None:
    job, settings = prepared(tmp_path, train={"batch_size": 64})
    assert (job.config.rollout.concurrency, settings.runners) == (512, 8)
    job, settings = prepared(tmp_path, train={"batch_size": 1024})
    assert job.config.rollout.concurrency == 8 * 256
    assert "8 vLLM servers" in job.layers.source_of("rollout.concurrency")
    assert settings.runners == 32, "a quarter of the cores"


def test_runners_are_on_every_node(tmp_path: Path) -> None:
    _, settings = prepared(tmp_path, train={"batch_size": 64}, verl={"trainer": {"nnodes": 2}})
    assert settings.runners == 4


def test_logprobs_of_vllm_are_corrected_on_gpus_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prepared(tmp_path)[0].config.train.correction == "truncated"
    monkeypatch.setattr("ajet_verl.scale.on_gpus", lambda: False)
    assert prepared(tmp_path)[0].config.train.correction == "off"


@pytest.mark.parametrize(
    ("name", "memory", "gpus"),
    [("qwen3-8b", 80, 1), ("qwen3-8b", 40, 2), ("qwen3-32b", 80, 8), ("qwen3-30b-a3b", 80, 8)],
)
def test_a_model_is_split_until_its_weights_leave_room_for_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, memory: int, gpus: int
) -> None:
    monkeypatch.setattr("ajet_verl.scale.gpu_memory", lambda: memory * GIB)
    assert parallel(prepared(tmp_path, name)[1]) == gpus


def test_a_model_is_not_split_over_more_gpus_than_a_node_has(tmp_path: Path) -> None:
    assert parallel(prepared(tmp_path, "qwen3-32b", verl={"trainer": {"n_gpus_per_node": 2}})[1]) == 2


@pytest.mark.parametrize(
    ("name", "gpus", "settings", "share"),
    [
        ("qwen3-8b", 8, {}, 0.72),
        ("qwen3-4b", 1, {}, 0.3),
        ("qwen3-0.6b", 8, {}, 0.85),
        ("qwen3-8b", 1, {}, 0.5),  # it does not fit in any case
        ("qwen3-8b", 1, {"param_offload": True, "optimizer_offload": True}, 0.85),
    ],
)
def test_vllm_gets_what_weights_and_optimizer_leave_of_a_gpu(
    tmp_path: Path, name: str, gpus: int, settings: dict[str, Any], share: float
) -> None:
    verl = {
        "trainer": {"n_gpus_per_node": gpus},
        "actor_rollout_ref": {"actor": {"fsdp_config": settings}},
    }
    job, found = prepared(tmp_path, name, verl=verl)
    assert received(job, found).actor_rollout_ref.rollout.gpu_memory_utilization == share


APART = {"mode": "separate_async", "actor_rollout_ref": {"rollout": {"nnodes": 1, "n_gpus_per_node": 4}}}


@pytest.mark.parametrize("trainers", [4, 8])
def test_servers_on_their_own_gpus_leave_room_for_those_that_verl_wakes_on_the_trainers_gpus(
    tmp_path: Path, trainers: int
) -> None:
    job, settings = prepared(tmp_path, verl={**APART, "trainer": {"n_gpus_per_node": trainers}})
    share = received(job, settings).actor_rollout_ref.rollout.gpu_memory_utilization
    weights_and_optimizer = 12 * 8.2e9 / trainers
    assert share > 0.3
    assert share * 80 * GIB + weights_and_optimizer < 0.95 * 80 * GIB


@pytest.mark.parametrize("address", [{"port": 8900}, {"url": "http://192.0.2.7:8900"}])
def test_one_runner_has_a_gateway_whose_address_agents_know(tmp_path: Path, address: dict[str, Any]) -> None:
    wanted = {"train": {"batch_size": 64}, "rollout": {"gateway_address": address}}
    job, settings = prepared(tmp_path, **wanted)
    assert (job.config.rollout.concurrency, settings.runners) == (512, 1)
    with pytest.raises(ConfigError, match="3 runners on a node cannot share one gateway"):
        received(*prepared(tmp_path, **wanted, verl={"runners": 3}))


@pytest.mark.parametrize("nodes", [{"trainer": {"nnodes": 2}}, APART])
def test_an_address_that_reaches_one_node_is_refused_where_several_run_episodes(
    tmp_path: Path, nodes: dict[str, Any]
) -> None:
    address = {"gateway_address": {"url": "http://192.0.2.7:8900"}}
    with pytest.raises(ConfigError, match=r"rollout\.gateway_address\.url: .* one node"):
        received(*prepared(tmp_path, rollout=address, verl=nodes))


def test_what_the_user_sets_stays(tmp_path: Path) -> None:
    verl = {"runners": 3, "actor_rollout_ref": {"rollout": {"tensor_model_parallel_size": 8}}}
    train = {"learning_rate": 2e-5, "correction": "off", "batch_size": 64}
    job, settings = prepared(tmp_path, "qwen3-32b", train=train, rollout={"concurrency": 7}, verl=verl)
    assert (job.config.train.learning_rate, job.config.train.correction) == (2e-5, "off")
    assert (job.config.rollout.concurrency, settings.runners, parallel(settings)) == (7, 3, 8)


def test_without_flash_attention_rows_are_padded_and_torch_attends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = received(*prepared(tmp_path)).actor_rollout_ref.model
    assert ("attn_implementation" not in model.override_config, model.use_remove_padding) == (True, True)
    installed(monkeypatch, "cupy")
    job, settings = prepared(tmp_path)
    model = received(job, settings).actor_rollout_ref.model
    assert (model.override_config.attn_implementation, model.use_remove_padding) == ("sdpa", False)
    assert "flash-attn is not installed" in job.layers.source_of(
        "backbone.verl.actor_rollout_ref.model.use_remove_padding"
    )


def test_an_attention_that_the_user_names_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    chosen = {"override_config": {"attn_implementation": "eager"}, "use_remove_padding": False}
    model = received(
        *prepared(tmp_path, verl={"actor_rollout_ref": {"model": chosen}})
    ).actor_rollout_ref.model
    assert (model.override_config.attn_implementation, model.use_remove_padding) == ("eager", False)


def test_servers_on_their_own_gpus_get_weights_through_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        received(*prepared(tmp_path, verl=APART)).actor_rollout_ref.rollout.checkpoint_engine.backend
        == "nccl"
    )
    installed(monkeypatch, "flash_attn")
    with pytest.raises(ConfigError, match=r"backbone\.verl\.mode: .*cupy"):
        prepared(tmp_path, verl=APART)
