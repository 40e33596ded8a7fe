"""The GPUs of a job: defaults that depend on them, on the size of the model and on the batch, and the estimate of what a job
takes on GPUs that need not be in this machine.

`--dry-run` prints each default with its reason. In the estimate, all GPUs train with shards of FSDP, and all GPUs sample. While vLLM
sleeps, its memory is the trainer's; while it samples, weights and optimizer stay unless they are offloaded. verl's defaults
that matter are those of its ppo_trainer.yaml.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ajet import ConfigError, find_recipe
from ajet.estimate.devices import ASLEEP, USABLE
from ajet.estimate.layout import JobSizes, Layout, StepPhase
from ajet.estimate.shape import BFLOAT16, FLOAT32
from ajet.utils.keys import leaves
from ajet_trees.memory import Training
from ajet_verl.keys import ACTOR, ROLLOUT
from ajet_verl.lengths import GIB, MICRO_BATCH, USUAL, architecture

if TYPE_CHECKING:
    from ajet.estimate.devices import Gpus
    from ajet.job.config import JobConfig
    from ajet_verl.settings import VerlSettings

TENSOR_PARALLEL = f"{ROLLOUT}.tensor_model_parallel_size"
UTILIZATION = f"{ROLLOUT}.gpu_memory_utilization"
SLOTS = 256
"""Episodes that one vLLM server answers at once without most of them waiting for room in its cache."""
OF_A_RUNNER = 64
"""Episodes that one runner, a Python process, keeps going."""
LARGE = 100_000_000
"""Parameters from which `LEARNING_RATE` is the default."""
LEARNING_RATE = 1e-6
LORA_LEARNING_RATE = 1e-5
"""Ten times as high: Schulman et al., "LoRA Without Regret" (2025), found this ratio of the best rates for models of any size."""
USUAL_MEMORY = 80 * GIB
"""Bytes of a GPU, where this machine has none to look at."""
GPUS_OF_A_NODE = 8
"""verl's default of trainer.n_gpus_per_node."""
OFFLOAD = tuple(f"{ACTOR}.fsdp_config.{part}_offload" for part in ("param", "optimizer"))
SHARING = f"{ACTOR}.ulysses_sequence_parallel_size"
CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing"
REQUESTS = f"{ROLLOUT}.max_num_seqs"
ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
PADDING = "actor_rollout_ref.model.use_remove_padding"
SENDER = f"{ROLLOUT}.checkpoint_engine.backend"
"""How verl sends new weights to servers that have GPUs of their own."""
COMPUTING = GIB
"""Bytes that vLLM keeps free of its share for a pass, besides weights and cache."""
SHARES = (0.2, 0.85)
"""Bounds of vLLM's share of a GPU where it is chosen. verl's default is a half."""
PASS_SECONDS = (0.0, 0.05e-3)
"""Time of a layer besides its computation: vLLM starts its kernels from CUDA graphs."""
PASS_SECONDS_TOGETHER = (PASS_SECONDS[0] + 0.02e-3, PASS_SECONDS[1] + 0.06e-3)
"""The same with a layer's two exchanges between the GPUs of an engine."""


def on_gpus() -> bool:
    """Whether the job is for GPUs: verl reads another platform from VERL_PLATFORM."""
    return "VERL_PLATFORM" not in os.environ


def gpu_count() -> int:
    """How many GPUs this machine has."""
    if not on_gpus():
        return 0
    import torch

    return torch.cuda.device_count()


def gpu_memory() -> int | None:
    """Bytes of this machine's first GPU, None without one."""
    if not gpu_count():
        return None
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory)


def defaults(config: JobConfig, settings: VerlSettings) -> dict[str, tuple[object, str]]:
    """Dotted keys of the job with their default and its reason. Raises ConfigError if the model cannot be read."""
    return {key: (value, why) for key, value, why in _defaults(config, settings)}


