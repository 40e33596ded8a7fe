"""The `local` backbone and engine: their settings, and how a model becomes a trainer."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ajet import Backbone, ConfigError, Engine, EnginePlugin, Plugin, Trainer
from ajet.backbone import OPTIONAL_KEYS, Capabilities, RunResult
from ajet_local.tensorboard import TensorBoard

if TYPE_CHECKING:
    from ajet.config import LoraSettings
    from ajet.job import Job
    from ajet.learning.settings import TrainSettings
    from ajet.progress import Progress
    from ajet_local.adapters import Adapters
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

    def load(
        self,
        model: str,
        seed: int,
        progress: Progress,
        *,
        deterministic: bool = False,
        adapters: Mapping[str, LoraSettings] | None = None,
    ) -> tuple[LocalEngine, Adapters | None]:
        """A `LocalEngine` over a model folder, a checkpoint, a Hugging Face id or the starter recipe.

        With it the model's adapters: ``adapters``, of which those that a checkpoint holds go on from there; None
        means just what it holds.
        """
        import torch
        from transformers.utils.logging import disable_progress_bar

        from ajet_local.adapters import base_of, prepare, saved_adapters
        from ajet_local.engine import LocalEngine
        from ajet_local.heap import share_heap
        from ajet_local.modeling import load_model

        share_heap()
        if self.threads:
            torch.set_num_threads(self.threads)
        disable_progress_bar()  # a run has its own
        source = _source(model, seed, progress)
        saved = saved_adapters(source)
        if saved and adapters is not None and not saved.keys() & adapters.keys():
            raise ConfigError(
                f"model: {source} holds the adapters of {', '.join(saved)}, but no target of the job with a lora has such a "
                "name. Give it one, or make a whole model of them: ajet export CHECKPOINT OUT."
            )
        base = base_of(next(iter(saved.values()))) if saved else source
        network, tokenizer = load_model(base, None if self.device == "auto" else self.device)
        on_top = prepare(network, saved, adapters, seed)
        engine = LocalEngine(
            network,
            tokenizer,
            max_batch=self.max_batch,
            cache_mib=self.cache_mib,
            prefill_tokens=self.prefill_tokens,
            deterministic=deterministic,
            adapters=on_top,
        )
        return engine, on_top


class Local(OnDevice, Backbone):
    """Trains in this process, on a CPU or one GPU, with Hugging Face transformers."""

    name = "local"
    capabilities: ClassVar[Capabilities] = Capabilities(
        lora=True, several_targets=True, deterministic=True, keys=OPTIONAL_KEYS
    )
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
            adapters={target.name: target.lora for target in job.targets if target.lora},
            trained=[target.name for target in job.targets if target.trained],
        )
        if not any(isinstance(logger, TensorBoard) for logger in job.loggers):
            job = replace(job, loggers=(*job.loggers, TensorBoard()))
        return train_job(job, trainer)

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
        """A `LocalTrainer` over a model folder, a checkpoint, a Hugging Face id or the starter recipe."""
        import torch

        from ajet_local.trainer import LocalTrainer

        if deterministic:
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(seed)
        engine, on_top = self.load(model, seed, progress, deterministic=deterministic, adapters=adapters)
        network = engine.model
        if train.asynchronous:  # sampling beside an update must not see half of it
            on_top = on_top and on_top.twin()
            network = on_top.model if on_top else copy.deepcopy(network)
        return LocalTrainer(
            network,
            engine.tokenizer,
            engine,
            weight_decay=train.weight_decay,
            adam_epsilon=train.adam_epsilon,
            max_grad_norm=train.max_grad_norm,
            micro_batch_tokens=self.micro_batch_tokens,
            gradient_checkpointing=self.gradient_checkpointing,
            reference=_reference(engine, train, seed, progress),
            adapters=on_top,
            trained=trained,
        )

    def export(self, checkpoint: Path, output: Path, target: str | None) -> None:
        """See `Backbone.export`."""
        from ajet_local.export import export

        export(checkpoint, output, target)


def _source(model: str, seed: int, progress: Progress) -> str | Path:
    """Where a model lies, after building it if it is the starter recipe."""
    if model != STARTER:
        return model
    from ajet_local.starter.build import cached_starter

    return cached_starter(seed, progress.stage)


def _reference(engine: LocalEngine, train: TrainSettings, seed: int, progress: Progress) -> Any:
    """The frozen model of a KL penalty, or a teacher: ``train.reference``, else a copy of the initial
    weights; None where the job needs neither, or where these are there anyway, below the adapters."""
    from ajet_local.export import load_whole

    if train.reference is None:
        return copy.deepcopy(engine.model).requires_grad_(False) if train.kl and not engine.adapters else None
    model, tokenizer = load_whole(_source(train.reference, seed, progress), device=engine.model.device)
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
        """A `LocalEngine` over a model folder, a checkpoint, a Hugging Face id or the starter recipe."""
        return self.load(model, seed, progress)[0]

    def tokenizer(self, model: str, seed: int) -> tuple[Any, str]:
        """See `EnginePlugin.tokenizer`. The starter's is the same before it has learned anything."""
        if model == STARTER:
            from ajet_local.starter.tokenizer import build_tokenizer

            return build_tokenizer(seed), "qwen3"
        from ajet_local.adapters import base_of, saved_adapters
        from ajet_local.modeling import load_tokenizer

        saved = saved_adapters(model)
        return load_tokenizer(base_of(next(iter(saved.values()))) if saved else model)
