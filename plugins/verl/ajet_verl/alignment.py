"""The job in verl's words: one table, which `--dry-run` prints the result of and the run hands to verl.

verl's own defaults, then ours (`DEFAULTS`), then those of a platform that verl knows by plugin, then the job's keys
(`TABLE`), then the user's explicit ``backbone.verl.*`` keys; last what AgentJet stands on (`FIXED`), which cannot be set.
"""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.types import ConfigError
from ajet_verl import keys

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet.job.config import JobConfig
    from ajet.job.prepare import Job
    from ajet_verl.settings import VerlSettings

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
ONLY_DP = (
    f"{ACTOR}.fsdp_config.seed",
    f"{ACTOR}.optim.override_optimizer_config",
    f"{ACTOR}.optim.lr_scheduler_type",
    f"{ACTOR}.optim.min_lr_ratio",
    f"{ACTOR}.grad_clip",
)
PLATFORMS = "ajet_verl.platforms"
RUN = "<run folder>"
"""Stands for the run folder where there is none yet."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """A key of the job, what verl calls it, and its value there (of several keys: a tuple, if they differ)."""

    ours: str
    verl: tuple[str, ...]
    value: Callable[[JobConfig], Any]
    note: str = ""
    only: bool = False
    """Our side reads the job's key too, so that another value in ``backbone.verl`` would mean two things."""


