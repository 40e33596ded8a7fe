"""Translates a job into verl's configuration: `--dry-run` prints it, and a run passes it to verl.

Later sources override earlier ones: verl's defaults, ours (`DEFAULTS`), those of this machine and of a platform that is
a plugin of verl, the job's keys (`TABLE`), the user's explicit ``backbone.verl.*`` keys, and what AgentJet requires
(`FIXED`), which the user cannot set.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.foreign.platforms import platform_defaults
from ajet.learning.objective import objective
from ajet.types import ConfigError
from ajet.utils.keys import leaves, under
from ajet_verl import keys, lengths, lora, machine, routing, tree_choice
from ajet_verl.engines import ACTOR, ENGINES, EPSILON, FINAL_SHARE, GRAD_CLIP, SCHEDULE, SEED, WORKERS

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet.job.config import JobConfig
    from ajet.job.job import Job
    from ajet_verl.lengths import Architecture
    from ajet_verl.settings import VerlSettings

ROLLOUT = "actor_rollout_ref.rollout"
RUN = "<run folder>"
"""Placeholder for a run folder that does not exist yet."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """A key of the job (``ours``), the keys of verl that it sets, and their value: a tuple if their values differ."""

    ours: str
    verl: tuple[str, ...]
    value: Callable[[JobConfig], Any]
    note: str = ""
    only: bool = False
    """AgentJet reads the job's key too, so a different value in ``backbone.verl`` is an error."""
    in_updates: bool = False
    """The job counts steps, but verl counts calls of its workers, of which separate_async makes ``train.mini_batches``
    a step."""


