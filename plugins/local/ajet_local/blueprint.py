"""What a job's trainer is built from, and the steps in which it is built."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ajet import ConfigError, EnginePlugin, model_source
from ajet.estimate.layout import ModelSizes
from ajet.estimate.shape import ModelShape
from ajet.interfaces.backbone import Need
from ajet.job.models import check_vocabulary
from ajet_local.demand import MOST_TOKENS, Demand, format_size, parse_size, refuse
from ajet_local.engine import LocalEngine
from ajet_local.export import load_whole
from ajet_local.memory import free_memory, program_memory, return_freed, shape_of
from ajet_local.modeling import copy_in
from ajet_local.plan import CPU_TOKENS
from ajet_local.shared import SharedSampler
from ajet_local.trainer import LocalTrainer
from ajet_lora.adapters import Adapters, base_model

if TYPE_CHECKING:
    from ajet.interfaces.engine import SharedEngine
    from ajet.interfaces.progress import Progress
    from ajet.learning.settings import LoraSettings, TrainSettings
    from ajet_local.settings import LocalSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """An engine in processes of its own that samples instead of the local one, and what the job asks of it; None: unknown."""

    plugin: EnginePlugin
    episodes: int | None
    """How many run at once at most."""
    context: int | None
    """Maximum tokens of each."""
    ends: ExitStack
    """Its end ends the engine if nothing else has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """What a trainer is built from."""

    local: LocalSettings
    source: str | Path
    """A model folder, a checkpoint or a Hugging Face id."""
    shape: ModelShape
    """Of its base model."""
    compute: torch.dtype
    """The data type of computations."""
    train: TrainSettings
    seed: int
    deterministic: bool
    progress: Progress
    needs: Collection[Need]
    """What the loss needs."""
    adapters: Mapping[str, LoraSettings]
    """Empty: the model's own weights are trained."""
    trained: Collection[str]
    """Names of the adapters that learn."""
    apart: Apart | None

    @property
    def keeps_first(self) -> bool:
        """Whether the loss compares with the weights with which the run begins."""
        compares = self.train.kl > 0 or not {"reference", "teacher"}.isdisjoint(self.needs)
        return self.train.reference is None and compares

    @property
    def is_mixed(self) -> bool:
        """Whether the trained weights are more precise than computations."""
        return not self.adapters and self.compute != torch.float32

    def trainer(self) -> LocalTrainer:
        """The trainer with the engine that samples for it. Raises ConfigError if they do not fit into memory."""
        demand = self.demand()
        # It starts while the model loads: what both need fits beside each other, as moments and gradients do not exist yet.
        shared = self._shared_engine(self.apart, demand) if self.apart else None
        if self.deterministic:
            # cuBLAS is deterministic only with this setting.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(self.seed)
        stored = self.compute if self.adapters else torch.float32
        model, tokenizer, adapters = self.local.load(self.source, self.seed, self.adapters, stored)
        self.progress.say("checking that it samples and trains with the logprobs of one plain pass")
        trainer = LocalTrainer(
            model,
            tokenizer,
            SharedSampler(shared, model, self.compute, adapters, sleeps=not self.train.asynchronous)
            if shared
            else self._engine(model, tokenizer, adapters, demand),
            optimizer=self.local.optimizer,
            weight_decay=self.train.weight_decay,
            adam_epsilon=self.train.adam_epsilon,
            max_grad_norm=self.train.max_grad_norm,
            micro_batch_tokens=demand.tokens,
            gradient_checkpointing=demand.training.checkpointing,
            reference=self._reference(model, tokenizer),
            adapters=adapters,
            trained=self.trained,
            critic="values" in self.needs,
            autocast=self.compute if self.is_mixed else None,
        )
        if self.local.fused:
            self._fuse(trainer)
        return_freed(model.device)
        return trainer

    def _fuse(self, trainer: LocalTrainer) -> None:
        """Fuse the layers in training. Raises ConfigError if that is not possible."""
        if self.deterministic:
            reason = "which kernels torch compiles may differ between runs"
        elif self.local.quantize:
            reason = "the weights have 4 bits"
        else:
            self.progress.say("compiling the layers in training")
            reason = trainer.fuse()
        if reason:
            raise ConfigError("backbone.local.fused", f"true, but {reason}. Remove the key.")

    def demand(self) -> Demand:
        """The job's demand, with a micro-batch, a cache and checkpointing that fit into memory. Raises ConfigError if it does
        not fit."""
        local, train = self.local, self.train
        device = local.torch_device()
        limit = parse_size(local.memory_limit) if local.memory_limit else free_memory(device)
        sizes = ModelSizes(
            shape=self.shape,
            adapters={n: self.shape.adapter_parameters(a.rank, a.modules) for n, a in self.adapters.items()},
            trained=self.trained,
            reference=shape_of(base_model(train.reference)) if train.reference else None,
            keeps_first=self.keeps_first,
            entropy=train.entropy > 0,
            asynchronous=train.asynchronous,
            quantized=local.quantize is not None,
        )
        program = program_memory(device) if local.memory_limit else 0
        demand = local.demand(sizes, self.compute.itemsize, program, apart=self.apart is not None)
        if self.apart and self.apart.episodes is not None:
            longest = min(self.apart.context or self.shape.context, self.shape.context)
            demand = replace(demand, cached=self.apart.episodes * longest)
        demand = local.fitted(demand, limit, shared=device.type != "cuda")
        if demand.total > limit:
            raise refuse(demand, limit, "memory_limit" if local.memory_limit else f"free on {device}")
        if demand.tokens < MOST_TOKENS or local.memory_limit:
            self.progress.say(_said(demand, limit, on_cpu=device.type == "cpu"))
        return demand

    def _engine(self, model: Any, tokenizer: Any, adapters: Adapters | None, demand: Demand) -> LocalEngine:
        """What samples from the model in training, in this process."""
        if adapters is not None and self.train.asynchronous:
            # Sampling goes on during an update and must not see half of it.
            adapters = adapters.twin()
            model = adapters.model
        elif not self.adapters and (self.train.asynchronous or self.is_mixed):
            model = copy_in(model, self.compute)
        return self.local.local_engine(
            model,
            tokenizer,
            adapters,
            deterministic=self.deterministic,
            cache_mib=max(demand.cache >> 20, 1),
        )

    def _shared_engine(self, apart: Apart, demand: Demand) -> SharedEngine:
        """The engine in processes of its own, which begins to start."""
        room = demand.cache // self.shape.cached(1, demand.cache_number)
        engine = apart.plugin.build_shared(
            str(base_model(self.source)),
            self.seed,
            self.progress,
            dtype=str(self.compute).removeprefix("torch."),
            cache=demand.cache,
            context=min(apart.context or room, self.shape.context, room),
            requests=apart.episodes,
            sleeps=not self.train.asynchronous,
            ranks={name: lora.rank for name, lora in self.adapters.items()},
        )
        apart.ends.callback(engine.begin())
        return engine

    def _reference(self, model: Any, tokenizer: Any) -> Any:
        """The frozen reference model, for a KL penalty or as a teacher: `train.reference`, else a copy of the initial weights. None
        if the job needs none, or if its adapters leave the initial weights in place. Raises ConfigError for a reference with
        another tokenizer."""
        if self.train.reference is None:
            copied = self.keeps_first and not self.adapters
            return copy_in(model, self.compute).requires_grad_(False) if copied else None
        source = model_source(self.train.reference, self.seed, self.progress)
        reference, its_tokenizer = load_whole(source, device=model.device, dtype=self.compute)
        check_vocabulary(self.train.reference, its_tokenizer.get_vocab(), tokenizer.get_vocab())
        return reference.requires_grad_(False)


def _said(demand: Demand, limit: int, *, on_cpu: bool) -> str:
    """A line about the memory of a job that fits."""
    again = ", computing activations twice" if demand.training.checkpointing else ""
    # The cache is empty during updates, and mini-batches that share little are divided into smaller parts.
    usual = replace(demand, tokens=min(demand.tokens, CPU_TOKENS), cache=0).total
    expected = f"; about {format_size(usual)} in updates" if on_cpu else ""
    return (
        f"memory: at most about {format_size(demand.total)} of {format_size(limit)}, with micro-batches of "
        f"{demand.tokens} tokens{again} and {format_size(demand.cache)} for the engine's cache{expected}"
    )
