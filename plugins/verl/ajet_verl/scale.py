"""Defaults that depend on the size of the model, on the GPUs and on the batch. `--dry-run` prints each with its reason."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ajet.job.models import find_recipe
from ajet.utils.keys import leaves
from ajet_verl import machine
from ajet_verl.lengths import GIB, architecture

if TYPE_CHECKING:
    from ajet.job.config import JobConfig
    from ajet_verl.settings import VerlSettings

ROLLOUT = "actor_rollout_ref.rollout"
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


def defaults(config: JobConfig, settings: VerlSettings) -> dict[str, tuple[object, str]]:
    """Dotted keys of the job with their default and its reason. Raises ConfigError if the model cannot be read."""
    return {key: (value, why) for key, value, why in _defaults(config, settings)}


def _defaults(config: JobConfig, settings: VerlSettings) -> Iterator[tuple[str, object, str]]:
    given = dict(leaves(settings.explicit))
    on_gpus = machine.on_gpus()
    parameters = (
        0 if find_recipe(config.model) else architecture(config.model, settings.trusts_model).parameters
    )
    size = f"{parameters / 1e9:.1f}B parameters"
    nodes, each = _gpus_of_servers(given, settings)

    parallel = int(given.get(TENSOR_PARALLEL, 1))
    if on_gpus and parameters and TENSOR_PARALLEL not in given:
        parallel, why = _tensor_parallel(parameters, each, given)
        if parallel > 1:
            yield f"backbone.verl.{TENSOR_PARALLEL}", parallel, f"{size}; {why}"

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
    if runners > settings.runners:
        yield (
            "backbone.verl.runners",
            runners,
            f"{OF_A_RUNNER} episodes for each, on at most a quarter of {cores} cores",
        )

    if parameters >= LARGE:
        adapters = any(target.lora for target in config.targets.values())
        yield (
            "train.learning_rate",
            LORA_LEARNING_RATE if adapters else LEARNING_RATE,
            f"{'adapters' if adapters else 'all weights'} of a model with {size}",
        )
    if on_gpus:
        yield (
            "train.correction",
            "truncated",
            "on GPUs, vLLM and the workers compute different logprobs",
        )


def _gpus_of_servers(given: Mapping[str, Any], settings: VerlSettings) -> tuple[int, int]:
    """Nodes with vLLM servers, and the GPUs of each."""
    each = int(given.get("trainer.n_gpus_per_node") or machine.gpu_count() or GPUS_OF_A_NODE)
    if settings.mode == "separate_async":
        return int(given.get(f"{ROLLOUT}.nnodes", 0)), int(given.get(f"{ROLLOUT}.n_gpus_per_node", each))
    return int(given.get("trainer.nnodes", 1)), each


def _tensor_parallel(parameters: int, each: int, given: Mapping[str, Any]) -> tuple[int, str]:
    memory = machine.gpu_memory()
    share = (memory or USUAL_MEMORY) * float(given.get(UTILIZATION, 0.5))
    seen = "" if memory else ", assuming GPUs of 80 GiB"
    return tensor_parallel(parameters, each, share), f"weights take at most half of vLLM's memory{seen}"


def tensor_parallel(parameters: int, each: int, share: float) -> int:
    """The fewest GPUs, at most the ``each`` of a node, whose ``share`` for vLLM (bytes) is twice the weights, so that the other
    half is the cache's."""
    parallel = 1
    while 2 * 2 * parameters > share * parallel and each % (2 * parallel) == 0:
        parallel *= 2
    return parallel
