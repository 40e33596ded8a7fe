"""The `local` backbone and engine: their settings, and how a model becomes a trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ajet import Backbone, Engine, EnginePlugin, Trainer
from ajet.backbone import Capabilities, RunResult
from ajet_local.tensorboard import TensorBoard

if TYPE_CHECKING:
    from ajet.job import Job
    from ajet.learning.settings import TrainSettings
    from ajet.progress import Progress

STARTER = "starter"
Device = Literal["auto", "cpu", "cuda", "mps"]


class Local(Backbone):
    """Trains in this process, on a CPU or one GPU, with Hugging Face transformers."""

    name = "local"
    capabilities: ClassVar[Capabilities] = Capabilities(deterministic=True)
    device: Device = Field("auto", description="Where the model lives; auto takes cuda, else mps, else cpu.")
    threads: int | None = Field(None, ge=1, description="CPU threads of torch; default: torch's own choice.")
    max_batch: int = Field(64, ge=1, description="Most requests that are sampled together.")
    micro_batch_tokens: int = Field(
        16384, ge=1, description="Most tokens of one forward pass in training: memory, not results."
    )

    def run(self, job: Job) -> RunResult:
        """Train the job's model with the core's loop."""
        from ajet.run import train_job

        config = job.config
        trainer = self.trainer(
            job.model,
            config.train,
            seed=config.run.seed,
            deterministic=config.run.deterministic,
            progress=job.progress,
        )
        if not any(isinstance(logger, TensorBoard) for logger in job.loggers):
            job = replace(job, loggers=(*job.loggers, TensorBoard()))
        return train_job(job, trainer)

    def trainer(
        self, model: str, train: TrainSettings, *, seed: int, deterministic: bool, progress: Progress
    ) -> Trainer:
        """A `LocalTrainer` over a model folder, a Hugging Face id or the starter recipe."""
        import torch

        from ajet_local.engine import LocalEngine
        from ajet_local.trainer import LocalTrainer

        if self.threads:
            torch.set_num_threads(self.threads)
        if deterministic:
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(seed)
        network, tokenizer = _load(model, self.device, seed, progress)
        engine = LocalEngine(network, tokenizer, max_batch=self.max_batch)
        return LocalTrainer(
            network,
            tokenizer,
            engine,
            weight_decay=train.weight_decay,
            max_grad_norm=train.max_grad_norm,
            micro_batch_tokens=self.micro_batch_tokens,
        )


class LocalEnginePlugin(EnginePlugin):
    """The local backbone's engine alone, for answering without training."""

    name = "local"
    device: Device = Field("auto", description="Where the model lives; auto takes cuda, else mps, else cpu.")
    max_batch: int = Field(64, ge=1, description="Most requests that are sampled together.")

    def build(self, model: str, seed: int, progress: Progress) -> Engine:
        """A `LocalEngine` over a model folder, a Hugging Face id or the starter recipe."""
        from ajet_local.engine import LocalEngine

        network, tokenizer = _load(model, self.device, seed, progress)
        return LocalEngine(network, tokenizer, max_batch=self.max_batch)


def _load(model: str, device: Device, seed: int, progress: Progress) -> tuple[Any, Any]:
    from transformers.utils.logging import disable_progress_bar

    from ajet_local.modeling import load_model

    disable_progress_bar()  # a run has its own
    source: str | Path = model
    if model == STARTER:
        from ajet_local.starter.build import cached_starter

        source = cached_starter(seed, progress.stage)
    return load_model(source, None if device == "auto" else device)
