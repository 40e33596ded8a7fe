"""Translates a job into verl's configuration: `--dry-run` prints it, and a run passes it to verl.

Later sources override earlier ones: verl's defaults, ours (`DEFAULTS`), those of this machine and of a platform that is
a plugin of verl, the job's keys (`TABLE`), the user's explicit ``backbone.verl.*`` keys, and what AgentJet requires
(`FIXED`), which the user cannot set.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet import ConfigError
from ajet.learning.objective import objective
from ajet.utils.keys import leaves, under
from ajet_foreign.versions import platform_defaults
from ajet_verl import layout, lengths, lora, scale
from ajet_verl.keys import ACTOR, DEFAULTS, ENGINES, FIXED, PLACED, ROLLOUT, TABLE, WITHOUT_EFFECT, WORKERS
from ajet_verl.settings import VerlSettings, unknown
from ajet_verl.versions import REQUIREMENTS

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet import Job
    from ajet.job.config import JobConfig
    from ajet_verl.lengths import Architecture

RUN = "<run folder>"
"""Placeholder for a run folder that does not exist yet."""


@dataclass(frozen=True, slots=True)
class RunPaths:
    """What is only known when a run starts: the model's folder, the run folder, and what to resume from."""

    model: str
    run_dir: str = RUN
    resume_from: str | None = None
    """Verl's folder ``global_step_N`` of a checkpoint."""
    ajet: Mapping[str, Any] = field(default_factory=dict)
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
) -> tuple[DictConfig, list[lengths.DerivedLength]]:
    """`compose`, and the lengths that it has derived or checked."""
    from omegaconf import OmegaConf, open_dict

    config = copy.deepcopy(verl_defaults(settings.engine))
    tree = OmegaConf.to_container(config, resolve=False)
    assert isinstance(tree, dict)
    _check_known(settings.explicit, tree)
    explicit = {
        _without_plus(key): _number(value, OmegaConf.select(config, key))
        for key, value in leaves(settings.explicit)
    }
    _refuse_reserved(explicit)
    _check(job.config, settings)
    with open_dict(config):
        for values in (
            DEFAULTS,
            ENGINES[settings.engine].defaults,
            {"trainer.n_gpus_per_node": count} if (count := scale.gpu_count()) else {},  # verl's default is 8
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
        derived = lengths.derived(config, job.config, explicit, paths.model_shape)
        for length in derived:
            if length.key:
                OmegaConf.update(config, length.key, length.value, force_add=True)
        config.ajet = dict(paths.ajet)
    row = lengths.check_rows(config, settings)
    cache = lengths.check_cache(config, paths.model_shape, scale.gpu_memory())
    layout.check_trees(config, settings)
    lora.check(config)
    _check_router_replay(config, settings.engine)
    return config, [*derived, *(length for length in (row, cache) if length)]


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
    spec = importlib.util.find_spec("verl")  # without importing it
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        raise ConfigError(f"backbone verl: {REQUIREMENTS.missing()}")
    folder = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    with initialize_config_dir(str(folder), version_base=None):
        return hydra_compose("ppo_trainer", [f"model_engine={engine}"])


def _aligned(config: JobConfig, settings: VerlSettings) -> dict[str, Any]:
    """The values of `TABLE` for a job."""
    by_key: dict[str, Any] = {}
    updates = config.train.mini_batches if mode_of(config, settings) == "separate_async" else 1
    for row in TABLE:
        value = row.value(config) * updates if row.in_updates else row.value(config)
        values = value if isinstance(value, tuple) else (value,) * len(row.verl)
        by_key |= dict(zip(row.verl, values, strict=True))
    engine = ENGINES[settings.engine]
    return {key: value for name, value in by_key.items() if (key := engine.key(name)) is not None}


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
        if unused := next((prefix for prefix in WITHOUT_EFFECT if under(key, prefix)), None):
            raise ConfigError(f"backbone.verl.{key}: cannot be set with AgentJet: {WITHOUT_EFFECT[unused]}.")


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
    _check_gateway(config, settings)
    sampling = config.rollout.sampling
    if sampling.temperature != 1 and (sampling.top_p < 1 or sampling.top_k):
        raise ConfigError(
            "rollout.sampling: at temperatures other than 1, verl's logprobs are those after top_p and top_k. Set "
            "temperature: 1, or remove top_p and top_k."
        )


def _check_gateway(config: JobConfig, settings: VerlSettings) -> None:
    """Raise ConfigError if several runners would have the one address that agents outside know."""
    address = config.rollout.gateway_address
    if settings.runners > 1 and (address.port or address.url):
        raise ConfigError(
            f"rollout.gateway_address: {settings.runners} runners on a node cannot share one gateway. Set backbone.verl.runners: 1, "
            "or let each choose a free port: remove port and url."
        )
    given = dict(leaves(settings.explicit))
    nodes = [int(given.get(key) or 0) for key in ("trainer.nnodes", f"{ROLLOUT}.nnodes")]
    if address.url and max(nodes[0], 1) + nodes[1] > 1:
        raise ConfigError(
            "rollout.gateway_address.url: each node runs episodes, and this address reaches those of one node. Run the job on one "
            "node, or remove url where agents run on the nodes themselves."
        )


def describe(job: Job, settings: VerlSettings) -> str:
    """The configuration that verl receives, as YAML. Comments list what differs from verl's defaults, and why."""
    from ajet import find_recipe
    from ajet.utils.terminal import table

    recipe = find_recipe(job.model)
    shape = None if recipe else lengths.architecture(job.model, settings.trusts_model)
    paths = RunPaths(lora.base(job.model), adapters=lora.folder(job.model, job), model_shape=shape)
    config, derived = compose_with_lengths(job, settings, paths)
    changed = changes(config, verl_defaults(settings.engine))
    engine = ENGINES[settings.engine]
    why = {**PLACED, **dict.fromkeys(FIXED, "AgentJet")}
    why |= {key: row.ours for row in TABLE for name in row.verl if (key := engine.key(name))}
    why |= dict.fromkeys({**DEFAULTS, **engine.defaults}, "AgentJet's default") | dict.fromkeys(
        platform_defaults("verl"), "VERL_PLATFORM"
    )
    why |= {"actor_rollout_ref.model.external_lib": "AgentJet"}
    why |= dict.fromkeys(lora.placed(job, None), "targets.NAME.lora")
    why |= {length.key: length.why for length in derived if length.key}
    why |= {_without_plus(key): f"backbone.verl.{key}" for key, _ in leaves(settings.explicit)}
    rows = [
        (
            key,
            str(value),
            next((source for k, source in why.items() if key == k or key.startswith(f"{k}.")), ""),
        )
        for key, value in changed.items()
        if key != "ajet"
    ]
    tokens = [(length.name, f"{length.value:,}", length.why) for length in derived]
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


def _without_plus(key: str) -> str:
    """The key without the ``+`` before its parts."""
    return ".".join(part.removeprefix("+") for part in key.split("."))


def _check_known(explicit: Mapping[str, Any], config: Mapping[str, Any], prefix: str = "") -> None:
    """Raise ConfigError for a key that verl's configuration does not list. Allowed are keys with a ``+``, as on verl's
    command line, and any keys below an empty mapping."""
    for key, value in explicit.items():
        if key.startswith("+"):
            continue
        if key not in config:
            raise ConfigError(
                f"backbone.verl.{prefix}{key}: {unknown(key, config)}. To add a key that verl does not list, write +{key}."
            )
        inner = config[key]
        if isinstance(value, Mapping) and isinstance(inner, Mapping) and inner:
            _check_known(value, inner, f"{prefix}{key}.")


def router_replay(config: DictConfig) -> str:
    """verl's mode of router replay: ``disabled``, ``R2`` or ``R3``.

    With router replay, an update of a mixture-of-experts model sends tokens to the experts that they were sent to before. Otherwise
    rounding makes the trained model send some tokens to other experts than the sampling one, which changes their logprobs a
    lot (Ma et al., arXiv:2510.11370). R2: the pass for the logprobs before the update records the experts. R3: vLLM records
    them while it samples, and rows carry them.
    """
    actor = config.actor_rollout_ref.actor
    mode: str = (actor.get("megatron") or {}).get("router_replay", {}).get("mode", "disabled")
    return mode


def _check_router_replay(config: DictConfig, engine: str) -> None:
    """Raise ConfigError if vLLM records experts that the engine does not replay, or if R3 has none to replay."""
    records, mode = config.actor_rollout_ref.rollout.enable_rollout_routing_replay, router_replay(config)
    if mode == "R3" and not records:
        raise ConfigError(
            f"backbone.verl.{ACTOR}.{engine}.router_replay.mode: R3 replays the experts that vLLM has recorded; set "
            f"backbone.verl.{ROLLOUT}.enable_rollout_routing_replay: true."
        )
    if records and mode != "R3":
        where = f"set backbone.verl.{ACTOR}.{engine}.router_replay.mode: R3, or remove the key"
        if engine != "megatron":
            where = "only verl's engine megatron does; set backbone.verl.engine, or remove the key"
        raise ConfigError(
            f"backbone.verl.{ROLLOUT}.enable_rollout_routing_replay: nothing would replay these experts: {where}."
        )
