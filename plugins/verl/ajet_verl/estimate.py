"""The memory and engines of a job on GPUs that need not be in this machine: shards of FSDP, and vLLM beside them.

All GPUs train, and all GPUs sample. While vLLM sleeps, its memory is the trainer's; while it samples, weights and optimizer stay
unless they are offloaded. verl's defaults that matter are those of its ppo_trainer.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.estimate.layout import JobSizes, Layout, Phase
from ajet.estimate.memory import BFLOAT16, FLOAT32, Training
from ajet.types import ConfigError
from ajet.utils.keys import leaves
from ajet_verl.lengths import GIB, MICRO_BATCH
from ajet_verl.scale import GPUS_OF_A_NODE, SLOTS, TENSOR_PARALLEL, UTILIZATION, tensor_parallel

if TYPE_CHECKING:
    from ajet.estimate.devices import Gpus
    from ajet_verl.settings import VerlSettings

ACTOR = "actor_rollout_ref.actor"
OFFLOAD = tuple(f"{ACTOR}.fsdp_config.{part}_offload" for part in ("param", "optimizer"))
SHARING = f"{ACTOR}.ulysses_sequence_parallel_size"
CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing"
REQUESTS = "actor_rollout_ref.rollout.max_num_seqs"
TOKENS = 16384
"""verl's default of `MICRO_BATCH`."""
COMPUTING = GIB
"""Bytes that vLLM keeps free of its share for a pass, besides weights and cache."""
ASLEEP = 3 * GIB // 2
"""Bytes that a sleeping vLLM keeps: CUDA's context and graphs."""
PASS_SECONDS = (0.0, 0.05e-3)
"""Time of a layer besides its computation: vLLM starts its kernels from CUDA graphs."""
EXCHANGE_SECONDS = (0.02e-3, 0.06e-3)
"""Time of a layer's two exchanges between the GPUs of an engine."""


def layout(sizes: JobSizes, settings: VerlSettings, gpus: Gpus) -> Layout:
    """See `ajet.Backbone.layout`. Raises ConfigError for engines and modes that it does not know."""
    if settings.engine != "dp":
        raise ConfigError(
            f"backbone.verl.engine: {settings.engine} has no estimate; only dp, which is FSDP, has."
        )
    if settings.mode == "separate_async":
        raise ConfigError(
            "backbone.verl.mode: separate_async has no estimate. Plan the job as sync or colocate_async."
        )
    if sizes.quantized:
        raise ConfigError(
            "backbone verl: adapters on weights of 4 bits have no estimate. Plan them with the backbone local."
        )
    given = dict(leaves(settings.explicit))
    memory, each = gpus.device.memory, min(gpus.count, GPUS_OF_A_NODE)
    share = int(memory * float(given.get(UTILIZATION, 0.5)))
    parallel = int(given.get(TENSOR_PARALLEL) or tensor_parallel(sizes.shape.parameters, each, share))
    engines = max(1, gpus.count // parallel)
    training, tokens = _training(sizes, given), _tokens(sizes, given)
    sampled = BFLOAT16 * sizes.shape.parameters
    # vLLM divides the heads of keys and values over the GPUs of an engine.
    cache = parallel * (share - COMPUTING) - sampled
    return Layout(
        gpus=gpus.count,
        phases=(
            Phase(
                "vLLM",
                {
                    "weights": sampled // parallel,
                    "passes": COMPUTING,
                    "cache of one context": sizes.shape.cached(sizes.context, BFLOAT16) // parallel,
                },
                share,
            ),
            Phase(
                "sampling",
                {**_lasting(training, gpus.count, given), "vLLM": share},
                gpus.device.usable,
            ),
            Phase(
                "training",
                {
                    **_lasting(training, gpus.count, {}),
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
        batch=int(given.get(REQUESTS, 1024)),
        pass_seconds=PASS_SECONDS if parallel == 1 else _sum(PASS_SECONDS, EXCHANGE_SECONDS),
        checkpointing=training.checkpointing,
        settings={
            f"backbone.verl.{TENSOR_PARALLEL}": str(parallel),
            f"backbone.verl.{UTILIZATION}": str(given.get(UTILIZATION, 0.5)),
            f"backbone.verl.{MICRO_BATCH}": str(tokens * _ranks(given)),
        },
    )


def alternatives(settings: VerlSettings) -> Sequence[Mapping[str, object]]:
    """See `ajet.Backbone.alternatives`."""
    return [
        *({f"backbone.verl.{TENSOR_PARALLEL}": gpus} for gpus in (2, 4, 8)),
        {f"backbone.verl.{OFFLOAD[1]}": True},
        {f"backbone.verl.{key}": True for key in OFFLOAD},
        *({f"backbone.verl.{UTILIZATION}": share} for share in (0.3, 0.7, 0.8)),
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


def _sum(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]


def _ranks(given: Mapping[str, Any]) -> int:
    return int(given.get(SHARING, 1))


def _tokens(sizes: JobSizes, given: Mapping[str, Any]) -> int:
    """Tokens that a GPU computes at once: verl's default, or its part of a whole context if that is more."""
    return int(given.get(MICRO_BATCH) or max(TOKENS, math.ceil(sizes.context / _ranks(given)))) // _ranks(
        given
    )


def _lasting(training: Training, gpus: int, given: Mapping[str, Any]) -> dict[str, int]:
    """What a GPU keeps from step to step, unless ``given`` moves it to the CPU. All weights are float32, also those below
    adapters."""
    weights = (training.shape.parameters + (training.adapters or 0)) * FLOAT32
    parts = {OFFLOAD[0]: ("weights", weights), OFFLOAD[1]: ("AdamW", training.moments)}
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