TABLE = (
    Aligned("train.steps", ("trainer.total_training_steps",), lambda c: c.train.steps, only=True),
    Aligned("train.batch_size", ("data.train_batch_size",), lambda c: c.train.batch_size, only=True),
    Aligned("rollout.group_size", (f"{ROLLOUT}.n",), lambda c: c.rollout.group_size, only=True),
    Aligned(
        "train.mini_batches",
        (f"{ACTOR}.ppo_mini_batch_size", "trainer.v1.separate_async.parameter_sync_step"),
        lambda c: (max(c.train.batch_size // c.train.mini_batches, 1), c.train.mini_batches),
        "rows are laid out so that there are so many optimizer steps; in separate_async each samples its own share",
        only=True,
    ),
    Aligned("train.epochs", (f"{ACTOR}.ppo_epochs",), lambda c: c.train.epochs),
    Aligned("train.learning_rate", (f"{ACTOR}.optim.lr",), lambda c: c.train.learning_rate),
    Aligned(
        "train.warmup_steps",
        (f"{ACTOR}.optim.lr_warmup_steps",),
        lambda c: c.train.warmup_steps,
        "verl's first step has the rate 0, and its second that of our first",
    ),
    Aligned(
        "train.schedule",
        (f"{ACTOR}.optim.lr_scheduler_type",),
        lambda c: c.train.schedule,
        "constant or cosine, with backbone.verl.engine dp only; verl's is one step behind ours",
    ),
    Aligned(
        "train.final_share",
        (f"{ACTOR}.optim.min_lr_ratio",),
        lambda c: 0.0 if c.train.schedule == "constant" else c.train.last_share,
        "with backbone.verl.engine dp only",
    ),
    Aligned("train.weight_decay", (f"{ACTOR}.optim.weight_decay",), lambda c: c.train.weight_decay),
    Aligned(
        "train.adam_epsilon",
        (f"{ACTOR}.optim.override_optimizer_config",),
        lambda c: {"eps": c.train.adam_epsilon},
        "with backbone.verl.engine dp only",
    ),
    Aligned(
        "train.max_grad_norm",
        (f"{ACTOR}.optim.clip_grad", f"{ACTOR}.grad_clip"),
        lambda c: c.train.max_grad_norm,
    ),
    Aligned(
        "train.kl",
        (f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef"),
        lambda c: (c.train.kl > 0, c.train.kl),
        "makes verl compute the reference's logprobs; the penalty is a term of our loss",
        only=True,
    ),
    Aligned(
        "train.max_staleness",
        ("trainer.v1.sampler.max_off_policy_threshold",),
        lambda c: None if c.train.max_staleness is None else c.train.max_staleness + 1,
        "verl counts the versions that a group spans, the trained one too",
    ),
    Aligned("train.save_every", ("trainer.save_freq",), lambda c: c.train.save_every),
    Aligned(
        "eval.every",
        ("trainer.test_freq",),
        lambda c: (c.eval.every or max(c.train.steps, 1)) if c.task and c.task.validation else -1,
    ),
    Aligned(
        "rollout.sampling.temperature",
        (f"{ROLLOUT}.temperature", f"{ROLLOUT}.logprobs_mode"),
        lambda c: (
            c.rollout.sampling.temperature,
            "raw_logprobs" if c.rollout.sampling.temperature == 1 else "processed_logprobs",
        ),
        "raw ones are before temperature, processed ones after temperature and truncation",
        only=True,
    ),
    Aligned(
        "run.seed",
        ("data.seed", f"{ACTOR}.data_loader_seed", f"{ACTOR}.fsdp_config.seed", f"{ROLLOUT}.seed"),
        lambda c: c.run.seed,
    ),
)
"""Keys that are the same whatever the model and the run folder; `model`, `run.dir` and `mode` are in `_placed`."""

OURS: Mapping[str, str] = {
    "task.reader": "tasks are read where `ajet run` is; verl's data loader counts places of our plan",
    "task.validation": "episodes of our own plan, at verl's times",
    "workflow": "run by our episode runners",
    "judge": "run by the conductor, where groups meet",
    "targets.NAME.agents": "by capture, in the episode runners",
    "targets.NAME.frozen_model": "answers its target's calls, which are masked",
    "rollout.concurrency": "over all runners together",
    "rollout.timeout": "by the episode runners",
    "rollout.judge_timeout": "by the conductor",
    "rollout.retries": "by the episode runners, and on another one when a runner dies",
    "rollout.stall_warning": "by the episode runners",
    "rollout.loop_timeout": "by the episode runners: one whose loop stays blocked is ended and started anew",
    "rollout.strict": "by capture, in the episode runners",
    "rollout.missed": "by capture, in the episode runners",
    "rollout.gateway": "on the runner's node",
    "rollout.threads": "by capture, in the episode runners",
    "rollout.workdir": "the same folder on every node",
    "rollout.merge": "by the tracker, in the episode runners",
    "rollout.sampling": "sent with every request",
    "train.algorithm": "advantages and loss are AgentJet's; verl's worker computes logprobs and gradients",
    "train.targets": "tokens of other targets are masked",
    "train.filters": "by the tracker's timelines, before rows are made",
    "train.max_timelines": "by the tracker's timelines, before rows are made",
    "train.entropy": "in our loss",
    "train.correction": "in our loss",
    "train.correction_cap": "in our loss",
    "train.asynchronous": "chooses backbone.verl.mode colocate_async",
    "train.keep_last": "checkpoints are kept by the run folder's writer",
    "train.keep_best": "checkpoints are kept by the run folder's writer",
    "eval.engine": "by `ajet eval`; a run's own validation is sampled by verl's engine",
    "eval.episodes": "of our own plan",
    "eval.greedy": "of our own plan",
    "eval.sampling": "sent with every request",
    "backbone": "chooses verl; `mode` is `trainer.v1.trainer_mode`, `engine` is `model_engine`",
    "run.loggers": "in the process of `ajet run`",
    "run.services": "started beside `ajet run`; `ray` is the cluster to join",
    "services": "started beside `ajet run`",
}
"""Keys, or beginnings of keys, that AgentJet honours itself, and where."""

REFUSED: Mapping[str, str] = {
    "train.reference": "verl's reference model is the trained one as it was at first",
    "train.dynamic_sampling": "not with verl's batches",
    "rollout.oversample": "not with verl's batches",
    "run.deterministic": "vLLM's batches depend on the clock",
    "targets.NAME.lora": "not run with verl yet; its own keys (actor_rollout_ref.model.lora_rank) can be set",
}
"""Keys that are errors with this backbone when they are set, and why."""

DEFAULTS: Mapping[str, Any] = {
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    f"{ACTOR}.strategy": "fsdp2",
    f"{ACTOR}.fsdp_config.strategy": "fsdp2",
    f"{ACTOR}.use_dynamic_bsz": True,
    "trainer.logger": [],
    "trainer.project_name": "ajet",
}
"""What we would recommend instead of verl's own defaults. Changed by the user's keys."""

FIXED: Mapping[str, Any] = {
    f"{ROLLOUT}.agent.agent_loop_manager_class": "ajet_verl.manager.EpisodeManager",
    f"{ROLLOUT}.calculate_log_probs": True,
    f"{ACTOR}.shuffle": False,
    f"{ACTOR}.entropy_coeff": 0,
    "algorithm.adv_estimator": "grpo",  # not used; others have a critic
    "algorithm.use_kl_in_reward": False,
    "critic.enable": False,
    "data.custom_cls.path": "pkg://ajet_verl.dataset",
    "data.custom_cls.name": "TaskDataset",
    "data.train_files": "train",
    "data.val_files": "validation",
    "data.dataloader_num_workers": 0,
    "data.shuffle": False,
    "data.validation_shuffle": False,
    "data.ajet": "${ajet}",
    "reward.num_workers": 0,  # judges reward
    "trainer.use_v1": True,
    "trainer.total_epochs": 1,
}
"""What AgentJet stands on. An explicit key here is an error."""


PLACED: Mapping[str, str] = {
    "actor_rollout_ref.model.path": "model",
    "trainer.v1.trainer_mode": "backbone.verl.mode",
    "trainer.default_local_dir": "run.dir",
    "trainer.val_before_train": "task.validation",
    "trainer.val_only": "train.steps",
    "trainer.resume_mode": "--resume",
    "trainer.resume_from_path": "--resume",
}
"""Keys of verl that depend on more than one key of ours, and what to set instead."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a configuration cannot know before the run: the model's folder, the run folder, what to resume from."""

    model: str
    run_dir: str = RUN
    resume_from: str | None = None
    """A folder ``global_step_N`` that verl wrote."""
    ajet: Mapping[str, Any] | None = None
    """The node `ajet`, which our classes in verl's processes read."""


def compose(job: Job, settings: VerlSettings, place: Place) -> DictConfig:
    """The configuration that verl receives. Raises ConfigError for what cannot be said in it."""
    from omegaconf import OmegaConf, open_dict

    config = copy.deepcopy(verls_own(settings.engine))
    tree = OmegaConf.to_container(config, resolve=False)
    assert isinstance(tree, dict)
    keys.check_known(settings.explicit, tree)
    explicit = {
        keys.without_plus(key): _number(value, OmegaConf.select(config, key))
        for key, value in keys.leaves(settings.explicit)
    }
    _refuse_ours(explicit)
    _check(job.config, settings)
    with open_dict(config):
        for values in (
            DEFAULTS,
            _of_machine(),
            _of_platform(),
            _aligned(job.config, settings),
            _placed(job, settings, place),
            explicit,
            FIXED,
        ):
            for key, value in values.items():
                OmegaConf.update(config, key, value, force_add=True)
        config.ajet = dict(place.ajet or {})
    return config


def _number(value: Any, original: Any) -> Any:
    """A number that YAML takes for a text, as 1e-6 is without a point, where verl has a number."""
    if isinstance(value, str) and isinstance(original, int | float):
        try:
            return float(value)
        except ValueError:
            return value
    return value


@functools.cache
def verls_own(engine: str) -> DictConfig:
    """verl's configuration as it is without us. Raises ConfigError if verl is not installed."""
    folder = keys.folder()
    from hydra import compose as composed
    from hydra import initialize_config_dir

    with initialize_config_dir(str(folder), version_base=None):
        return composed("ppo_trainer", [f"model_engine={engine}"])


def _aligned(config: JobConfig, settings: VerlSettings) -> dict[str, Any]:
    """The table's values for a job."""
    found: dict[str, Any] = {}
    for row in TABLE:
        value = row.value(config)
        values = value if isinstance(value, tuple) else (value,) * len(row.verl)
        found |= dict(zip(row.verl, values, strict=True))
    if settings.engine != "dp":
        for key in [key for key in found if key in ONLY_DP]:
            del found[key]
    return found


def _placed(job: Job, settings: VerlSettings, place: Place) -> dict[str, Any]:
    """What depends on the model, on the run folder and on what is resumed."""
    validates = bool(job.validation)
    return {
        "actor_rollout_ref.model.path": place.model,
        "trainer.v1.trainer_mode": mode_of(job.config, settings),
        "trainer.default_local_dir": f"{place.run_dir}/checkpoints/.verl",
        "trainer.experiment_name": Path(place.run_dir).name,
        "trainer.val_before_train": validates and place.resume_from is None,
        "trainer.val_only": job.config.train.steps == 0,
        "trainer.resume_mode": "resume_path" if place.resume_from else "disable",
        "trainer.resume_from_path": place.resume_from,
    }


def mode_of(config: JobConfig, settings: VerlSettings) -> str:
    """verl's trainer mode for a job. Raises ConfigError if two keys say different things."""
    if settings.mode == "sync" and config.train.asynchronous:
        raise ConfigError("backbone.verl.mode: sync contradicts train.asynchronous; remove one of them.")
    return settings.mode or ("colocate_async" if config.train.asynchronous else "sync")


def _of_machine() -> dict[str, Any]:
    """verl would take every node to have 8 GPUs."""
    if "VERL_PLATFORM" in os.environ:
        return {}
    import torch

    count = torch.cuda.device_count()
    return {"trainer.n_gpus_per_node": count} if count else {}


def _of_platform() -> Mapping[str, Any]:
    """Values that a platform of verl brings which is known by plugin (VERL_PLATFORM): the mapping that an entry
    point of group `PLATFORMS` and its name points to."""
    name = os.environ.get("VERL_PLATFORM", "")
    for entry in importlib.metadata.entry_points(group=PLATFORMS, name=name):
        values: Mapping[str, Any] = entry.load()
        return values
    return {}


def _refuse_ours(explicit: Mapping[str, Any]) -> None:
    """Raise ConfigError for explicit keys of verl that AgentJet stands on, or reads in its own place."""
    for key in explicit:
        if fixed := next((f for f in FIXED if key == f or key.startswith(f"{f}.")), None):
            raise ConfigError(
                f"backbone.verl.{key}: is always {FIXED[fixed]!r} with AgentJet; remove the key."
            )
        row = next((row for row in TABLE if row.only and key in row.verl), None)
        if row:
            raise ConfigError(f"backbone.verl.{key}: AgentJet counts on it too; set {row.ours} instead.")
        if key in PLACED:
            raise ConfigError(f"backbone.verl.{key}: follows from {PLACED[key]}; set that instead.")


def _check(config: JobConfig, settings: VerlSettings) -> None:
    """Raise ConfigError for what verl cannot do, by the key's name."""
    train = config.train
    if mode_of(config, settings) == "separate_async" and train.batch_size % train.mini_batches:
        raise ConfigError(
            f"train.mini_batches: separate_async samples each mini-batch by itself, but {train.batch_size} tasks are no multiple "
            f"of {train.mini_batches}. Choose a divisor of train.batch_size."
        )
    if settings.engine != "dp" and train.adam_epsilon != type(train).model_fields["adam_epsilon"].default:
        raise ConfigError(
            f"train.adam_epsilon: goes to verl's engine dp only; set it for {settings.engine} by "
            f"backbone.verl.{ACTOR}.optim.override_optimizer_config."
        )
    if train.schedule == "linear" and settings.engine == "dp":
        raise ConfigError("train.schedule: verl's engine dp has no linear one; set cosine or constant.")
    if train.schedule != "constant" and settings.engine != "dp":
        raise ConfigError(
            f"train.schedule: goes to verl's engine dp only; set it for {settings.engine} by that engine's keys below "
            f"backbone.verl.{ACTOR}.optim, such as lr_decay_style."
        )
    sampling = config.rollout.sampling
    if sampling.temperature != 1 and (sampling.top_p < 1 or sampling.top_k):
        raise ConfigError(
            "rollout.sampling: verl's logprobs at another temperature than 1 are those of the truncated distribution. Set "
            "temperature: 1, or remove top_p and top_k."
        )


def describe(job: Job, settings: VerlSettings) -> str:
    """The configuration that verl receives, as YAML. In its comments: what is not verl's default, and why."""

    from ajet.cli.table import table

    config = compose(job, settings, Place(job.model))
    changed = changes(config, verls_own(settings.engine))
    why = {key: row.ours for row in TABLE for key in row.verl}
    why |= {**PLACED, **dict.fromkeys(FIXED, "AgentJet")}
    why |= dict.fromkeys(DEFAULTS, "AgentJet's default") | dict.fromkeys(_of_platform(), "VERL_PLATFORM")
    why |= {keys.without_plus(key): f"backbone.verl.{key}" for key, _ in keys.leaves(settings.explicit)}
    rows = [
        (key, str(value), next((by for k, by in why.items() if key == k or key.startswith(f"{k}.")), ""))
        for key, value in changed.items()
        if key != "ajet"
    ]
    return (
        "# What verl receives. Not verl's defaults:\n"
        + table([("KEY", "VALUE", "BY"), *rows], indent="#   ")
        + "\n"
        + received(config)
    ).rstrip()


def received(config: DictConfig) -> str:
    """A composed configuration as YAML, resolved, without the node `ajet`: what `--dry-run` prints and the run folder
    keeps."""
    import yaml
    from omegaconf import OmegaConf

    tree = OmegaConf.to_container(config, resolve=True)
    assert isinstance(tree, dict)
    del tree["ajet"], tree["data"]["ajet"]
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def changes(config: DictConfig, original: DictConfig) -> dict[str, Any]:
    """Dotted keys that another configuration does not have, or with another value."""
    from omegaconf import OmegaConf

    def flat(of: DictConfig) -> dict[str, Any]:
        tree = OmegaConf.to_container(of, resolve=False)
        assert isinstance(tree, dict)
        return dict(keys.leaves({str(key): value for key, value in tree.items()}))

    before = flat(original)
    return {key: value for key, value in flat(config).items() if key not in before or before[key] != value}
