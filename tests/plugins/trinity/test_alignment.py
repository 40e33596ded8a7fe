"""What Trinity receives for a job: one table, in which no key of ours is missing."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.job.config import TargetSettings, all_keys
from ajet.types import ConfigError
from ajet.utils.keys import under
from ajet_trinity.alignment import TABLE, Place, compose, describe
from ajet_trinity.plugin import Trinity
from ajet_trinity.settings import ALLOWED, put
from tests.pages import keys_said, page
from tests.plugins.trinity.recorded import job_of

DOCS = page("docs/trinity.md")
_, OURS = DOCS.split("AgentJet honours the other keys itself")
_, REFUSED = DOCS.split("## What is refused\n")
SAID = keys_said(OURS.partition("\n\nOf Trinity's own keys")[0]) | keys_said(REFUSED.partition("\n\nAlso")[0])
"""The keys that the page says to be AgentJet's own, or refused."""
needs_trinity = pytest.mark.skipif(
    find_spec("trinity") is None, reason="Trinity is not installed: make test-trinity"
)


def received(folder: Path, sections: dict[str, Any] | None = None, **trinity: Any) -> dict[str, Any]:
    job = job_of(folder, sections or {}, trinity)
    assert isinstance(job.backbone, Trinity)
    return compose(
        job, job.backbone, Place(model="/a/model", run_dir=Path("/runs/one"), context=512, attempt="a1")
    )


def at(tree: dict[str, Any], key: str) -> Any:
    found: Any = tree
    for part in key.split("."):
        found = found[part]
    return found


def job_keys() -> list[str]:
    return [key.key for key in all_keys()] + [f"targets.NAME.{name}" for name in TargetSettings.model_fields]


def test_the_page_says_of_every_key_of_the_job_what_becomes_of_it() -> None:
    named = {key for row in TABLE for key in row.ours} | SAID
    missing = [k for k in job_keys() if k != "targets" and not any(under(k, name) for name in named)]
    assert not missing


def test_nothing_is_said_of_keys_that_the_job_does_not_have() -> None:
    said = {key for row in TABLE for key in row.ours} | SAID
    assert not [name for name in said if not any(under(k, name) for k in job_keys())]


def test_trinity_trains_with_our_classes(tmp_path: Path) -> None:
    tree = received(tmp_path)
    assert tree["mode"] == "train"
    assert at(tree, "algorithm.sample_strategy") == "ajet_trinity.remote.strategy.Files"
    assert at(tree, "algorithm.policy_loss_fn") == "ajet_trinity.remote.loss.RowLoss"
    assert at(tree, "algorithm.sample_strategy_args") == {"folder": "/runs/one/trinity/a1"}
    assert at(tree, "checkpoint_root_dir") == "/runs/one/trinity/a1/checkpoints"


@pytest.mark.parametrize(
    ("sections", "key", "value"),
    [
        ({"rollout": {"sampling": {"temperature": 0.7}}}, "model.temperature", 0.7),
        ({"rollout": {"group_size": 3}}, "algorithm.repeat_times", 3),
        ({"train": {"batch_size": 6}, "rollout": {"group_size": 3}}, "buffer.train_batch_size", 18),
        (
            {"train": {"batch_size": 6, "mini_batches": 4}, "rollout": {"group_size": 3}},
            "buffer.train_batch_size",
            6,
        ),
        ({"train": {"weight_decay": 0.3}}, "algorithm.optimizer.weight_decay", 0.3),
        (
            {"train": {"adam_epsilon": 1e-4, "max_grad_norm": 2.0}},
            "trainer.trainer_config.actor.optim.override_optimizer_config",
            {"eps": 1e-4, "max_grad_norm": 2.0, "norms": "/runs/one/trinity/a1/norms"},
        ),
        (
            {"train": {"entropy": 0.1}},
            "algorithm.entropy_loss_fn_args",
            {"coefficient": 0.1, "ranks": 1},
        ),
        (
            {"train": {"kl": 0.1}},
            "algorithm.algorithm_type",
            "ajet_trinity.remote.algorithm.GivenWithReference",
        ),
        ({"train": {"kl": 0.1}}, "algorithm.policy_loss_fn", "ajet_trinity.remote.loss.RowLossWithReference"),
        ({"train": {"correction": "truncated"}}, "algorithm.bypass_old_logprobs", True),
        ({"train": {"correction": "truncated", "epochs": 2}}, "algorithm.bypass_old_logprobs", False),
    ],
)
def test_keys_of_the_job_reach_trinity(
    tmp_path: Path, sections: dict[str, Any], key: str, value: Any
) -> None:
    assert at(received(tmp_path, sections), key) == value


