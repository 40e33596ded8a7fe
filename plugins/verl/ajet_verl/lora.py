"""LoRA adapters on verl, one for each target of the job: the keys of verl for them, and what excludes them.

verl itself knows one adapter, "default". The workers' engine (`workers`) creates ours, vLLM's servers (`lora_server`)
answer each call with that of its target, and checkpoints have them in peft's layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ajet import ConfigError
from ajet_lora.folders import saved_adapters
from ajet_verl.keys import ACTOR

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet import Job

ADAPTERS = "adapters"
"""What vLLM's workers receive instead of verl's configuration of one adapter: a configuration for each target."""
ADAPTER = "adapter"
"""Field of a row, int64[1]: the number of the adapter that it trains. Only if there are several."""
LORA = "actor_rollout_ref.model.lora"
"""verl's key for options of adapters. Below it stand ``adapters``, the settings of each one by its target, ``seed`` and
``folder``, that of the model's own adapters."""
NOWHERE = "sent by the trainer"
"""Where vLLM would look for the files of an adapter."""
MAX_RANK = 512
"""The largest rank that vLLM computes."""


def placed(job: Job, begin: str | None) -> dict[str, Any]:
    """verl's keys for the adapters of the job's targets; {} without any. ``begin`` is from `folder`."""
    adapters = {
        target.name: {**target.lora.model_dump(mode="json"), "trained": target.trained}
        for target in job.targets
        if target.lora
    }
    if not adapters:
        return {}
    return {
        "actor_rollout_ref.model.lora_rank": max(settings["rank"] for settings in adapters.values()),
        LORA: {"adapters": adapters, "seed": job.config.run.seed, "folder": begin},
        "actor_rollout_ref.rollout.load_format": "auto",  # vLLM reads the base model itself
        f"{ACTOR}.checkpoint.save_lora_only": True,
    }


def of(model: Any) -> dict[str, Any]:
    """The adapters in verl's configuration of a model, by target: their settings, and whether they are trained."""
    return _plain(model.lora).get("adapters") or {}


def _plain(node: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    values: dict[str, Any] = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    return values


def check(config: DictConfig) -> None:
    """Raise ConfigError if another key excludes the job's adapters."""
    adapters = of(config.actor_rollout_ref.model)
    if not adapters:
        return
    name, settings = max(adapters.items(), key=lambda item: int(item[1]["rank"]))
    if settings["rank"] > MAX_RANK:
        raise ConfigError(f"targets.{name}.lora.rank", f"vLLM computes ranks of at most {MAX_RANK}.")
    if reason := obstacle(config, several=len(adapters) > 1):
        raise ConfigError(
            f"targets.{name}.lora", f"not possible with backbone.verl.{reason}. Change that key."
        )


def obstacle(config: DictConfig, *, several: bool) -> str:
    """The key that excludes adapters, with its value; "" if there is none."""
    from omegaconf import OmegaConf

    excluded = [
        ("model_engine", "dp", "engine"),
        ("trainer.v1.trainer_mode", ("sync", "colocate_async"), "mode"),
        (f"{ACTOR}.strategy", "fsdp2", ""),
        ("actor_rollout_ref.rollout.name", "vllm", ""),
        ("actor_rollout_ref.rollout.disaggregation.enabled", False, ""),
    ]
    if several:
        excluded.append((f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size", 1, ""))
    for key, allowed, name in excluded:
        value = OmegaConf.select(config, key)
        if value not in (allowed if isinstance(allowed, tuple) else (allowed,)):
            return f"{name or key}: {str(value).lower()}"
    return ""


def base(model: str) -> str:
    """The base model of a folder with adapters; any other model unchanged."""
    saved = saved_adapters(model)
    if not saved:
        return model
    from ajet_lora.adapters import base_of

    return base_of(next(iter(saved.values())))


def folder(model: str, job: Job) -> str | None:
    """The model's folder if it has adapters to begin with, else None. Raises ConfigError if the job has no targets for them."""
    saved = saved_adapters(model)
    if saved and not saved.keys() & {target.name for target in job.targets if target.lora}:
        raise ConfigError(
            "model",
            f"{model} contains the adapters of {', '.join(saved)}, but no target of the job with a lora has such a "
            "name. Rename the target, or merge them into a model: ajet export CHECKPOINT OUT.",
        )
    return model if saved else None
