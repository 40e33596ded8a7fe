"""A prepared job, and the backbone that runs it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from ajet.interfaces.backbone import Capabilities, RunResult, Trainer
from ajet.interfaces.base import Plugin
from ajet.interfaces.progress import Progress, Silent
from ajet.types import ConfigError, Need, Task

if TYPE_CHECKING:  # every `ajet --help` loads this module
    from ajet.estimate.devices import Gpus
    from ajet.estimate.layout import JobSizes, Layout
    from ajet.estimate.shape import ModelShape
    from ajet.interfaces.algorithm import Algorithm
    from ajet.interfaces.engine import ChatModelPlugin
    from ajet.interfaces.filter import Filter
    from ajet.interfaces.judge import Judge
    from ajet.interfaces.logger import Logger
    from ajet.interfaces.workflow import LoadedWorkflow
    from ajet.job.config import JobConfig, Layers
    from ajet.learning.batch import Learning
    from ajet.learning.settings import LoraSettings, TrainSettings
    from ajet.plugins import Plugins


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """A target before its model is opened."""

    name: str
    agents: tuple[str, ...]
    model: ChatModelPlugin | None
    trained: bool
    lora: LoraSettings | None = None
    models: tuple[str, ...] = ()
    """Patterns of the names by which requests call their model; none: any name."""
    side: bool = False
    """Whether the job's model answers its calls, which are not trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A prepared job, as a backbone runs it."""

    config: JobConfig
    layers: Layers
    plugins: Plugins
    backbone: Backbone
    workflow: LoadedWorkflow
    judge: Judge
    tasks: Sequence[Task]
    validation: Sequence[Task]
    targets: Sequence[TargetPlan]
    algorithm: Algorithm
    filters: tuple[Filter, ...]
    loggers: Sequence[Logger]
    model: str
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts for `ajet.prompt`."""
    progress: Progress = field(default_factory=Silent)
    judge_check: Judge | None = None
    """The second judge."""
    resume: Path | None = None
    """The run folder to resume."""

    def with_model(self, model: str) -> Job:
        """This job with another model: a folder, or its id on the hub."""
        return replace(self, model=model, config=self.config.model_copy(update={"model": model}))

    @property
    def adapters(self) -> list[str]:
        """The targets that have an adapter."""
        return [target.name for target in self.targets if target.lora]

    @property
    def learning(self) -> Learning:
        """How the job's rewards become losses of tokens."""
        from ajet.learning.batch import Learning

        return Learning.of(self.algorithm, self.config.train, self.adapters)

    def with_progress(self, progress: Progress) -> Job:
        """The same job with another progress."""
        return replace(self, progress=progress)


class Backbone(Plugin):
    """Base of backbones: what runs a whole job. Its fields are the job's ``backbone.<name>`` section."""

    kind = "backbone"
    capabilities: ClassVar[Capabilities] = Capabilities()

    @abstractmethod
    def run(self, job: Job) -> RunResult:
        """Run the job to its end. Raises AjetError when nothing could be done."""

    def describe(self, job: Job) -> str:
        """What a foreign system would receive for this job, as ``--dry-run`` prints it below the job; empty where
        there is none. Raises ConfigError."""
        return ""

    def layout(self, sizes: JobSizes, gpus: Gpus) -> Layout:
        """What the backbone would place on each of these GPUs, which need not be in this machine, with its settings. Raises
        ConfigError if it cannot say."""
        raise ConfigError(
            f"the backbone {self.name!r} has no estimate of memory; those of local and verl can be planned."
        )

    def shape(self, model: str) -> ModelShape | None:
        """The shape of a model of a family that `ajet plan` does not know; None if the backbone does not know it either."""
        return None

    def alternatives(self) -> Sequence[Mapping[str, object]]:
        """Settings that may lower the memory of a job or make it faster, each as dotted keys of the job and values. `ajet plan`
        tries them and shows those that help."""
        return ()

    def defaults(self, config: JobConfig) -> Mapping[str, tuple[object, str]]:
        """Defaults that depend on the model, the machine or other keys: dotted key of the job -> its value, and the reason
        for it. They take effect where the user has set nothing. Raises ConfigError."""
        return {}

    def trainer(
        self,
        model: str,
        train: TrainSettings,
        *,
        seed: int,
        deterministic: bool,
        progress: Progress,
        needs: Collection[Need] = (),
        adapters: Mapping[str, LoraSettings] = MappingProxyType({}),
        trained: Collection[str] | None = None,
    ) -> Trainer:
        """A Trainer over a model, for backbones that the core's own loop can drive. Raises ConfigError.

        ``needs`` are those of the algorithm. ``adapters`` are those that answer, by name, and of them ``trained`` (default:
        all) learn; with any, the model's own weights are left alone.
        """
        raise ConfigError(
            f"the backbone {self.name!r} trains only whole jobs (ajet run); use one with a trainer, such as local."
        )

    def export(self, checkpoint: Path, output: Path, target: str | None) -> None:
        """Write a whole model, of its adapter ``target`` if the checkpoint holds adapters, into the new folder
        ``output`` (Hugging Face layout). Raises AjetError."""
        raise ConfigError(f"the backbone {self.name!r} cannot export its checkpoints.")
