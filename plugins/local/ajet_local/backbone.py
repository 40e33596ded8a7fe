"""The `local` backbone and engine: their settings, and how they choose device, data type and engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator

from ajet import (
    AjetError,
    Backbone,
    ConfigError,
    Engine,
    EnginePlugin,
    Plugin,
    Trainer,
    find_recipe,
    model_source,
)
from ajet.backbones import BFLOAT16, FLOAT32, JobSizes, Layout, ModelSizes, Need, Phase
from ajet.interfaces.backbone import OPTIONAL_KEYS, Capabilities, RunResult
from ajet_local.cpu import SMALL, bfloat16, crowded
from ajet_local.demand import Demand, Given, fit
from ajet_local.pretrained import Pretrained
from ajet_local.sizes import format_size, parse_size

if TYPE_CHECKING:
    import torch

    from ajet import Job
    from ajet.backbones import Gpus, LoraSettings, Shape, TrainSettings, Vision
    from ajet.interfaces.engine import SharedEngine
    from ajet.interfaces.progress import Progress
    from ajet_local.blueprint import Apart
    from ajet_local.engine import LocalEngine
    from ajet_lora.adapters import Adapters

Device = Literal["auto", "cpu", "cuda", "mps"]
MOST_REQUESTS = {"cuda": 256, "cpu": 128}
"""Default of `max_batch` by kind of device; 64 on others, and for models below `SMALL` on a CPU. The cache bounds them as well."""
VLLM = "vllm"
"""The engine that samples faster on a GPU, in processes of its own."""
VLLM_REQUESTS = 256
"""Requests that it samples together by default."""
VLLM_RANK = 512
"""The largest rank of an adapter that it computes."""
VLLM_PASS_SECONDS = (0.0, 0.05e-3)
"""Time of a layer besides its computation: vLLM starts its kernels from CUDA graphs."""
PASS_SECONDS = (0.25e-3, 0.75e-3)
"""Time in which Python starts the kernels of one layer, at the lowest and the highest: what transformers' speeds on an A100 leave
beside reading the weights (the README of QwenLM/Qwen: 54 tokens a second with 1.8B, 41 with 7B, 32 with 14B parameters)."""

TOKEN_SECONDS = (0.07e-3, 0.45e-3)
"""Time in which Python takes a token from a pass and goes on, one request after the other. On one H200, a pass of 128 requests through
28 layers took 30 ms in the engine alone, and 65 ms in a job (bench/results/prove_h200.json): what `PASS_SECONDS` leave of these."""


class OnDevice(Plugin):
    """The settings that sampling and training share."""

    device: Device = Field("auto", description="Device of the model; auto chooses cuda, else mps, else cpu.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Data type of computations; auto: bfloat16 on cuda, and on a CPU that multiplies in it, from 10 million parameters "
        "on; else float32. Trained weights and optimizer states are always float32.",
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of torch; default: one for a model below 10 million parameters, else torch chooses.",
    )
    max_batch: int | None = Field(
        None,
        ge=1,
        description="Maximum requests that are sampled together; default: 64, on cuda 256, on a CPU 128 from 10 million parameters on.",
    )
    cache_mib: int | None = Field(
        None,
        ge=1,
        description="Maximum MiB for keys and values while sampling; default: what training leaves, at most a quarter of "
        "the memory, on a GPU half.",
    )
    quantize: Literal["4bit"] | None = Field(
        None,
        description="Store the weights below adapters with 4 bits each (NF4, as in QLoRA): about a quarter of bfloat16. Needs "
        "bitsandbytes, and a lora in every target.",
    )
    prefill_tokens: int = Field(
        1024,
        ge=1,
        description="Maximum prompt tokens in one forward pass of sampling; bounds how long other requests wait.",
    )
    memory_limit: str | None = Field(
        None,
        description="Maximum device memory of the job, such as 2GiB; a job that needs more is refused. "
        "Default: the free memory.",
    )

    @field_validator("memory_limit", mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        if value is not None:
            parse_size(value)
        return value if value is None else str(value)

    def torch_device(self) -> torch.device:
        """The device of the model."""
        import torch

        from ajet_local.modeling import default_device

        return default_device() if self.device == "auto" else torch.device(self.device)

    def computed_in(self, shape: Shape, progress: Progress, *, measured: bool = False) -> torch.dtype:
        """The data type in which a model of this shape computes. On a CPU, the processor decides, and one line says so; see
        `ajet_local.cpu.bfloat16`."""
        import torch

        if self.dtype != "auto":
            return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32
        kind = self.torch_device().type
        if kind != "cpu" or shape.parameters < SMALL:
            return torch.bfloat16 if kind == "cuda" else torch.float32
        native, why = bfloat16(shape.hidden, shape.inner, measured=measured)
        dtype = torch.bfloat16 if native else torch.float32
        progress.say(f"computing in {str(dtype).removeprefix('torch.')}: {why}; backbone.local.dtype sets it")
        return dtype

    def source(self, model: str, seed: int, progress: Progress) -> str:
        """What `model_source` finds or builds for a job's ``model``; torch has `threads` threads from then on. Raises ConfigError if
        the device is not there."""
        import torch

        there = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
        if self.device in there and not there[self.device]():
            raise ConfigError(
                "backbone.local.device",
                f"{self.device}, but PyTorch {torch.__version__} finds no such device here. `auto` takes what there is; `ajet doctor` "
                "lists it.",
            )
        if self.threads:
            torch.set_num_threads(self.threads)
        return model_source(model, seed, progress)

    def load(
        self,
        source: str | Path,
        seed: int,
        adapters: Mapping[str, LoraSettings] | None,
        dtype: torch.dtype,
    ) -> tuple[Any, Any, Adapters | None]:
        """Model, tokenizer and adapters, from a model folder, a checkpoint or a Hugging Face id.

        ``adapters`` are the wanted ones: those that a checkpoint contains are loaded, others are new. None means
        exactly those of the checkpoint. Raises ConfigError if the checkpoint has adapters, but none of the wanted ones.
        """
        import torch
        from transformers.utils.logging import disable_progress_bar

        from ajet_local.memory import share_heap
        from ajet_local.modeling import load_model
        from ajet_local.quantization import keep_exact
        from ajet_lora.adapters import prepare
        from ajet_lora.folders import saved_adapters

        share_heap()
        disable_progress_bar()  # a run shows its own progress
        saved = saved_adapters(source)
        if saved and adapters is not None and not saved.keys() & adapters.keys():
            raise ConfigError(
                "model",
                f"{source} contains the adapters of {', '.join(saved)}, but no target of the job with a lora has such a "
                "name. Rename the target, or merge them into a model: ajet export CHECKPOINT OUT.",
            )
        if self.quantize and not (saved if adapters is None else adapters):
            raise ConfigError(
                "backbone.local.quantize",
                "weights of 4 bits cannot be trained, only adapters above them. Give every target a lora, or "
                "remove the key.",
            )
        device = self.torch_device()
        model, tokenizer = load_model(_base(source), device, dtype, four_bits=self.quantize == "4bit")
        if not self.threads and device.type == "cpu" and model.num_parameters() < SMALL:
            torch.set_num_threads(1)
        prepared = prepare(model, saved, adapters, seed)
        if self.quantize:
            keep_exact(model)
        return model, tokenizer, prepared

    def local_engine(
        self,
        model: Any,
        tokenizer: Any,
        adapters: Adapters | None,
        *,
        deterministic: bool = False,
        cache_mib: int | None = None,
        context: int | None = None,
    ) -> LocalEngine:
        """A `LocalEngine` with these settings; ``cache_mib`` is the default of the setting of that name."""
        from ajet_local.engine import LocalEngine

        return LocalEngine(
            model,
            tokenizer,
            context,
            max_batch=self.max_batch or self._most_requests(model),
            cache_mib=self.cache_mib or cache_mib,
            prefill_tokens=self.prefill_tokens,
            deterministic=deterministic,
            adapters=adapters,
        )

    def _most_requests(self, model: Any) -> int:
        kind = self.torch_device().type
        return 64 if kind == "cpu" and model.num_parameters() < SMALL else MOST_REQUESTS.get(kind, 64)


class Local(OnDevice, Backbone):
    """Trains in this process, on a CPU or one GPU, with Hugging Face transformers."""

    name = "local"
    capabilities: ClassVar[Capabilities] = Capabilities(
        lora=True,
        several_targets=True,
        deterministic=True,
        truncated_sampling=True,
        keys=OPTIONAL_KEYS,
        needs=frozenset(get_args(Need)),
    )
    engine: str = Field(
        "auto",
        description="What samples in training: local, in this process, or vllm, which sleeps on the same GPU during updates. "
        "auto: vllm where it and CUDA are installed, else local.",
    )
    optimizer: Literal["adamw", "adamw_8bit"] = Field(
        "adamw",
        description="adamw_8bit stores AdamW's moments in 8 bits: a quarter of the memory. Needs bitsandbytes.",
    )
    micro_batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Maximum tokens of one forward pass in training; affects memory, not results. Default: at most 16384.",
    )
    gradient_checkpointing: bool | None = Field(
        None,
        description="Store only each layer's input and recompute the rest: less memory, more time. Default: only if the job does "
        "not fit otherwise.",
    )

    def run(self, job: Job) -> RunResult:
        """Train the job's model with the core's loop."""
        from ajet_local.memory import out_of_memory
        from ajet_local.modeling import first_line

        try:
            return self._run(job)
        except (MemoryError, RuntimeError, OSError) as error:
            if not out_of_memory(error):
                raise
            raise AjetError(
                "backbone.local",
                f"out of memory ({first_line(error)}). Set memory_limit below the free memory, or lower "
                "micro_batch_tokens, cache_mib or rollout.concurrency, or raise the limit of this process (ulimit -v).",
            ) from error

    def _run(self, job: Job) -> RunResult:
        from ajet.backbones import train_job, trainer_of
        from ajet_local.blueprint import Apart
        from ajet_local.modeling import reads_images

        config = job.config
        if self.engine != "auto":
            job.plugins.get(EnginePlugin, self.engine, "backbone.local.engine")  # raises if there is none
        name = self._engine_name(
            ranks=[target.lora.rank for target in job.targets if target.lora],
            asynchronous=config.train.asynchronous,
            deterministic=config.run.deterministic,
            truncated=config.rollout.sampling.exact,
            images=lambda: reads_images(_base(self.source(job.model, config.run.seed, job.progress))),
        )
        apart = None
        if name != self.name:
            plugin = job.plugins.get(EnginePlugin, name, "backbone.local.engine")()
            rollout = config.rollout
            apart = Apart(plugin=plugin, episodes=rollout.concurrency, context=rollout.context_length)
            if self.engine == "auto":
                job.progress.say(
                    f"sampling with {name}, which is faster on a GPU; backbone.local.engine=local samples in this process"
                )
        own = replace(job, backbone=self)  # another backbone may run this one
        return train_job(job, trainer_of(own, apart=apart))

    def _engine_name(
        self,
        *,
        ranks: Sequence[int],
        asynchronous: bool,
        deterministic: bool,
        truncated: bool,
        images: Callable[[], bool],
    ) -> str:
        """The engine of a job whose adapters have these ``ranks``; ``images`` tells whether its model reads them. Raises ConfigError
        if the job names one that cannot sample for it."""
        name = self.engine if self.engine != "auto" else VLLM if self._has_vllm() else self.name
        if name == self.name:
            return name
        reasons = {
            "its weights do not have the 4 bits that backbone.local.quantize asks for": self.quantize
            is not None,
            f"it computes adapters of a rank of at most {VLLM_RANK}": max(ranks, default=0) > VLLM_RANK,
            "it sleeps during updates, in which an asynchronous run samples": asynchronous,
            "its samples do not repeat bit for bit, which run.deterministic asks for": deterministic,
            "it does not say which tokens rollout.sampling keeps": truncated,
        }
        against = next((reason for reason, holds in reasons.items() if holds), "")
        if not against and images():
            against = "training on images has not been tried with it"
        if against and self.engine != "auto":
            raise ConfigError(
                "backbone.local.engine", f"{name} cannot sample for this job, as {against}. Use local."
            )
        return self.name if against else name

    def _has_vllm(self) -> bool:
        """Whether training on this machine samples with vLLM if nothing else is said."""
        if self.device not in ("auto", "cuda") or not (find_spec("vllm") and find_spec("ajet_vllm")):
            return False
        import torch

        return torch.cuda.is_available()

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
        apart: Apart | None = None,
    ) -> Trainer:
        """A `LocalTrainer` over a model folder, a checkpoint, a Hugging Face id or the starter recipe, for which the engine
        ``apart`` samples, if there is one. Raises ConfigError for what does not fit the model or into memory."""
        from ajet_local.blueprint import Blueprint
        from ajet_local.memory import shape_of

        if self.torch_device().type == "cpu" and (load := crowded()):
            progress.say(f"load {load}: other programs compute, so this run takes longer")
        source = self.source(model, seed, progress)
        shape = shape_of(_base(source))
        blueprint = Blueprint(
            local=self,
            source=source,
            shape=shape,
            compute=self.computed_in(shape, progress, measured=not deterministic),
            train=train,
            seed=seed,
            deterministic=deterministic,
            progress=progress,
            needs=needs,
            adapters=adapters,
            trained=adapters.keys() if trained is None else adapters.keys() & set(trained),
            apart=apart,
        )
        return blueprint.trainer()

    def demand(self, sizes: ModelSizes, number: int, program: int = 0, *, apart: bool) -> Demand:
        """The job's demand before sizes are chosen; arguments as of `Demand.of`."""
        demand = Demand.of(sizes, number, program, eight_bits=self.optimizer == "adamw_8bit")
        return replace(demand, apart=apart)

    def fitted(self, demand: Demand, limit: int, *, shared: bool) -> Demand:
        """The demand with the sizes that are set, and others that fit beside them."""
        given = Given(
            tokens=self.micro_batch_tokens,
            cache=self.cache_mib << 20 if self.cache_mib else None,
            checkpointing=self.gradient_checkpointing,
        )
        return fit(demand, limit, given, shared=shared)

    def layout(self, sizes: JobSizes, gpus: Gpus) -> Layout:
        """See `Backbone.layout`: engine and trainer in one process on one GPU."""
        number = FLOAT32 if self.dtype == "float32" else BFLOAT16
        limit = parse_size(self.memory_limit) if self.memory_limit else gpus.device.usable
        name = self._engine_name(
            ranks=(),  # the plan knows only their sizes
            asynchronous=sizes.asynchronous,
            deterministic=False,
            truncated=False,  # nor what the job samples with
            images=lambda: False,  # there is no estimate for models that read them
        )
        apart = name != self.name
        demand = replace(self.demand(sizes, number, apart=apart), cached=sizes.concurrency * sizes.context)
        demand = self.fitted(demand, limit, shared=False)
        return Layout(
            gpus=1,
            phases=tuple(Phase(title, parts, limit) for title, parts in demand.phases.items()),
            running=sizes.concurrency,
            cache=demand.cache,
            batch=VLLM_REQUESTS if apart else self.max_batch or MOST_REQUESTS["cuda"],
            pass_seconds=VLLM_PASS_SECONDS if apart else PASS_SECONDS,
            token_seconds=(0.0, 0.0) if apart else TOKEN_SECONDS,
            number=number,
            checkpointing=demand.training.checkpointing,
            settings={
                "backbone.local.engine": name,
                "backbone.local.micro_batch_tokens": str(demand.tokens),
                "backbone.local.gradient_checkpointing": str(demand.training.checkpointing).lower(),
                "backbone.local.cache_mib": str(max(demand.cache >> 20, 1)),
            },
        )

    def shape(self, model: str) -> Shape:
        """See `Backbone.shape`: transformers describes any model."""
        return _described(str(_base(model)))

    def alternatives(self) -> Sequence[Mapping[str, object]]:
        """See `Backbone.alternatives`: sizes that the user has set may be in the way of better ones."""
        names = ("micro_batch_tokens", "cache_mib")
        given = [{f"backbone.local.{name}": None} for name in names if getattr(self, name) is not None]
        recomputing = [{"backbone.local.gradient_checkpointing": value} for value in (True, False)]
        return [
            *given,
            *recomputing,
            {"backbone.local.engine": VLLM},
            {"backbone.local.optimizer": "adamw_8bit"},
        ]

    def export(self, checkpoint: Path, output: Path, target: str | None) -> None:
        """See `Backbone.export`."""
        from ajet_local.export import export

        export(checkpoint, output, target)


