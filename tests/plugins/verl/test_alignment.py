"""What verl receives for a job: one table, in which no key of ours is missing."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ajet.interfaces.backbone import OPTIONAL_KEYS
from ajet.job.config import TargetSettings, all_keys
from ajet.job.job import Job
from ajet.job.layers import job_layers
from ajet.job.prepare import prepare
from ajet.types import ConfigError
from ajet.utils.keys import leaves, under
from ajet_verl import keys
from ajet_verl.alignment import (
    RunPaths,
    compose,
    verl_defaults,
)
from ajet_verl.keys import DEFAULTS, ENGINES, FIXED, PLACED, TABLE
from ajet_verl.plugin import Verl
from tests.pages import keys_said, page

PAGE = page("plugins/verl/KEYS.md")
OTHERS = PAGE.partition("## Keys that differ, or are refused")[2].partition("These keys of verl")[0]
"""What the page says of the keys that do not set verl's."""
WORKFLOW = "async def run(task, tuner):\n    return None\n"


def job_of(folder: Path, **sections: Any) -> Job:
    """A prepared job of the backbone verl."""
    (folder / "agent.py").write_text(WORKFLOW)
    (folder / "tasks.jsonl").write_text('{"query": "1+1", "answer": "2"}\n{"query": "1+2", "answer": "3"}\n')
    job = {
        "task": {"reader": "tasks.jsonl", "validation": "tasks.jsonl"},
        "workflow": "agent.py:run",
        "model": "starter",
        "backbone": {"name": "verl", "verl": sections.pop("verl", {})},
        **sections,
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return prepare(job_layers(path))


def received(folder: Path, **sections: Any) -> Any:
    job = job_of(folder, **sections)
    assert isinstance(job.backbone, Verl)
    return compose(job, job.backbone, RunPaths("a/model", "/runs/one"))


def at(config: Any, key: str) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.select(config, key, throw_on_missing=True)


def test_the_page_says_of_every_key_of_the_job_what_becomes_of_it() -> None:
    names = [key.key for key in all_keys()] + [f"targets.NAME.{n}" for n in TargetSettings.model_fields]
    named = {row.ours for row in TABLE} | set(PLACED.values()) | keys_said(OTHERS)
    missing = [name for name in names if name != "targets" and not any(under(name, n) for n in named)]
    assert not missing


def test_nothing_is_said_of_keys_that_the_job_does_not_have() -> None:
    names = {key.key for key in all_keys()} | {f"targets.NAME.{n}" for n in TargetSettings.model_fields}
    said = {row.ours for row in TABLE} | {key.partition(":")[0] for key in keys_said(OTHERS)}
    assert not [name for name in said if not any(under(n, name) for n in names)]


def test_what_is_refused_is_what_the_capabilities_leave_out() -> None:
    optional = OPTIONAL_KEYS - Verl.capabilities.keys
    refused = keys_said(OTHERS.partition("These keys are refused")[2])
    algorithms = {"train.algorithm: ppo", "train.algorithm: dpo"}
    assert optional | {"run.deterministic"} | algorithms == refused


VALUES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "train.steps": ({"train": {"steps": 7}}, {"trainer.total_training_steps": 7}),
    "train.batch_size": ({"train": {"batch_size": 6}}, {"data.train_batch_size": 6}),
    "rollout.group_size": ({"rollout": {"group_size": 3}}, {"actor_rollout_ref.rollout.n": 3}),
    "train.mini_batches": (
        {"train": {"batch_size": 6, "mini_batches": 3}},
        {
            "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
            "trainer.v1.separate_async.parameter_sync_step": 3,
        },
    ),
    "train.epochs": ({"train": {"epochs": 2}}, {"actor_rollout_ref.actor.ppo_epochs": 2}),
    "train.learning_rate": ({"train": {"learning_rate": 2e-5}}, {"actor_rollout_ref.actor.optim.lr": 2e-5}),
    "train.warmup_steps": (
        {"train": {"warmup_steps": 4}},
        {"actor_rollout_ref.actor.optim.lr_warmup_steps": 4},
    ),
    "train.schedule": (
        {"train": {"schedule": "cosine"}},
        {"actor_rollout_ref.actor.optim.lr_scheduler_type": "cosine"},
    ),
    "train.final_share": (
        {"train": {"schedule": "cosine", "final_share": 0.25}},
        {"actor_rollout_ref.actor.optim.min_lr_ratio": 0.25},
    ),
    "train.weight_decay": (
        {"train": {"weight_decay": 0.5}},
        {"actor_rollout_ref.actor.optim.weight_decay": 0.5},
    ),
    "train.adam_epsilon": (
        {"train": {"adam_epsilon": 1e-4}},
        {"actor_rollout_ref.actor.optim.override_optimizer_config.eps": 1e-4},
    ),
    "train.max_grad_norm": (
        {"train": {"max_grad_norm": 3.0}},
        {"actor_rollout_ref.actor.optim.clip_grad": 3.0, "actor_rollout_ref.actor.grad_clip": 3.0},
    ),
    "train.kl": (
        {"train": {"kl": 0.25}},
        {"actor_rollout_ref.actor.use_kl_loss": True, "actor_rollout_ref.actor.kl_loss_coef": 0.25},
    ),
    "train.max_staleness": (
        {"train": {"max_staleness": 2}},
        {"trainer.v1.sampler.max_off_policy_threshold": 3},
    ),
    "train.save_every": ({"train": {"save_every": 5}}, {"trainer.save_freq": 5}),
    "eval.every": ({"eval": {"every": 5}}, {"trainer.test_freq": 5}),
    "rollout.sampling.temperature": (
        {"rollout": {"sampling": {"temperature": 0.5}}},
        {
            "actor_rollout_ref.rollout.temperature": 0.5,
            "actor_rollout_ref.rollout.logprobs_mode": "processed_logprobs",
        },
    ),
    "run.seed": (
        {"run": {"seed": 11}},
        {
            "data.seed": 11,
            "actor_rollout_ref.actor.data_loader_seed": 11,
            "actor_rollout_ref.actor.fsdp_config.seed": 11,
            "actor_rollout_ref.rollout.seed": 11,
        },
    ),
}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.ours)
def test_a_key_of_the_job_reaches_verl(row: Any, tmp_path: Path) -> None:
    sections, wanted = VALUES[row.ours]
    config, untouched = received(tmp_path, **sections), received(tmp_path)
    for key, value in wanted.items():
        assert at(config, key) == value
        assert at(untouched, key) != value, f"{key} has this value anyway"
    assert all(any(k == v or k.startswith(f"{v}.") for k in wanted) for v in row.verl)


