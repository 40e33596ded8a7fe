"""What a backbone can do and returns, and the Trainer that it may bring. `ajet.Backbone` itself is in `ajet.job.job`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ajet.interfaces.engine import Engine
from ajet.types import AjetError
from ajet.types import Batch as Batch
from ajet.types import Loss as Loss
from ajet.types import LossTokens as LossTokens
from ajet.types import Measures as Measures
from ajet.types import Metrics as Metrics
from ajet.types import Need as Need
from ajet.types import Sample as Sample
from ajet.types import SampleTree as SampleTree
from ajet.types import Span as Span


class CheckpointDamaged(AjetError):
    """A checkpoint cannot be read. The run continues from the one before it."""


class MachineFailed(AjetError):
    """A machine, a server or a process of the run has failed, so resuming the run may help. A backbone never raises it for
    errors of the user, such as a wrong key or an agent whose episodes all fail."""

    def __init__(self, text: str, run_dir: Path) -> None:
        super().__init__(text)
        self.run_dir = run_dir


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
        """One optimizer step per mini-batch, and the arrays that ``batch.needs`` names. With ``batch.estimate``, the
        critic's values of all samples come first, and then their advantages. Blocking; raises FloatingPointError on a
        non-finite loss."""
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
        "train.save_minutes",
        "rollout.fork",
        "rollout.oversample",
        "rollout.steer",
        "task.selector",
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
    truncated_sampling: bool = False
    """Whether it trains exactly on what ``rollout.sampling``'s top_p, top_k and min_p leave: engine and trainer use `Kept`."""
    deterministic: bool = False
    resumes_without_checkpoint: bool = False
    """Whether a run that ended early can be resumed even if it has written no checkpoint."""
    restarts: bool = False
    """Whether it raises `MachineFailed`, after which `run.restarts` resumes the run in the same process."""
    keys: frozenset[str] = frozenset()
    """The keys of `OPTIONAL_KEYS` that it honours."""
    needs: frozenset[Need] = frozenset({"before", "reference", "entropy"})
    """What of `Algorithm.needs` it fills; an algorithm that needs more is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended. ``before`` and ``after`` are the validation metrics, if there were validation tasks."""

    run_dir: Path
    steps: int
    checkpoint: Path | None = None
    before: Metrics = field(default_factory=dict)
    after: Metrics = field(default_factory=dict)