TABLE = (
    Aligned("train.steps", ("trainer.total_training_steps",), lambda c: c.train.steps, only=True),
    Aligned("train.batch_size", ("data.train_batch_size",), lambda c: c.train.batch_size, only=True),
    Aligned("rollout.group_size", (f"{ROLLOUT}.n",), lambda c: c.rollout.group_size, only=True),
    Aligned(
        "train.mini_batches",
        (f"{ACTOR}.ppo_mini_batch_size", "trainer.v1.separate_async.parameter_sync_step"),
        lambda c: (max(c.train.batch_size // c.train.mini_batches, 1), c.train.mini_batches),
        "rows are arranged to give this many optimizer steps; in separate_async each step samples its own share",
        only=True,
    ),
    Aligned("train.epochs", (f"{ACTOR}.ppo_epochs",), lambda c: c.train.epochs, only=True),
    Aligned("train.learning_rate", (f"{ACTOR}.optim.lr",), lambda c: c.train.learning_rate),
    Aligned(
        "train.warmup_steps",
        (f"{ACTOR}.optim.lr_warmup_steps",),
        lambda c: c.train.warmup_steps,
        "verl's first step has the rate 0, its second step the rate of the local backbone's first; times "
        "`train.mini_batches` in separate_async, where verl counts each mini-batch",
        in_updates=True,
    ),
    Aligned(
        "train.schedule",
        (SCHEDULE,),
        lambda c: c.train.schedule,
        "constant or cosine, only with backbone.verl.engine dp; verl's is one step behind the local backbone's",
    ),
    Aligned(
        "train.final_share",
        (FINAL_SHARE,),
        lambda c: 0.0 if c.train.schedule == "constant" else c.train.last_share,
        "only with backbone.verl.engine dp",
    ),
    Aligned("train.weight_decay", (f"{ACTOR}.optim.weight_decay",), lambda c: c.train.weight_decay),
    Aligned(
        "train.adam_epsilon",
        (EPSILON,),
        lambda c: {"eps": c.train.adam_epsilon},
        "only with backbone.verl.engine dp",
    ),
    Aligned(
        "train.max_grad_norm",
        (f"{ACTOR}.optim.clip_grad", GRAD_CLIP),
        lambda c: c.train.max_grad_norm,
    ),
    Aligned(
        "train.kl",
        (f"{ACTOR}.kl_loss_coef",),
        lambda c: c.train.kl,
        "for verl's records; the penalty is a term of AgentJet's loss",
        only=True,
    ),
    Aligned(
        "train.max_staleness",
        ("trainer.v1.sampler.max_off_policy_threshold",),
        lambda c: None if c.train.max_staleness is None else c.train.max_staleness + 1,
        "verl counts the versions that a group spans, including the trained one",
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
        "raw logprobs are before temperature, processed ones after temperature and truncation",
        only=True,
    ),
    Aligned(
        "run.seed",
        ("data.seed", f"{ACTOR}.data_loader_seed", SEED, f"{ROLLOUT}.seed"),
        lambda c: c.run.seed,
    ),
)
"""Keys that depend neither on the model nor on the run folder; `_placed` has those that do, and the mode."""

OURS: Mapping[str, str] = {
    "task.reader": "tasks are read on the node of `ajet run`; verl's data loader counts positions in AgentJet's plan",
    "task.validation": "episodes of AgentJet's plan, when verl validates",
    "workflow": "run by the episode runners",
    "judge": "opened in each episode runner, which runs whole groups",
    "targets.NAME.agents": "by capture, in the episode runners",
    "targets.NAME.lora": "one adapter each, which verl's workers train and vLLM adds; only with the engine dp, and not with "
    "backbone.verl.mode separate_async",
    "targets.NAME.frozen_model": "answers its target's calls, which are masked",
    "prompts": "by the episode runners",
    "models": "by `ajet eval --models`",
    "rollout.concurrency": "over all runners together",
    "rollout.oversample": "by the conductor, in mode `sync`; the other modes do not wait for slow groups",
    "rollout.timeout": "by the episode runners",
    "rollout.judge_timeout": "by the episode runners",
    "rollout.retries": "by the episode runners, and by another runner if one dies",
    "rollout.stall_warning": "by the episode runners",
    "rollout.loop_timeout": "by the episode runners: a runner whose loop stays blocked is ended and restarted",
    "rollout.strict": "by capture, in the episode runners",
    "rollout.missed": "by capture, in the episode runners",
    "rollout.gateway": "on the runner's node",
    "rollout.threads": "by capture, in the episode runners",
    "rollout.workdir": "the same folder on every node",
    "rollout.merge": "by the tracker, in the episode runners",
    "rollout.context_length": "vLLM's max_model_len, unless `actor_rollout_ref.rollout.max_model_len` is set; also by capture, in the "
    "episode runners",
    "rollout.chat_template": "by the episode runners, which render all chats",
    "rollout.call_example": "by the episode runners, which read all answers",
    "rollout.tool_calls": "by the episode runners, which read all answers",
    "rollout.images": "by capture, in the episode runners",
    "rollout.sampling": "sent with every request; without a seed, which makes vLLM's sampler slow, unless "
    "`actor_rollout_ref.rollout.full_determinism` is set in mode `sync`",
    "train.algorithm": "advantages and loss are AgentJet's; verl's worker computes logprobs and gradients",
    "train.reference": "the reference model of verl's workers is this one instead of the initial model",
    "train.targets": "tokens of other targets are masked",
    "train.filters": "by the tracker's timelines, before rows are made",
    "train.max_timelines": "by the tracker's timelines, before rows are made",
    "train.dynamic_sampling": "by the conductor, which starts further groups, as soon as one is needed",
    "train.entropy": "in AgentJet's loss",
    "train.correction": "in AgentJet's loss",
    "train.correction_cap": "in AgentJet's loss",
    "train.asynchronous": "chooses backbone.verl.mode colocate_async",
    "train.keep_last": "checkpoints are kept by the run folder's writer",
    "train.keep_best": "checkpoints are kept by the run folder's writer",
    "eval.engine": "by `ajet eval`; a run's own validation is sampled by verl's engine",
    "eval.episodes": "in AgentJet's plan",
    "eval.greedy": "in AgentJet's plan",
    "eval.repeats": "in AgentJet's plan",
    "eval.sampling": "sent with every request",
    "backbone": "chooses verl; `mode` is `trainer.v1.trainer_mode`, `engine` is `model_engine`",
    "run.restarts": "by `ajet run`, which starts verl again from the last checkpoint",
    "run.loggers": "in the process of `ajet run`",
    "run.services": "started beside `ajet run`; `ray` is the cluster to join",
    "plugins": "for commands of plugins, such as `ajet online`",
    "services": "started beside `ajet run`",
}
"""Keys, or prefixes of keys, that AgentJet honours itself, and where."""

REFUSED: Mapping[str, str] = {
    "run.deterministic": "vLLM's batches depend on time",
    "task.selector": "verl's data loader asks for tasks before the groups before them have ended",
}
"""Keys that are errors with this backbone, and why."""

DEFAULTS: Mapping[str, Any] = {
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    f"{ACTOR}.use_dynamic_bsz": True,
    "trainer.logger": [],
    "trainer.project_name": "ajet",
}
"""Our defaults instead of verl's, for every engine; `ENGINES` has those of one. The user's keys override them."""

FIXED: Mapping[str, Any] = {
    f"{ROLLOUT}.agent.agent_loop_manager_class": "ajet_verl.manager.EpisodeManager",
    f"{ROLLOUT}.calculate_log_probs": True,
    f"{ACTOR}.shuffle": False,
    f"{ACTOR}.entropy_coeff": 0,
    "algorithm.adv_estimator": "grpo",  # unused; other estimators need a critic
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
    "reward.num_workers": 0,  # judges compute rewards
    "trainer.use_v1": True,
    "trainer.total_epochs": 1,
}
"""What AgentJet requires. Setting one of these keys is an error."""


PLACED: Mapping[str, str] = {
    "actor_rollout_ref.model.path": "model",
    f"{ACTOR}.use_kl_loss": "train.kl and train.algorithm",
    "trainer.v1.trainer_mode": "backbone.verl.mode",
    "trainer.default_local_dir": "run.dir",
    "trainer.val_before_train": "task.validation",
    "trainer.val_only": "train.steps",
    "trainer.resume_mode": "--resume",
    "trainer.resume_from_path": "--resume",
}
"""Keys of verl that `_placed` computes, and what to set instead."""


@dataclass(frozen=True, slots=True)
class RunPaths:
    """What is only known when a run starts: the model's folder, the run folder, and what to resume from."""

    model: str
    run_dir: str = RUN
    resume_from: str | None = None
    """Verl's folder ``global_step_N`` of a checkpoint."""
    ajet: Mapping[str, Any] | None = None
    """The configuration's node ``ajet``, which our classes in verl's processes read."""
    model_shape: Architecture | None = None
    """The model's architecture; None only for a recipe that is not built, in a dry run."""
    adapters: str | None = None
    """A folder with adapters to begin with."""


def compose(job: Job, settings: VerlSettings, paths: RunPaths) -> DictConfig:
    """The configuration that verl receives. Raises ConfigError for what verl cannot do, and for unknown keys."""
    return compose_with_lengths(job, settings, paths)[0]


def compose_with_lengths(
    job: Job, settings: VerlSettings, paths: RunPaths
) -> tuple[DictConfig, list[lengths.Length]]:
    """`compose`, and the lengths that it has derived or checked."""
    from omegaconf import OmegaConf, open_dict

    config = copy.deepcopy(verl_defaults(settings.engine))
    tree = OmegaConf.to_container(config, resolve=False)
    assert isinstance(tree, dict)
    keys.check_known(settings.explicit, tree)
    explicit = {
        keys.without_plus(key): _number(value, OmegaConf.select(config, key))
        for key, value in leaves(settings.explicit)
    }
    _refuse_reserved(explicit)
    _check(job.config, settings)
    with open_dict(config):
        for values in (
            DEFAULTS,
            ENGINES[settings.engine].defaults,
            _machine_defaults(),
            platform_defaults("verl"),
            _aligned(job.config, settings),
            _placed(job, settings, paths),
            lora.placed(job, paths.adapters),
            explicit,
            FIXED,
        ):
            for key, value in values.items():
                OmegaConf.update(config, key, value, force_add=True)
        adapters = lora.of(config.actor_rollout_ref.model)
        if settings.engine == "dp" and (adapters or settings.trees is not False):
            config.actor_rollout_ref.model.external_lib = _with_ours(
                config.actor_rollout_ref.model.external_lib
            )
        found = lengths.derived(config, job.config, explicit, paths.model_shape)
        for length in found:
            if length.key:
                OmegaConf.update(config, length.key, length.value, force_add=True)
        config.ajet = dict(paths.ajet or {})
    row = lengths.check_rows(config, settings)
    cache = lengths.check_cache(config, paths.model_shape, machine.gpu_memory())
    tree_choice.check(config, settings)
    lora.check(config)
    routing.check(config, settings.engine)
    return config, [*found, *(length for length in (row, cache) if length)]


def _number(value: Any, original: Any) -> Any:
    """The value, as a number where verl has one: YAML reads a number such as 1e-6, without a point, as text."""
    if isinstance(value, str) and isinstance(original, int | float):
        try:
            return float(value)
        except ValueError:
            return value
    return value


@functools.cache
def verl_defaults(engine: str) -> DictConfig:
    """verl's own default configuration. Raises ConfigError if verl is not installed."""
    folder = keys.folder()
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    with initialize_config_dir(str(folder), version_base=None):
        return hydra_compose("ppo_trainer", [f"model_engine={engine}"])


def _aligned(config: JobConfig, settings: VerlSettings) -> dict[str, Any]:
    """The values of `TABLE` for a job."""
    found: dict[str, Any] = {}
    updates = config.train.mini_batches if mode_of(config, settings) == "separate_async" else 1
    for row in TABLE:
        value = row.value(config) * updates if row.in_updates else row.value(config)
        values = value if isinstance(value, tuple) else (value,) * len(row.verl)
        found |= dict(zip(row.verl, values, strict=True))
    engine = ENGINES[settings.engine]
    return {key: value for name, value in found.items() if (key := engine.key(name)) is not None}


def _placed(job: Job, settings: VerlSettings, paths: RunPaths) -> dict[str, Any]:
    """The keys that depend on the model, the mode, the run folder and the checkpoint to resume from."""
    validates = bool(job.validation)
    needs = objective(job.algorithm, job.config.train).needs
    return {
        "actor_rollout_ref.model.path": paths.model,
        f"{ACTOR}.use_kl_loss": "reference" in needs,  # then verl computes the reference's logprobs
        "trainer.v1.trainer_mode": mode_of(job.config, settings),
        "trainer.default_local_dir": f"{paths.run_dir}/checkpoints/.verl",
        "trainer.experiment_name": Path(paths.run_dir).name,
        "trainer.val_before_train": validates and paths.resume_from is None,
        "trainer.val_only": job.config.train.steps == 0,
        "trainer.resume_mode": "resume_path" if paths.resume_from else "disable",
        "trainer.resume_from_path": paths.resume_from,
    }


def _with_ours(external: Any) -> list[str]:
    """The modules that verl imports in its processes: those of the user, and our engine."""
    theirs = [external] if isinstance(external, str) else list(external or ())
    return [*theirs, WORKERS]


def mode_of(config: JobConfig, settings: VerlSettings) -> str:
    """verl's trainer mode for a job. Raises ConfigError if two keys contradict each other."""
    if settings.mode == "sync" and config.train.asynchronous:
        raise ConfigError("backbone.verl.mode: sync contradicts train.asynchronous; remove one of them.")
    return settings.mode or ("colocate_async" if config.train.asynchronous else "sync")


def _machine_defaults() -> dict[str, Any]:
    """The number of GPUs of this machine, for every node; verl's default is 8."""
    count = machine.gpu_count()
    return {"trainer.n_gpus_per_node": count} if count else {}


def _refuse_reserved(explicit: Mapping[str, Any]) -> None:
    """Raise ConfigError for explicit keys of verl that AgentJet requires, computes, reads from the job or does not use."""
    for key in explicit:
        if fixed := next((f for f in FIXED if under(key, f)), None):
            raise ConfigError(
                f"backbone.verl.{key}: is always {FIXED[fixed]!r} with AgentJet; remove the key."
            )
        row = next((row for row in TABLE if row.only and key in row.verl), None)
        if row:
            raise ConfigError(f"backbone.verl.{key}: AgentJet needs this value too; set {row.ours} instead.")
        if key in PLACED:
            raise ConfigError(f"backbone.verl.{key}: follows from {PLACED[key]}; set that instead.")
        if unused := next((prefix for prefix in keys.WITHOUT_EFFECT if under(key, prefix)), None):
            raise ConfigError(
                f"backbone.verl.{key}: cannot be set with AgentJet: {keys.WITHOUT_EFFECT[unused]}."
            )


def _check(config: JobConfig, settings: VerlSettings) -> None:
    """Raise ConfigError, which names the key, for what verl cannot do."""
    train = config.train
    if mode_of(config, settings) == "separate_async" and train.batch_size % train.mini_batches:
        raise ConfigError(
            f"train.mini_batches: separate_async samples each mini-batch separately, but batch_size ({train.batch_size}) is not "
            f"a multiple of {train.mini_batches}. Choose a divisor of train.batch_size."
        )
    if settings.engine != "dp" and train.adam_epsilon != type(train).model_fields["adam_epsilon"].default:
        raise ConfigError(
            f"train.adam_epsilon: only verl's engine dp takes it. For {settings.engine}, set "
            f"backbone.verl.{ACTOR}.optim.override_optimizer_config."
        )
    if train.schedule == "linear" and settings.engine == "dp":
        raise ConfigError("train.schedule: verl's engine dp has no linear schedule; set cosine or constant.")
    if train.schedule != "constant" and settings.engine != "dp":
        raise ConfigError(
            f"train.schedule: only verl's engine dp takes it. For {settings.engine}, set that engine's keys below "
            f"backbone.verl.{ACTOR}.optim, such as lr_decay_style."
        )
    if config.rollout.oversample > 1 and (mode := mode_of(config, settings)) != "sync":
        raise ConfigError(
            f"rollout.oversample: backbone.verl.mode {mode} does not wait for slow groups, so it starts no others instead. "
            "Remove the key."
        )
    sampling = config.rollout.sampling
    if sampling.temperature != 1 and (sampling.top_p < 1 or sampling.top_k):
        raise ConfigError(
            "rollout.sampling: at temperatures other than 1, verl's logprobs are those after top_p and top_k. Set "
            "temperature: 1, or remove top_p and top_k."
        )


def describe(job: Job, settings: VerlSettings) -> str:
    """The configuration that verl receives, as YAML. Comments list what differs from verl's defaults, and why."""
    from ajet.job.models import find_recipe
    from ajet.utils.terminal import table

    recipe = find_recipe(job.model)
    shape = None if recipe else lengths.architecture(job.model, settings.trusts_model)
    paths = RunPaths(lora.base(job.model), adapters=lora.folder(job.model, job), model_shape=shape)
    config, found = compose_with_lengths(job, settings, paths)
    changed = changes(config, verl_defaults(settings.engine))
    engine = ENGINES[settings.engine]
    why = {**PLACED, **dict.fromkeys(FIXED, "AgentJet")}
    why |= {key: row.ours for row in TABLE for name in row.verl if (key := engine.key(name))}
    why |= dict.fromkeys({**DEFAULTS, **engine.defaults}, "AgentJet's default") | dict.fromkeys(
        platform_defaults("verl"), "VERL_PLATFORM"
    )
    why |= {"actor_rollout_ref.model.external_lib": "AgentJet"}
    why |= dict.fromkeys(lora.placed(job, None), "targets.NAME.lora")
    why |= {length.key: length.why for length in found if length.key}
    why |= {keys.without_plus(key): f"backbone.verl.{key}" for key, _ in leaves(settings.explicit)}
    rows = [
        (
            key,
            str(value),
            next((source for k, source in why.items() if key == k or key.startswith(f"{k}.")), ""),
        )
        for key, value in changed.items()
        if key != "ajet"
    ]
    tokens = [(length.name, f"{length.value:,}", length.why) for length in found]
    later = f"# More lengths follow from the model, once the recipe {job.model} is built.\n" if recipe else ""
    return (
        "# Lengths in tokens:\n"
        + table([("LENGTH", "VALUE", "BY"), *tokens], indent="#   ")
        + f"\n{later}"
        + "# What verl receives. Not verl's defaults:\n"
        + table([("KEY", "VALUE", "BY"), *rows], indent="#   ")
        + "\n"
        + received(config)
    ).rstrip()


def received(config: DictConfig) -> str:
    """A composed configuration as YAML, resolved, without the node ``ajet``. `--dry-run` prints it, and the run folder
    keeps it."""
    import yaml
    from omegaconf import OmegaConf

    tree = OmegaConf.to_container(config, resolve=True)
    assert isinstance(tree, dict)
    del tree["ajet"], tree["data"]["ajet"]
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def changes(config: DictConfig, original: DictConfig) -> dict[str, Any]:
    """Dotted keys and values of ``config`` that ``original`` does not have, or has with another value."""
    from omegaconf import OmegaConf

    def flat(nested: DictConfig) -> dict[str, Any]:
        tree = OmegaConf.to_container(nested, resolve=False)
        assert isinstance(tree, dict)
        return dict(leaves({str(key): value for key, value in tree.items()}))

    before = flat(original)
    return {key: value for key, value in flat(config).items() if key not in before or before[key] != value}