def test_a_teacher_makes_verl_compute_the_logprobs_of_its_reference_model(tmp_path: Path) -> None:
    train = {"algorithm": "distillation", "reference": str(tmp_path)}
    assert at(received(tmp_path, train=train), "actor_rollout_ref.actor.use_kl_loss") is True
    assert at(received(tmp_path), "actor_rollout_ref.actor.use_kl_loss") is False


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("mode", ["sync", "separate_async"])
def test_verls_learning_rate_follows_the_steps_of_the_job(mode: str, schedule: str, tmp_path: Path) -> None:
    """verl's own scheduler, one step behind: each step begins with the rate of the job's step before it."""
    import torch
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    train = {"steps": 9, "warmup_steps": 4, "schedule": schedule, "batch_size": 6, "mini_batches": 3}
    job = job_of(tmp_path, train=train, verl={"mode": mode})
    assert isinstance(job.backbone, Verl)
    config = compose(job, job.backbone, RunPaths("a/model", "/runs/one"))
    optim = at(config, "actor_rollout_ref.actor.optim")
    updates = 3 if mode == "separate_async" else 1
    # As verl's trainer does in `_create_dataloader`.
    optim.total_training_steps = 9 * updates
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=optim.lr)
    engine: Any = SimpleNamespace(optimizer_config=omega_conf_to_dataclass(optim), rank=1)
    scheduler = FSDPEngine._build_lr_scheduler(engine, optimizer)
    found = []
    for _ in range(9):
        found.append(scheduler.get_last_lr()[0])
        for _ in range(updates):
            optimizer.step()
            scheduler.step()
    wanted = [0.0, *(job.config.train.rate_at(step) for step in range(1, 9))]
    assert found == pytest.approx(wanted)


def test_what_depends_on_the_run_reaches_verl(tmp_path: Path) -> None:
    config = received(tmp_path, train={"asynchronous": True})
    assert at(config, "actor_rollout_ref.model.path") == "a/model"
    assert at(config, "trainer.default_local_dir").startswith("/runs/one/")
    assert at(config, "trainer.v1.trainer_mode") == "colocate_async"
    assert at(config, "trainer.val_before_train") is True
    assert at(received(tmp_path, task={"reader": "tasks.jsonl"}), "trainer.test_freq") == -1