def _defaults(config: JobConfig, settings: VerlSettings) -> Iterator[tuple[str, object, str]]:
    given = dict(leaves(settings.explicit))
    has_gpus = on_gpus()
    parameters = (
        0 if find_recipe(config.model) else architecture(config.model, settings.trusts_model).parameters
    )
    size = f"{parameters / 1e9:.1f}B parameters"
    adapters = any(target.lora for target in config.targets.values())
    nodes, each = _gpus_of_servers(given, settings)

    parallel = int(given.get(TENSOR_PARALLEL, 1))
    if has_gpus and parameters:
        memory = gpu_memory() or USUAL_MEMORY
        seen = "" if gpu_memory() else ", assuming GPUs of 80 GiB"
        weights, moments = FLOAT32 * parameters, 0 if adapters else 2 * FLOAT32 * parameters
        # Also where servers have GPUs of their own: verl has further ones on the trainer's, which it wakes for validation.
        share = utilization(weights, moments, _gpus_of_trainer(given), memory, given)
        if given.get(UTILIZATION) is None and settings.engine == "dp":
            yield f"backbone.verl.{UTILIZATION}", share, f"what weights and optimizer leave of a GPU{seen}"
        else:
            share = float(given.get(UTILIZATION) or 0.5)
        if TENSOR_PARALLEL not in given:
            parallel = tensor_parallel(parameters, each, share * memory)
            if parallel > 1:
                why = f"{size}; weights take at most half of vLLM's memory{seen}"
                yield f"backbone.verl.{TENSOR_PARALLEL}", parallel, why

    servers = max(1, nodes * each // parallel)
    batch = config.train.batch_size * config.rollout.group_size
    concurrency = min(batch, SLOTS * servers)
    if concurrency > config.rollout.concurrency:
        yield (
            "rollout.concurrency",
            concurrency,
            "all episodes of a step"
            if concurrency == batch
            else f"{SLOTS} for each of {servers} vLLM servers",
        )
    else:
        concurrency = config.rollout.concurrency

    all_nodes = int(given.get("trainer.nnodes", 1)) + (nodes if settings.mode == "separate_async" else 0)
    cores = os.cpu_count() or 1
    runners = min(math.ceil(concurrency / (all_nodes * OF_A_RUNNER)), max(1, cores // 4))
    address = config.rollout.gateway_address
    if runners > settings.runners and not (address.port or address.url):  # each runner has a gateway
        yield (
            "backbone.verl.runners",
            runners,
            f"{OF_A_RUNNER} episodes for each, on at most a quarter of {cores} cores",
        )

    if parameters >= LARGE:
        yield (
            "train.learning_rate",
            LORA_LEARNING_RATE if adapters else LEARNING_RATE,
            f"{'adapters' if adapters else 'all weights'} of a model with {size}",
        )
    if has_gpus:
        yield (
            "train.correction",
            "truncated",
            "on GPUs, vLLM and the workers compute different logprobs",
        )
        yield from _instead_of_missing(given, settings)


def _instead_of_missing(
    given: Mapping[str, Any], settings: VerlSettings
) -> Iterator[tuple[str, object, str]]:
    """Defaults in the place of verl's, which need flash attention, or are for servers on the trainer's GPUs. Raises
    ConfigError if cupy is missing where NCCL sends the weights."""
    if settings.engine == "dp" and ATTENTION not in given and not find_spec("flash_attn"):
        why = "flash-attn is not installed, so rows are padded and slower"
        yield f"backbone.verl.{ATTENTION}", "sdpa", why
        yield f"backbone.verl.{PADDING}", False, why
    if settings.mode == "separate_async":
        yield f"backbone.verl.{SENDER}", "nccl", "weights go to the servers' own GPUs"
        if given.get(SENDER, "nccl") == "nccl" and not find_spec("cupy"):
            raise ConfigError(
                "backbone.verl.mode",
                "separate_async sends weights with NCCL, for which verl needs cupy: pip install 'verl[cupy-cu130]', or set "
                f"backbone.verl.{SENDER}.",
            )


def _gpus_of_trainer(given: Mapping[str, Any]) -> int:
    each = int(given.get("trainer.n_gpus_per_node") or gpu_count() or GPUS_OF_A_NODE)
    return int(given.get("trainer.nnodes", 1)) * each


def _gpus_of_servers(given: Mapping[str, Any], settings: VerlSettings) -> tuple[int, int]:
    """Nodes with vLLM servers, and the GPUs of each."""
    each = int(given.get("trainer.n_gpus_per_node") or gpu_count() or GPUS_OF_A_NODE)
    if settings.mode == "separate_async":
        return int(given.get(f"{ROLLOUT}.nnodes", 0)), int(given.get(f"{ROLLOUT}.n_gpus_per_node", each))
    return int(given.get("trainer.nnodes", 1)), each


def utilization(weights: int, moments: int, gpus: int, memory: int, given: Mapping[str, Any]) -> float:
    """vLLM's share of a GPU's ``memory`` (bytes), in hundredths: all that the trainer's part of ``weights`` and ``moments`` (bytes,
    divided over ``gpus``) leaves while vLLM samples. verl's default where that is too little for any job."""
    if (chosen := given.get(UTILIZATION)) is not None:
        return float(chosen)
    kept = sum(_lasting(weights, moments, gpus, given).values())
    least, most = SHARES
    share = math.floor(100 * (USABLE - (kept + ASLEEP) / memory)) / 100
    return min(share, most) if share >= least else 0.5


def tensor_parallel(parameters: int, each: int, share: float) -> int:
    """The fewest GPUs, at most the ``each`` of a node, whose ``share`` for vLLM (bytes) is twice the weights, so that the other
    half is the cache's."""
    parallel = 1
    while 2 * 2 * parameters > share * parallel and each % (2 * parallel) == 0:
        parallel *= 2
    return parallel


def layout(sizes: JobSizes, settings: VerlSettings, gpus: Gpus) -> Layout:
    """See `ajet.Backbone.layout`. Raises ConfigError for engines and modes that it does not know."""
    if settings.engine != "dp":
        raise ConfigError(
            "backbone.verl.engine", f"{settings.engine} has no estimate; only dp, which is FSDP, has."
        )
    if settings.mode == "separate_async":
        raise ConfigError(
            "backbone.verl.mode", "separate_async has no estimate. Plan the job as sync or colocate_async."
        )
    if sizes.quantized:
        raise ConfigError(
            "backbone verl: adapters on weights of 4 bits have no estimate. Plan them with the backbone local."
        )
    given = dict(leaves(settings.explicit))
    memory, each = gpus.device.memory, min(gpus.count, GPUS_OF_A_NODE)
    training, tokens = _training(sizes, given), _tokens(sizes, given)
    weights = (sizes.shape.parameters + (training.adapters or 0)) * FLOAT32  # also those below adapters
    share_of_gpu = utilization(weights, training.moments, gpus.count, memory, given)
    share = int(memory * share_of_gpu)
    parallel = int(given.get(TENSOR_PARALLEL) or tensor_parallel(sizes.shape.parameters, each, share))
    engines = max(1, gpus.count // parallel)
    sampled = BFLOAT16 * sizes.shape.parameters
    # vLLM divides the heads of keys and values over the GPUs of an engine.
    cache = parallel * (share - COMPUTING) - sampled
    return Layout(
        gpus=gpus.count,
        phases=(
            StepPhase(
                "vLLM",
                {
                    "weights": sampled // parallel,
                    "passes": COMPUTING,
                    "cache of one context": sizes.shape.cached(sizes.context, BFLOAT16) // parallel,
                },
                share,
            ),
            StepPhase(
                "sampling",
                {**_lasting(weights, training.moments, gpus.count, given), "vLLM": share},
                gpus.device.usable,
            ),
            StepPhase(
                "training",
                {
                    **_lasting(weights, training.moments, gpus.count, {}),
                    "gradients": training.gradients // gpus.count,
                    **_reference(sizes, gpus.count),
                    "gathered weights": _gathered(training),
                    f"activations of {tokens} tokens": training.activations(tokens),
                    "vLLM asleep": ASLEEP,
                },
                gpus.device.usable,
            ),
        ),
        running=sizes.concurrency
        if sizes.concurrency_set
        else max(sizes.concurrency, min(sizes.episodes, SLOTS * engines)),
        cache=max(cache, 0),
        engines=engines,
        engine_gpus=parallel,
        batch=int(given.get(REQUESTS, 256)),
        pass_seconds=PASS_SECONDS if parallel == 1 else PASS_SECONDS_TOGETHER,
        checkpointing=training.checkpointing,
        settings={
            f"backbone.verl.{TENSOR_PARALLEL}": str(parallel),
            f"backbone.verl.{UTILIZATION}": str(share_of_gpu),
            f"backbone.verl.{MICRO_BATCH}": str(tokens * _ranks(given)),
        },
    )


def alternatives(settings: VerlSettings) -> Sequence[Mapping[str, object]]:
    """See `ajet.Backbone.alternatives`: a share that the user has set may be in the way of a better one."""
    given = [key for key, value in leaves(settings.explicit) if key == UTILIZATION and value is not None]
    return [
        *({f"backbone.verl.{key}": None} for key in given),
        *({f"backbone.verl.{TENSOR_PARALLEL}": gpus} for gpus in (2, 4, 8)),
        {f"backbone.verl.{OFFLOAD[1]}": True},
        {f"backbone.verl.{key}": True for key in OFFLOAD},
        *({f"backbone.verl.{SHARING}": ranks} for ranks in (2, 4, 8)),
    ]


def _training(sizes: JobSizes, given: Mapping[str, Any]) -> Training:
    return Training(
        shape=sizes.shape,
        number=BFLOAT16,
        stream=BFLOAT16,
        adapters=sizes.adapted,
        trained=sizes.learning,
        checkpointing=bool(given.get(CHECKPOINTING, True)),
        entropy=sizes.entropy,
        exact_logits=False,
    )


def _ranks(given: Mapping[str, Any]) -> int:
    return int(given.get(SHARING, 1))


def _tokens(sizes: JobSizes, given: Mapping[str, Any]) -> int:
    """Tokens that a GPU computes at once: verl's default, or its part of a whole context if that is more."""
    return int(given.get(MICRO_BATCH) or max(USUAL, math.ceil(sizes.context / _ranks(given)))) // _ranks(
        given
    )


def _lasting(weights: int, moments: int, gpus: int, given: Mapping[str, Any]) -> dict[str, int]:
    """What a GPU keeps of these bytes from step to step, unless ``given`` moves it to the CPU."""
    parts = {OFFLOAD[0]: ("weights", weights), OFFLOAD[1]: ("AdamW", moments)}
    return {name: size // gpus for key, (name, size) in parts.items() if not given.get(key)}


def _gathered(training: Training) -> int:
    """Bytes of the weights that a GPU has whole at once: embedding and head, and two layers, of which one is fetched."""
    shape = training.shape
    ends = shape.embedding * (1 if shape.tied else 2)
    return BFLOAT16 * (ends + 2 * shape.linear_parameters // shape.layers)


def _reference(sizes: JobSizes, gpus: int) -> dict[str, int]:
    """A GPU's part of the reference model, if there is one."""
    if sizes.reference is not None:
        weights = sizes.reference.parameters
    elif sizes.keeps_first and not sizes.adapters:
        weights = sizes.shape.parameters
    else:
        return {}
    return {"the reference": weights * FLOAT32 // gpus}
