"""What trains: a Trainer holds weights and an optimizer; a Backbone runs a whole job."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Protocol

from ajet.interfaces.base import Plugin
from ajet.interfaces.engine import Engine
from ajet.interfaces.progress import Progress
from ajet.types import AjetError, Batch, ConfigError, Metrics

if TYPE_CHECKING:
    from ajet.job.config import LoraSettings
    from ajet.job.prepare import Job
    from ajet.learning.settings import TrainSettings


class CheckpointDamaged(AjetError):
    """A checkpoint cannot be read. The run continues from the one before it."""


class Trainer(Protocol):
    """Weights, their optimizer, and the engine that samples from them. `ajet.learning.loop` drives it."""

    @property
    def engine(self) -> Engine:
        """The engine that samples from the weights."""
        ...

    @property
    def version(self) -> int:
        """Weight version that the engine serves; `publish` raises it by one."""
        ...

    def update(self, batch: Batch) -> Metrics:
        """One optimizer step per mini-batch, and the arrays that ``batch.needs`` names. Blocking; raises
        FloatingPointError on a non-finite loss."""
        ...

    async def publish(self) -> int:
        """Load the new weights into the engine, clear its caches, and return the new version."""
        ...

    def save(self, path: Path) -> None:
        """Write tokenizer, optimizers' states, and the model (Hugging Face layout) or the adapters (peft's
        layout, ``adapters/<name>/``) into a new folder. Blocking, and called while the engine may be sampling."""
        ...

    def load(self, path: Path) -> None:
        """Restore exactly what `save` wrote, bit for bit. Raises `CheckpointDamaged` if a file of it cannot be read."""
        ...


OPTIONAL_KEYS = frozenset(
    {
        "train.kl",
        "train.reference",
        "train.entropy",
        "train.correction",
        "train.epochs",
        "train.max_staleness",
        "train.asynchronous",
        "train.dynamic_sampling",
        "train.schedule",
        "rollout.oversample",
    }
)
"""Keys of the job that not every backbone can honour. The core's loop, with a Trainer that fills the arrays that
`Batch.needs` names, honours all of them."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backbone can honour. A job that asks for more is refused at start; the error names the key."""

    trains: bool = True
    lora: bool = False
    several_targets: bool = False
    """Whether it trains more than one target, each with its own adapter."""
    deterministic: bool = False
    keys: frozenset[str] = frozenset()
    """The keys of `OPTIONAL_KEYS` that it honours."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. ``before`` and ``after`` are the validation metrics, if there were validation tasks."""

    run_dir: Path
    steps: int
    checkpoint: Path | None = None
    before: Metrics = field(default_factory=dict)
    after: Metrics = field(default_factory=dict)
    train_seconds: float = 0.0


class Backbone(Plugin):
    """Base of backbones: what runs a whole job. Its fields are the job's ``backbone.<name>`` section."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    @abstractmethod
    def run(self, job: Job) -> RunResult:
        """Run the job to its end. Raises AjetError when nothing could be done."""

    def describe(self, job: Job) -> str:
        """What a foreign system would receive for this job, as ``--dry-run`` prints it below the job; empty where
        there is none. Raises ConfigError."""
        return ""

    def trainer(
        self,
        model: str,
        train: TrainSettings,
        *,
        seed: int,
        deterministic: bool,
        progress: Progress,
        adapters: Mapping[str, LoraSettings] = MappingProxyType({}),
        trained: Collection[str] | None = None,
    ) -> Trainer:
        """A Trainer over a model, for backbones that the core's own loop can drive. Raises ConfigError.

        ``adapters`` are those that answer, by name, and of them ``trained`` (default: all) learn; with any, the
        model's own weights are left alone.
        """
        raise ConfigError(
            f"the backbone {self.name!r} owns its training loop; use one with a trainer, such as local."
        )

    def export(self, checkpoint: Path, output: Path, target: str | None) -> None:
        """Write a whole model, of its adapter ``target`` if the checkpoint holds adapters, into the new folder
        ``output`` (Hugging Face layout). Raises AjetError."""
        raise ConfigError(f"the backbone {self.name!r} cannot export its checkpoints.")