@cache
def _described(model: str) -> Shape:
    """The shape of a model from its configuration alone. Raises ConfigError if it has none."""
    from transformers import AutoConfig

    from ajet_local.memory import shape_of_config
    from ajet_local.modeling import first_line

    try:
        return shape_of_config(AutoConfig.from_pretrained(model, trust_remote_code=False))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {model}", f"{first_line(error)}. Check the path or the Hub id.") from error


def _base(source: str | Path) -> str | Path:
    """The base model of a checkpoint of adapters; any other source unchanged."""
    from ajet_lora.adapters import base_model

    return base_model(source)


class LocalEnginePlugin(OnDevice, EnginePlugin):
    """The local backbone's engine alone, to sample without training."""

    name = "local"
    backbone = "local"
    binding = frozenset({"device", "memory_limit"})

    def build(self, model: str, seed: int, progress: Progress) -> Engine:
        """A `LocalEngine` over a model folder, a checkpoint, a Hugging Face id or the starter recipe. Raises ConfigError if
        `memory_limit` is too low for it."""
        from ajet_local.memory import shape_of

        source = self.source(model, seed, progress)
        shape = shape_of(_base(source))
        compute = self.computed_in(shape, progress)
        cache_mib = self._cache_within(shape, compute)
        return self.local_engine(*self.load(source, seed, None, compute), cache_mib=cache_mib)

    def _cache_within(self, shape: Shape, compute: torch.dtype) -> int | None:
        """MiB of the cache that `memory_limit` leaves beside the weights, at most a quarter of it; None without a limit."""
        if self.memory_limit is None:
            return None
        from ajet_local.memory import resident

        limit = parse_size(self.memory_limit)
        program = resident() if self.torch_device().type == "cpu" else 0
        weights = shape.parameters * compute.itemsize
        room = min(limit // 4, limit - program - weights) >> 20
        if room < 1:
            raise ConfigError(
                "backbone.local.memory_limit",
                f"the model needs {format_size(weights)} beside the {format_size(program)} of the program, but there are "
                f"{format_size(limit)}. Raise the limit, or use a smaller model.",
            )
        return room

    def build_shared(
        self,
        model: str,
        seed: int,
        progress: Progress,
        *,
        dtype: str,
        cache: int,
        context: int,
        ranks: Mapping[str, int] = MappingProxyType({}),
    ) -> SharedEngine:
        """See `EnginePlugin.build_shared`."""
        import torch

        if ranks:
            raise ConfigError("the engine 'local' takes no adapters from a trainer elsewhere; vllm does.")

        source = self.source(model, seed, progress)
        loaded = self.load(source, seed, None, getattr(torch, dtype))
        return self.local_engine(*loaded, cache_mib=max(cache >> 20, 1), context=context)

    def tokenizer(self, model: str, seed: int) -> tuple[Any, str]:
        """See `EnginePlugin.tokenizer`."""
        recipe = find_recipe(model)
        if recipe:
            return recipe.tokenizer(seed)
        from ajet_local.modeling import load_tokenizer

        return load_tokenizer(_base(model))

    def vision(self, model: str, tokenizer: Any) -> Vision | None:
        """See `EnginePlugin.vision`."""
        recipe = find_recipe(model)
        if recipe:
            return recipe.vision(tokenizer)
        from ajet_local.processors import vision_of

        return vision_of(str(_base(model)), tokenizer)

    @classmethod
    def support(cls, model: str) -> Mapping[str, str]:
        """See `EnginePlugin.support`. Recipes that train a model of their own make one of a kind that works."""
        recipe = find_recipe(model)
        if isinstance(recipe, Pretrained):
            model = str(recipe.folder())
        elif recipe:
            return {}
        from transformers import AutoConfig

        from ajet_local.support import support_of

        try:
            return support_of(AutoConfig.from_pretrained(str(_base(model)), trust_remote_code=False))
        except AjetError as error:
            return {"engine": str(error)}
