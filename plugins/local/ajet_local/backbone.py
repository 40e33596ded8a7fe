"""The `local` backbone and engine: their settings, and how a model becomes a trainer."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ajet import Backbone, ConfigError, Engine, EnginePlugin, Plugin, Trainer
from ajet.backbone import OPTIONAL_KEYS, Capabilities, RunResult
from ajet_local.tensorboard import TensorBoard

if TYPE_CHECKING:
    from ajet.job import Job
    from ajet.learning.settings import TrainSettings
    from ajet.progress import Progress
    from ajet_local.engine import LocalEngine

STARTER = "starter"
Device = Literal["auto", "cpu", "cuda", "mps"]


class OnDevice(Plugin):
    """The settings that sampling and training share."""

    device: Device = Field("auto", description="Where the model lives; auto takes cuda, else mps, else cpu.")
    threads: int | None = Field(None, ge=1, description="CPU threads of torch; default: torch's own choice.")
    max_batch: int = Field(64, ge=1, description="Most requests that are sampled together.")
    cache_mib: int | None = Field(
        None,
        ge=1,
        description="Most MiB for keys and values while sampling; default: a quarter of the memory.",
    )
    prefill_tokens: int = Field(
        1024,
        ge=1,
        description="Most tokens of prompts in one pass of sampling, so that nobody waits for long.",
    )

    def load(self, model: str, seed: int, progress: Progress, *, deterministic: bool = False) -> LocalEngine:
        """A `LocalEngine` over a model folder, a Hugging Face id or the starter recipe."""
        import torch
        from transformers.utils.logging import disable_progress_bar

        from ajet_local.engine import LocalEngine
        from ajet_local.heap import share_heap
        from ajet_local.modeling import load_model

        share_heap()
        if self.threads:
            torch.set_num_threads(self.threads)
        disable_progress_bar()  # a run has its own
        source = _source(model, seed, progress)
        network, tokenizer = load_model(source, None if self.device == "auto" else self.device)
        return LocalEngine(
            network,
            tokenizer,
            max_batch=self.max_batch,
            cache_mib=self.cache_mib,
            prefill_tokens=self.prefill_tokens,
            deterministic=deterministic,
        )


class Local(OnDevice, Backbone):
    """Trains in this process, on a CPU or one GPU, with Hugging Face transformers."""

    name = "local"
    capabilities: ClassVar[Capabilities] = Capabilities(deterministic=True, keys=OPTIONAL_KEYS)
    micro_batch_tokens: int = Field(
        16384, ge=1, description="Most tokens of one forward pass in training: memory, not results."
    )
    gradient_checkpointing: bool = Field(
        False, description="Keep only each layer's input and compute the rest again: less memory, more time."
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

        from ajet_local.trainer import LocalTrainer

        if deterministic:
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(seed)
        engine = self.load(model, seed, progress, deterministic=deterministic)
        return LocalTrainer(
            # Sampling beside an update must not see half of it.
            copy.deepcopy(engine.model) if train.asynchronous else engine.model,
            engine.tokenizer,
            engine,
            weight_decay=train.weight_decay,
            adam_epsilon=train.adam_epsilon,
            max_grad_norm=train.max_grad_norm,
            micro_batch_tokens=self.micro_batch_tokens,
            gradient_checkpointing=self.gradient_checkpointing,
            reference=_reference(engine, train, seed, progress),
        )


def _source(model: str, seed: int, progress: Progress) -> str | Path:
    """Where a model lies, after building it if it is the starter recipe."""
    if model != STARTER:
        return model
    from ajet_local.starter.build import cached_starter

    return cached_starter(seed, progress.stage)


def _reference(engine: LocalEngine, train: TrainSettings, seed: int, progress: Progress) -> Any:
    """The frozen model of a KL penalty, or a teacher: ``train.reference``, else a copy of the initial
    weights; None where the job needs neither."""
    from ajet_local.modeling import load_model

    if train.reference is None:
        return copy.deepcopy(engine.model).requires_grad_(False) if train.kl else None
    model, tokenizer = load_model(_source(train.reference, seed, progress), engine.model.device)
    if tokenizer.get_vocab() != engine.tokenizer.get_vocab():
        raise ConfigError(
            f"train.reference: {train.reference} has another tokenizer than the trained model, so it cannot judge "
            "its tokens. Name a model of the same family."
        )
    return model.requires_grad_(False)


class LocalEnginePlugin(OnDevice, EnginePlugin):
    """The local backbone's engine alone, for answering without training."""

    name = "local"

    def build(self, model: str, seed: int, progress: Progress) -> Engine:
        """A `LocalEngine` over a model folder, a Hugging Face id or the starter recipe."""
        return self.load(model, seed, progress)

    def tokenizer(self, model: str, seed: int) -> tuple[Any, str]:
        """See `EnginePlugin.tokenizer`. The starter's is the same before it has learned anything."""
        if model == STARTER:
            from ajet_local.starter.tokenizer import build_tokenizer

            return build_tokenizer(seed), "qwen3"
        from ajet_local.modeling import load_tokenizer

        return load_tokenizer(model)