def test_an_explicit_key_of_verl_survives_the_alignment(tmp_path: Path) -> None:
    optim = {"lr": 3e-7, "weight_decay": "1e-3"}
    verl = {"actor_rollout_ref": {"actor": {"optim": optim}, "rollout": {"tensor_model_parallel_size": 4}}}
    config = received(tmp_path, verl=verl, train={"learning_rate": 1e-5})
    assert at(config, "actor_rollout_ref.actor.optim.lr") == 3e-7
    assert at(config, "actor_rollout_ref.actor.optim.weight_decay") == 1e-3, "YAML takes it for a text"
    assert at(config, "actor_rollout_ref.rollout.tensor_model_parallel_size") == 4


def test_a_key_that_verl_takes_but_does_not_list_is_written_with_a_plus(tmp_path: Path) -> None:
    rollout = {"+enable_sleep_mode": True, "engine_kwargs": {"vllm": {"swap_space": 1}}}
    config = received(tmp_path, verl={"actor_rollout_ref": {"rollout": rollout}})
    assert at(config, "actor_rollout_ref.rollout.enable_sleep_mode") is True
    assert at(config, "actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space") == 1


@pytest.mark.parametrize(
    ("verl", "message"),
    [
        ({"moed": "sync"}, "backbone.verl: unknown key 'moed'; did you mean 'mode'"),
        (
            {"trainer": {"nnode": 2}},
            "backbone.verl.trainer.nnode: unknown key 'nnode'; did you mean 'nnodes'",
        ),
        ({"data": {"train_batch_size": 3}}, "set train.batch_size instead"),
        ({"actor_rollout_ref": {"model": {"path": "x"}}}, "follows from model"),
        ({"algorithm": {"adv_estimator": "gae"}}, "is always 'grpo' with AgentJet"),
        ({"mode": "sometimes"}, "backbone.verl.mode"),
    ],
)
def test_a_key_that_cannot_be_set_is_an_error_that_names_it(
    verl: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        received(tmp_path, verl=verl)


@pytest.mark.parametrize("prefix", keys.WITHOUT_EFFECT)
def test_a_key_without_effect_is_an_error_that_names_the_remedy(prefix: str, tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    key, value = prefix, OmegaConf.select(verl_defaults("dp"), prefix)
    while value and hasattr(value, "keys"):  # the first leaf below the prefix that AgentJet does not set
        inner = next(k for k in value if k != "_target_" and f"{key}.{k}" not in FIXED)
        key, value = f"{key}.{inner}", OmegaConf.select(verl_defaults("dp"), f"{key}.{inner}")
    verl: Any = "something"
    for part in reversed(key.split(".")):
        verl = {part: verl}
    with pytest.raises(ConfigError, match=re.escape(f"backbone.verl.{key}: cannot be set with AgentJet")):
        received(tmp_path, verl=verl)


def test_the_epochs_of_the_rows_are_those_of_the_job(tmp_path: Path) -> None:
    """Otherwise no logprobs before the update are computed, and every epoch's ratio is 1."""
    with pytest.raises(ConfigError, match=r"ppo_epochs: .* set train\.epochs instead"):
        received(tmp_path, verl={"actor_rollout_ref": {"actor": {"ppo_epochs": 2}}})


@pytest.mark.usefixtures("on_gpus")
@pytest.mark.parametrize("key", keys.WITHOUT_EFFECT)
def test_nothing_that_we_set_ourselves_is_called_without_effect(key: str, tmp_path: Path) -> None:
    from ajet_verl.alignment import changes

    config = received(tmp_path, train={"kl": 0.1, "correction": "truncated"})
    assert not [k for k in changes(config, verl_defaults("dp")) if under(k, key) and k not in FIXED]


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"train": {"schedule": "linear"}}, "train.schedule"),
        ({"train": {"schedule": "cosine"}, "verl": {"engine": "megatron"}}, "train.schedule"),
        ({"rollout": {"oversample": 1.5}, "train": {"asynchronous": True}}, "rollout.oversample"),
        ({"rollout": {"oversample": 1.5}, "verl": {"mode": "separate_async"}}, "rollout.oversample"),
        ({"run": {"deterministic": True}}, "run.deterministic"),
        ({"targets": {"a": {"agents": ["a"]}, "b": {"agents": ["b"]}}}, "targets"),
        ({"targets": {"a": {"lora": {"rank": 1000}}}}, "targets.a.lora.rank"),
        ({"targets": {"a": {"lora": {"rank": 4}}}, "verl": {"engine": "megatron"}}, "targets.a.lora"),
        ({"targets": {"a": {"lora": {"rank": 4}}}, "verl": {"mode": "separate_async"}}, "targets.a.lora"),
        (
            {
                "targets": {name: {"agents": [name], "lora": {"rank": 4}} for name in ("a", "b")},
                "verl": {
                    "actor_rollout_ref": {"actor": {"fsdp_config": {"ulysses_sequence_parallel_size": 2}}}
                },
            },
            "targets.a.lora",
        ),
        ({"train": {"asynchronous": True}, "verl": {"mode": "sync"}}, "backbone.verl.mode"),
        (
            {"train": {"batch_size": 3, "mini_batches": 2}, "verl": {"mode": "separate_async"}},
            "train.mini_batches",
        ),
        (
            {"rollout": {"sampling": {"temperature": 0.5, "top_k": 3, "allow_truncated": True}}},
            "rollout.sampling",
        ),
    ],
)
def test_what_verl_cannot_honour_is_refused_by_its_name(
    sections: dict[str, Any], key: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(key)}"):
        received(tmp_path, **sections)


