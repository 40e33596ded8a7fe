"""The settings of the `local` backbone and engine, and what they say of device, data type, memory and engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from ajet import Backbone, ConfigError, Plugin, model_source
from ajet.estimate.layout import ModelSizes
from ajet_local.cpu import SMALL, bfloat16
from ajet_local.demand import Demand, GivenSizes, fit, parse_size

if TYPE_CHECKING:
    import torch

    from ajet.estimate.shape import ModelShape
    from ajet.interfaces.progress import Progress
    from ajet.learning.settings import LoraSettings
    from ajet_local.engine import LocalEngine
    from ajet_lora.adapters import Adapters

Device = Literal["auto", "cpu", "cuda", "mps"]
MOST_REQUESTS = {"cuda": 256, "cpu": 128}
"""Default of `max_batch` by kind of device; 64 on others, and for models below `SMALL` on a CPU. The cache bounds them as well."""


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

    def computed_in(self, shape: ModelShape, progress: Progress, *, measured: bool = False) -> torch.dtype:
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
        from ajet_lora.adapters import base_model, prepare
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
        model, tokenizer = load_model(base_model(source), device, dtype, four_bits=self.quantize == "4bit")
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


class LocalSettings(OnDevice, Backbone):
    """The settings of the backbone."""

    engine: str = Field(
        "auto",
        description="What samples in training: local, in this process, or vllm, which sleeps on the same GPU during updates, "
        "unless the run is asynchronous. "
        "auto: vllm where it and CUDA are installed, else local.",
    )
    kv_cache_dtype: Literal["auto", "fp8"] = Field(
        "auto",
        description="fp8: vLLM keeps keys and values with 8 bits each, half of bfloat16's. Its logprobs then differ from the "
        "trainer's, so this needs train.correction: truncated.",
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
    fused: bool = Field(
        False,
        description="Compute the layers in training, except their attention, and the softmax of the logits with fewer kernels, which "
        "torch compiles at the start. Refused if logprobs or gradients change.",
    )

    def demand(self, sizes: ModelSizes, number: int, program: int = 0, *, apart: bool) -> Demand:
        """The job's demand before sizes are chosen; arguments as of `Demand.of`."""
        eight_bits = self.optimizer == "adamw_8bit"
        demand = Demand.of(sizes, number, program, eight_bits=eight_bits, fused=self.fused)
        return replace(demand, apart=apart, eight_bit_cache=self.kv_cache_dtype == "fp8")

    def fitted(self, demand: Demand, limit: int, *, shared: bool) -> Demand:
        """The demand with the sizes that are set, and others that fit beside them."""
        given = GivenSizes(
            tokens=self.micro_batch_tokens,
            cache=self.cache_mib << 20 if self.cache_mib else None,
            checkpointing=self.gradient_checkpointing,
        )
        return fit(demand, limit, given, shared=shared)