def test_the_loss_gets_the_algorithm_and_what_the_job_adds_to_it(tmp_path: Path) -> None:
    train = {"algorithm": {"type": "grpo", "clip_low": 0.1}, "kl": 0.2, "correction": "truncated"}
    found = at(received(tmp_path, {"train": train}), "algorithm.policy_loss_fn_args")
    assert found["train"]["algorithm"]["clip_low"] == 0.1
    assert found["train"]["kl"] == 0.2 and found["train"]["correction"] == "truncated"
    assert found["fresh"] is True


def test_users_may_set_keys_of_trinity_that_have_an_effect(tmp_path: Path) -> None:
    tree = received(tmp_path, trainer={"param_offload": True}, gpus=2)
    assert at(tree, "trainer.param_offload") is True
    assert at(tree, "cluster.gpu_per_node") == 2


@pytest.mark.parametrize(
    ("trinity", "message"),
    [
        ({"mode": "both"}, r"backbone\.trinity\.mode: is always 'train' with AgentJet; remove the key"),
        ({"trainer": {"save_interval": 5}}, r"trainer\.save_interval: is always 0"),
        ({"algorithm": {"repeat_times": 4}}, r"repeat_times: follows from rollout\.group_size; set that"),
        ({"trainer": {"param_offlaod": True}}, r"has no effect .*did you mean 'trainer.param_offload'"),
        ({"monitor": {"cache_dir": "/x"}}, r"monitor\.cache_dir: has no effect with AgentJet"),
    ],
)
def test_other_keys_of_trinity_are_refused(tmp_path: Path, trinity: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        received(tmp_path, **trinity)


def test_an_unknown_section_is_refused_when_the_job_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"backbone\.trinity.*unknown key 'explorer'"):
        job_of(tmp_path, {}, {"explorer": {}})


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"run": {"deterministic": True}}, r"run\.deterministic: the backbone 'trinity' cannot"),
        ({"train": {"kl": 0.1, "reference": "a/model"}}, r"train\.reference: the backbone 'trinity' cannot"),
        ({"targets": {"policy": {"agents": ["*"], "lora": {}}}}, r"targets\.policy\.lora: the backbone"),
        ({"train": {"algorithm": "ppo"}}, r"train\.algorithm: 'ppo' needs a critic"),
        ({"train": {"algorithm": "dpo"}}, r"train\.algorithm: 'dpo' needs"),
    ],
)
def test_what_trinity_cannot_do_is_refused(tmp_path: Path, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        received(tmp_path, sections)


def test_a_dry_run_prints_the_yaml_that_trinity_receives(tmp_path: Path) -> None:
    job = job_of(tmp_path, {}, {"trainer": {"param_offload": True}})
    assert isinstance(job.backbone, Trinity)
    printed = job.backbone.describe(job)
    tree = yaml.safe_load(printed)
    assert tree["mode"] == "train"
    assert tree["trainer"]["param_offload"] is True
    assert "<run folder>/trinity/<attempt>/checkpoints" in printed
    assert any(
        "algorithm.repeat_times" in line and "rollout.group_size" in line for line in printed.splitlines()
    )


def test_a_dry_run_and_a_run_receive_the_same(tmp_path: Path) -> None:
    job = job_of(tmp_path, {})
    assert isinstance(job.backbone, Trinity)
    place = Place(model="/a/model", context=512)
    assert yaml.safe_load(describe(job, job.backbone, place)) == compose(job, job.backbone, place)


@needs_trinity
def test_trinity_knows_every_key_that_it_receives(tmp_path: Path) -> None:
    from trinity.common.config import Config

    def check(cls: Any, tree: dict[str, Any], prefix: str) -> None:
        known = {field.name: field.type for field in fields(cls)}
        instance = cls()
        for key, value in tree.items():
            assert key in known, f"{prefix}{key}"
            if isinstance(value, dict) and is_dataclass(getattr(instance, key)):
                check(type(getattr(instance, key)), value, f"{prefix}{key}.")

    check(Config, received(tmp_path, {"train": {"kl": 0.1, "entropy": 0.1}}), "")
    for allowed in ALLOWED:
        tree: dict[str, Any] = {}
        put(tree, allowed, {})
        check(Config, tree, "")


def test_the_page_has_a_row_for_every_key() -> None:
    for row in TABLE:
        for name in (*row.ours, *row.trinity):
            assert f"`{name}`" in DOCS, name
    for name in ALLOWED:
        assert f"`{name}`" in DOCS, name