@pytest.mark.parametrize("engine", ["veomni", "torchtitan"])
def test_an_engine_that_never_ran_is_refused_and_the_others_are_named(engine: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=f"^backbone.verl.engine: .*'{engine}' is not supported; use dp or megatron"
    ):
        received(tmp_path, verl={"engine": engine})


ENGINE_NAMES = ("dp", "megatron")


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_every_key_of_verl_that_we_name_is_one(engine: str) -> None:
    """Of the installed verl, with this engine; what we add is listed."""
    from omegaconf import OmegaConf

    added = {
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
        "data.ajet",
    }
    aligned = {ENGINES[engine].key(key) for row in TABLE for key in row.verl} - {None}
    named = aligned | FIXED.keys() | DEFAULTS.keys() | ENGINES[engine].defaults.keys() | PLACED.keys()
    tree = OmegaConf.to_container(verl_defaults(engine), resolve=False)
    there = {name for key, _ in leaves(tree) for name in prefixes(key)}
    assert not named - there - added
    assert set(tree) == {*keys.SECTIONS, "model_engine"}
    sharing = f"{ENGINES[engine].section}.{ENGINES[engine].sharing}"
    assert {f"actor_rollout_ref.actor.{sharing}", f"actor_rollout_ref.ref.{sharing}"} <= there


def validated(config: Any) -> Any:
    """The actor's configuration as verl's dataclass. Raises verl's error for a configuration that it does not accept."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    validate_config(config, need_reference_policy(config), need_critic(config))
    for key in ("actor_rollout_ref.rollout", "actor_rollout_ref.actor.optim", "algorithm"):
        omega_conf_to_dataclass(at(config, key))
    return omega_conf_to_dataclass(config.actor_rollout_ref.actor)


@pytest.mark.usefixtures("on_gpus")
@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_verl_accepts_the_configuration_of_every_engine(engine: str, tmp_path: Path) -> None:
    config = received(tmp_path, verl={"engine": engine}, train={"kl": 0.1}, run={"seed": 11})
    actor = validated(config)
    assert actor.strategy == {"dp": "fsdp2"}.get(engine, engine)
    assert actor.engine.strategy in (None, actor.strategy)
    assert actor.engine.seed == 11
    assert (engine == "dp") == ("fsdp_config" in config.actor_rollout_ref.actor)


@pytest.mark.usefixtures("on_gpus")
def test_the_first_fsdp_can_be_chosen(tmp_path: Path) -> None:
    config = received(tmp_path, verl={"actor_rollout_ref": {"actor": {"strategy": "fsdp"}}})
    assert at(config, "actor_rollout_ref.actor.fsdp_config.strategy") == "fsdp"
    assert validated(config).engine.strategy == "fsdp"


@pytest.mark.parametrize(
    ("engine", "key", "value"),
    [
        ("dp", "lr_scheduler_type", "constant"),
        ("megatron", "lr_decay_style", "constant"),
    ],
)
def test_the_learning_rate_is_constant_with_every_engine(
    engine: str, key: str, value: Any, tmp_path: Path
) -> None:
    config = received(tmp_path, verl={"engine": engine})
    assert at(config, f"actor_rollout_ref.actor.optim.{key}") == value


def prefixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def test_the_documented_table_is_the_table() -> None:
    for row in TABLE:
        assert f"| `{row.ours}` |" in PAGE, row.ours
        for key in row.verl:
            assert f"`{key}`" in PAGE, key
    rows = [line.split(" | ") for line in PAGE.splitlines()]
    for key, why in keys.WITHOUT_EFFECT.items():
        assert any(f"`{key}`" in row[0] and row[1] == f"{why} |" for row in rows if len(row) == 2), key
