"""What decides a job's memory and speed, and how a backbone says what it would place on each GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ajet.estimate.shape import BFLOAT16, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """What of a job decides the memory of its models."""

    shape: ModelShape
    adapters: Mapping[str, int]
    """Target -> number of weights of its adapter; empty if the model's own weights are trained."""
    trained: Collection[str]
    """Targets that are trained."""
    quantized: bool = False
    """Whether the weights below adapters have 4 bits."""
    reference: ModelShape | None = None
    """The model of `train.reference`."""
    keeps_first: bool = False
    """Whether the loss compares the model with what it was at first, which a job without adapters keeps as a second model."""
    entropy: bool = False
    asynchronous: bool = False

    @property
    def adapted(self) -> int | None:
        """Number of weights of all adapters together; None if the model's own weights are trained."""
        return sum(self.adapters.values()) if self.adapters else None

    @property
    def learning(self) -> int:
        """Number of weights of the trained adapters."""
        return sum(size for name, size in self.adapters.items() if name in self.trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSizes(ModelSizes):
    """What of a job decides its memory and speed."""

    episodes: int
    """Episodes of a training step."""
    concurrency: int
    """Episodes that the job lets run at once."""
    concurrency_set: bool = False
    """Whether the user has set that; otherwise the backbone may choose."""
    context: int
    """Maximum tokens of an episode."""
    prompt: int
    """Mean tokens of an episode that are not sampled."""
    answer: int
    """Mean sampled tokens of an episode."""


@dataclass(frozen=True, slots=True)
class StepPhase:
    """What one GPU holds at a time of a step."""

    name: str
    parts: Mapping[str, int]
    """Bytes of each part, by its name."""
    limit: int
    """Bytes that there are for them."""

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether there is room for all parts."""
        return self.total <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a backbone would place a job on GPUs."""

    gpus: int
    """How many of them it uses."""
    phases: tuple[StepPhase, ...]
    running: int
    """Episodes that run at once."""
    cache: int
    """Bytes of keys and values of an engine, on all its GPUs together."""
    engines: int = 1
    """Engines that sample beside each other."""
    engine_gpus: int = 1
    """GPUs of each engine."""
    batch: int
    """Maximum requests that an engine samples together."""
    pass_seconds: tuple[float, float] = (0.0, 0.0)
    """Lowest and highest time of a layer in a pass of sampling, besides what it reads and multiplies."""
    token_seconds: tuple[float, float] = (0.0, 0.0)
    """Lowest and highest time of each token that a pass samples, besides the layers."""
    number: int = BFLOAT16
    """Bytes of a number in sampling."""
    checkpointing: bool
    """Whether the forward pass is computed twice."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What the backbone would choose, by name."""

    @property
    def fits(self) -> bool:
        """Whether every phase has room."""
        return all(phase.fits for phase in self.phases)

    @property
    def tightest(self) -> StepPhase:
        """The phase that needs the largest share of its room."""
        return max(self.phases, key=lambda phase: phase.total / phase.limit)
