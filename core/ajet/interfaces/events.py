"""What happens in a training run, as loggers and hooks receive it: one frozen class for each event, and `Attempt`.

Every event names its run folder. `ajet run`, `ajet.run` and `ajet.open` send the same events, one at a time and in the
process that called them. The backbone verl sends them, too; the backbone debug trains nothing and sends none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.types import Image as Image
from ajet.types import Metrics, Task

if TYPE_CHECKING:
    from ajet.interfaces.backbone import RunResult
    from ajet.tracker.timelines import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """A run begins or is resumed."""

    run_dir: Path
    config: Mapping[str, Any]
    """The resolved job: every key with its value, paths absolute, as in ``job.yaml``."""
    resumed_after: int | None = None
    """The step of the checkpoint that a resumed run continues from (0: none yet); None for a new run."""

    @property
    def name(self) -> str:
        """The run's name, or that of its folder."""
        return self.config.get("run", {}).get("name") or self.run_dir.name

    @property
    def tags(self) -> list[str]:
        """The run's tags."""
        return list(self.config.get("run", {}).get("tags", ()))


@dataclass(slots=True)
class Attempt:
    """An attempt at an episode, as the hook `ajet_attempt` gets it."""

    episode: str
    """The id of the episode."""
    failure: str | None = "cancelled"
    """Once it has ended: the cause of its failure, None if it has not failed, "cancelled" if its run ends before it does."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What is added to the metadata of the workflow's output, whose own keys take precedence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeCall:
    """A recorded call of an episode."""

    agent: str
    target: str
    started: float
    """When its request arrived, in seconds since 1970; 0 if unknown."""
    seconds: float
    """From then until its answer was recorded."""
    prompt_tokens: int | None
    """None if a chat model answered, as for frozen targets."""
    sampled_tokens: int | None
    truncated: bool
    """Whether the answer ended because it was as long as allowed."""
    number: int = -1
    """Names it in the spans of `EpisodeEnd.timelines`."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Those that its prompt lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEnd:
    """An episode has been recorded in the journal. A resumed run sends none for the episodes that it reuses."""

    run_dir: Path
    id: str
    phase: str
    """What it ran for: train, validation or greedy."""
    step: int
    task: Task
    reward: float
    is_success: bool | None = None
    failure: str | None = None
    """Why it was not judged: a cause such as "timeout", or None."""
    error: str = ""
    """The failure in words; empty without one."""
    metrics: Metrics = field(default_factory=dict)
    """The judge's."""
    response: Any = None
    """What the workflow returned."""
    started: float = 0.0
    """When the workflow began, in seconds since 1970; 0 if unknown."""
    seconds: float = 0.0
    messages: Sequence[Sequence[Mapping[str, Any]]] = ()
    """The chat of each recorded call, its answer last."""
    calls: Sequence[EpisodeCall] = ()
    """The recorded calls, in the order of ``messages``."""
    images: Mapping[str, Image] = field(default_factory=dict)
    """The images in ``messages``, by the reference that messages have in their place."""
    timelines: Sequence[Timeline] = ()
    """The token sequences that its calls merge into, those of trained calls first: ``token_ids int32[T]``,
    ``mask bool[T]`` (sampled), ``logprobs float32[T]`` (NaN where not sampled)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """A training step has been recorded."""

    run_dir: Path
    step: int
    metrics: Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint is complete on the disk: in the run folder, where ``train.keep_last`` decides how long it stays, or
    where `Learner.save` wrote it."""

    run_dir: Path
    step: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """A run that sent `RunStart` has ended: exactly one of ``result`` and ``error`` is set."""

    run_dir: Path
    result: RunResult | None = None
    error: BaseException | None = None
    """What ended it; KeyboardInterrupt or asyncio.CancelledError where it was stopped."""
