"""The `local` backbone and engine: how they run, what they need of a machine, and which engine samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from ajet import (
    AjetError,
    ConfigError,
    Engine,
    EnginePlugin,
    Trainer,
    find_recipe,
)
from ajet.estimate.layout import JobSizes, Layout, StepPhase
from ajet.estimate.shape import BFLOAT16, FLOAT32
from ajet.interfaces.backbone import OPTIONAL_KEYS, Capabilities, Need, RunResult
from ajet_local.cpu import crowded
from ajet_local.demand import format_size, parse_size
from ajet_local.pretrained import Pretrained
from ajet_local.settings import MOST_REQUESTS, LocalSettings, OnDevice

if TYPE_CHECKING:
    import torch

    from ajet import Job
    from ajet.estimate.devices import Gpus
    from ajet.estimate.shape import ModelShape
    from ajet.interfaces.engine import SharedEngine
    from ajet.interfaces.progress import Progress
    from ajet.interfaces.vision import Vision
    from ajet.learning.settings import LoraSettings, TrainSettings
    from ajet_local.blueprint import Apart

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


class Local(LocalSettings):
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

    def run(self, job: Job) -> RunResult:
        """Train the job's model with the core's loop."""
        job.progress.say(f"loading {job.model}")
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
        from ajet import train_job
        from ajet.runs.runtime import trainer_of
        from ajet_local.blueprint import Apart
        from ajet_local.modeling import reads_images

        config = job.config
        if self.engine != "auto":
            job.plugins.get(EnginePlugin, self.engine, "backbone.local.engine")  # raises if there is none
        name = self._engine_name(
            ranks=[target.lora.rank for target in job.targets if target.lora],
            deterministic=config.run.deterministic,
            truncated=config.rollout.sampling.exact,
            images=lambda: reads_images(_base(self.source(job.model, config.run.seed, job.progress))),
        )
        self._check_cache(name, config.train.correction)
        own = replace(job, backbone=self)  # another backbone may run this one
        with ExitStack() as ends:
            apart = None
            if name != self.name:
                own_fields = {} if self.kv_cache_dtype == "auto" else {"kv_cache_dtype": self.kv_cache_dtype}
                plugin = job.plugins.build(
                    EnginePlugin, {"type": name, **own_fields}, "backbone.local.engine"
                )
                rollout = config.rollout
                apart = Apart(
                    plugin=plugin, episodes=rollout.concurrency, context=rollout.context_length, ends=ends
                )
                if self.engine == "auto":
                    job.progress.say(
                        f"sampling with {name}, which is faster on a GPU; backbone.local.engine=local samples in this process"
                    )
            return train_job(job, trainer_of(own, apart=apart))

    def _engine_name(
        self,
        *,
        ranks: Sequence[int],
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

    def _check_cache(self, engine: str, correction: str) -> None:
        """Raise ConfigError for a cache of 8 bits that ``engine`` does not have, or whose logprobs nothing corrects."""
        if self.kv_cache_dtype == "auto":
            return
        if engine == self.name:
            problem = "only vllm has such a cache, and local samples for this job. Remove the key."
        elif correction == "off":
            problem = "the sampled logprobs then differ from the trainer's. Set train.correction=truncated."
        else:
            return
        raise ConfigError("backbone.local.kv_cache_dtype", f"{self.kv_cache_dtype}: {problem}")

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

    def layout(self, sizes: JobSizes, gpus: Gpus) -> Layout:
        """See `Backbone.layout`: engine and trainer in one process on one GPU."""
        number = FLOAT32 if self.dtype == "float32" else BFLOAT16
        limit = parse_size(self.memory_limit) if self.memory_limit else gpus.device.usable
        name = self._engine_name(
            ranks=(),  # the plan knows only their sizes
            deterministic=False,
            truncated=False,  # nor what the job samples with
            images=lambda: False,  # there is no estimate for models that read them
        )
        apart = name != self.name
        demand = replace(self.demand(sizes, number, apart=apart), cached=sizes.concurrency * sizes.context)
        demand = self.fitted(demand, limit, shared=False)
        return Layout(
            gpus=1,
            phases=tuple(StepPhase(title, parts, limit) for title, parts in demand.phases.items()),
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

    def shape(self, model: str) -> ModelShape:
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
def _described(model: str) -> ModelShape:
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

    def _cache_within(self, shape: ModelShape, compute: torch.dtype) -> int | None:
        """MiB of the cache that `memory_limit` leaves beside the weights, at most a quarter of it; None without a limit."""
        if self.memory_limit is None:
            return None
        from ajet_local.memory import program_memory

        limit = parse_size(self.memory_limit)
        program = program_memory(self.torch_device())
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
        requests: int | None = None,
        sleeps: bool = True,
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
