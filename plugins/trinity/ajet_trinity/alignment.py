"""Translates a job into Trinity's configuration: `--dry-run` prints it, and a run passes it to Trinity.

Later sources override earlier ones: the defaults of a platform that is a plugin, the job's keys (`TABLE`), the user's explicit
``backbone.trinity.*`` keys (`ALLOWED`), and what AgentJet requires (`FIXED`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet import ConfigError
from ajet.interfaces.helpers import nearest
from ajet.learning.objective import objective
from ajet.utils.keys import leaves, under
from ajet_foreign.versions import platform_defaults
from ajet_trinity.batches import RowLayout
from ajet_trinity.settings import ALLOWED, FIXED, OPTIMIZER, REMOTE, put
from ajet_trinity.spool import Spool

if TYPE_CHECKING:
    from ajet import Job
    from ajet_trinity.settings import TrinitySettings

RUN = Path("<run folder>")
"""Placeholder for a run folder that does not exist yet."""
LOSS_KEYS = ("algorithm", "kl", "correction", "correction_cap")
"""The keys of the job's section ``train`` on which the loss of a token depends, besides ``entropy``."""
FOLDER = "trinity"
"""The folder of a run folder with the files of its learners."""
MOST_TOKENS = 16384
"""Default of the tokens that a worker computes together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What is only known when a run starts."""

    model: str
    """The model's folder, or what the job calls the model."""
    run_dir: Path = RUN
    context: int | None = None
    """The model's context in tokens; None only for a model that is not here, in a dry run."""
    attempt: str = "<attempt>"
    """Tells this start of Trinity from others: its folder, and its Ray actors."""

    @property
    def spool(self) -> Spool:
        """The files of the run and this learner. An earlier learner whose processes have not ended yet has another folder."""
        return Spool(self.run_dir / FOLDER / self.attempt)


@dataclass(frozen=True, slots=True)
class AlignedKeys:
    """Keys of the job (``ours``), the keys of Trinity that they set, and their values."""

    ours: tuple[str, ...]
    trinity: tuple[str, ...]
    values: Callable[[Job, TrinitySettings, Place], tuple[Any, ...]]


def _loss_arguments(job: Job, settings: TrinitySettings) -> dict[str, Any]:
    written = job.config.train.model_dump(mode="json")
    return {
        "train": {key: written[key] for key in LOSS_KEYS},
        "ranks": settings.ranks,
        "fresh": is_fresh(job),
    }


def is_fresh(job: Job) -> bool:
    """Whether an update is a single optimizer step, so that the logprobs of its pass are those before the update."""
    train = job.config.train
    return min(train.mini_batches, train.batch_size) * train.epochs == 1


def needs_reference(job: Job) -> bool:
    """Whether the loss compares with the initial weights."""
    return "reference" in objective(job.algorithm, job.config.train).needs


def needs_before(job: Job) -> bool:
    """Whether Trinity must compute logprobs before the update."""
    return "before" in objective(job.algorithm, job.config.train).needs and not is_fresh(job)


def layout_of(job: Job, settings: TrinitySettings) -> RowLayout:
    """How the rows of the job's mini-batches are cut into chunks."""
    train = job.config.train
    tasks = -(-train.batch_size // min(train.mini_batches, train.batch_size))
    return RowLayout.of(tasks * job.config.rollout.group_size, settings.ranks)


TABLE = (
    AlignedKeys(("model",), ("model.model_path",), lambda job, settings, place: (place.model,)),
    # The model's context where the job sets none; workers compute rows of up to so many tokens together.
    AlignedKeys(
        ("rollout.context_length",),
        ("model.max_model_len", "trainer.max_token_len_per_gpu"),
        lambda job, settings, place: (
            (place.context, max(place.context, MOST_TOKENS)) if place.context else (None, MOST_TOKENS)
        ),
    ),
    AlignedKeys(
        ("rollout.sampling.temperature",),
        ("model.temperature",),
        lambda job, settings, place: (job.config.rollout.sampling.temperature,),
    ),
    # For Trinity's records.
    AlignedKeys(
        ("rollout.group_size",),
        ("algorithm.repeat_times",),
        lambda job, settings, place: (job.config.rollout.group_size,),
    ),
    # Trinity's train_batch_size are the rows of a chunk; a mini-batch has as many chunks as its timelines need.
    AlignedKeys(
        ("train.batch_size", "train.mini_batches"),
        ("buffer.batch_size", "buffer.train_batch_size"),
        lambda job, settings, place: (job.config.train.batch_size, layout_of(job, settings).size),
    ),
    AlignedKeys(
        ("train.algorithm", "train.kl", "train.correction", "train.correction_cap"),
        ("algorithm.algorithm_type", "algorithm.policy_loss_fn", "algorithm.policy_loss_fn_args"),
        lambda job, settings, place: (
            f"{REMOTE}.algorithm.{'GivenWithReference' if needs_reference(job) else 'Given'}",
            f"{REMOTE}.loss.{'RowLossWithReference' if needs_reference(job) else 'RowLoss'}",
            _loss_arguments(job, settings),
        ),
    ),
    # Mini-batches are sent once an epoch; with several of them, corrections need logprobs before the update.
    AlignedKeys(
        ("train.epochs",),
        ("algorithm.bypass_old_logprobs",),
        lambda job, settings, place: (not needs_before(job),),
    ),
    AlignedKeys(
        ("train.entropy",),
        ("algorithm.entropy_loss_fn", "algorithm.entropy_loss_fn_args"),
        lambda job, settings, place: (
            (
                f"{REMOTE}.loss.EntropyBonus",
                {"coefficient": job.config.train.entropy, "ranks": settings.ranks},
            )
            if job.config.train.entropy
            else ("none", None)
        ),
    ),
    # AgentJet's AdamW takes the rate of each step from its rows, and clips.
    AlignedKeys(
        ("train.learning_rate", "train.weight_decay"),
        ("algorithm.optimizer.lr", "algorithm.optimizer.weight_decay"),
        lambda job, settings, place: (job.config.train.learning_rate, job.config.train.weight_decay),
    ),
    AlignedKeys(
        ("train.adam_epsilon", "train.max_grad_norm"),
        (f"{OPTIMIZER}.override_optimizer_config",),
        lambda job, settings, place: (
            {
                "eps": job.config.train.adam_epsilon,
                "max_grad_norm": job.config.train.max_grad_norm,
                "norms": str(place.spool.norms),
            },
        ),
    ),
    AlignedKeys(
        ("backbone",),
        ("cluster.node_num", "cluster.gpu_per_node"),
        lambda job, settings, place: (settings.nodes, settings.gpus),
    ),
    AlignedKeys(
        ("run.dir",),
        (
            "checkpoint_root_dir",
            "algorithm.sample_strategy_args",
            "monitor.monitor_args",
            "ray_namespace",
            "trainer.name",
        ),
        lambda job, settings, place: (
            str(place.spool.root),
            {"folder": str(place.spool.folder)},
            {"folder": str(place.spool.folder)},
            f"ajet-{place.attempt}",
            "trainer",
        ),
    ),
)
"""Keys of the job that Trinity receives in some form."""


def compose(job: Job, settings: TrinitySettings, place: Place) -> dict[str, Any]:
    """The configuration that Trinity receives, as a tree. Raises ConfigError."""
    explicit = dict(leaves(settings.explicit))
    refuse(explicit)
    tree: dict[str, Any] = {}
    for values in (platform_defaults("trinity"), aligned(job, settings, place), explicit, FIXED):
        for key, value in values.items():
            put(tree, key, value)
    return tree


def aligned(job: Job, settings: TrinitySettings, place: Place) -> dict[str, Any]:
    """The values of `TABLE` for a job."""
    values: dict[str, Any] = {}
    for row in TABLE:
        values |= zip(row.trinity, row.values(job, settings, place), strict=True)
    return values


def refuse(explicit: Mapping[str, Any]) -> None:
    """Raise ConfigError, which names the key, for explicit keys that are AgentJet's or have no effect."""
    for key in explicit:
        where = f"backbone.trinity.{key}"
        if fixed := next((f for f in FIXED if under(key, f) or under(f, key)), None):
            raise ConfigError(where, f"is always {FIXED[fixed]!r} with AgentJet; remove the key.")
        if not any(under(key, allowed) for allowed in ALLOWED):
            if row := next((row for row in TABLE if any(under(key, k) for k in row.trinity)), None):
                raise ConfigError(where, f"follows from {' and '.join(row.ours)}; set that instead.")
            raise ConfigError(
                where,
                f"has no effect with AgentJet{nearest(key, ALLOWED)}. Of Trinity's keys, set only {', '.join(ALLOWED)}.",
            )


def describe(job: Job, settings: TrinitySettings, place: Place) -> str:
    """The configuration that Trinity receives, as YAML, and which keys of the job it comes from."""
    import yaml

    from ajet.utils.terminal import table

    tree = compose(job, settings, place)
    explicit = dict(leaves(settings.explicit))
    rows = [
        (key, str(value), f"backbone.trinity.{key}" if key in explicit else ", ".join(row.ours))
        for row in TABLE
        for key, value in zip(row.trinity, row.values(job, settings, place), strict=True)
        if value is not None and not isinstance(value, dict)
    ]
    header = table([("TRINITY'S KEY", "VALUE", "BY"), *rows], indent="#   ")
    return (
        f"# What Trinity receives. By the job's keys:\n{header}\n{yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)}"
    ).rstrip()
