"""The classes of AgentScope's tuner as keys of a job."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

from ajet import AjetError, Algorithm, ConfigError
from ajet.interfaces.helpers import nearest
from ajet.job.config import Layers
from ajet.plugins import load_plugins
from ajet_agentscope.tuner.config import AlgorithmConfig, DatasetConfig, TunerModelConfig
from ajet_trinity_files.files import TrinityFile
from ajet_trinity_files.keys import NEAREST, SAME

log = logging.getLogger("ajet")

TINKER = "tinker"
VERL = "verl"
WHY: Mapping[str, str] = {
    "remax": "needs a greedy answer for each task, which AgentJet does not sample",
    "reinforce": "is in the plugin ajet-plugin-online, which is not installed",
    "mix": "learns from transcripts, too",
    "mix_chord": "learns from transcripts, too",
    "sft": "learns from transcripts, not from rewards: use ajet.sft",
}
"""Why an algorithm of Trinity's is refused, if it is in AgentJet in another form, or cannot be there."""


class JobKeys:
    """Keys of a job, and the fields that set them. A field that the user has set is stronger than the job file; the default
    of a field is weaker. So are Trinity's defaults, in a file of Trinity-RFT."""

    def __init__(self, file: Layers, trinity: TrinityFile | None = None) -> None:
        self._file = file
        self.values: dict[str, Any] = {}
        if trinity:
            selector = {"task.selector": trinity.selector} if trinity.selector else {}
            self.values |= {**selector, **trinity.implied, **trinity.values}
        self.fields: dict[str, str] = (
            {k: f"{trinity.path}: {of}" for k, of in trinity.sources.items()} if trinity else {}
        )
        """Key -> the field that set it, such as ``TunerModelConfig.max_model_len``."""

    def lay(self, config: BaseModel, field: str, key: str, value: Any) -> None:
        """Set a key to the value that a field stands for."""
        if field in config.model_fields_set or self._file.source_of(key) == "default":
            self.values[key] = value
            self.fields[key] = f"{type(config).__name__}.{field}"

    @contextmanager
    def named_by_field(self) -> Iterator[None]:
        """A block whose errors name the field that set their key, where a field did."""
        try:
            yield
        except AjetError as error:
            keys = [key for key in self.fields if f"{error.key}.".startswith(f"{key}.")]
            if key := max(keys, key=len, default=""):
                error.where = f"{self.fields[key]} ({key}){error.args[0].removeprefix(key)}"
            raise


def algorithm_keys(keys: JobKeys, config: AlgorithmConfig) -> None:
    """The keys of an algorithm. Raises ConfigError for one that AgentJet does not have."""
    keys.lay(config, "algorithm_type", "train.algorithm", algorithm(config.algorithm_type))
    keys.lay(config, "learning_rate", "train.learning_rate", config.learning_rate)
    keys.lay(config, "group_size", "rollout.group_size", config.group_size)
    keys.lay(config, "batch_size", "train.batch_size", config.batch_size)
    keys.lay(config, "save_interval_steps", "train.save_every", config.save_interval_steps)
    keys.lay(config, "eval_interval_steps", "eval.every", config.eval_interval_steps)


def steps_key(keys: JobKeys, config: DatasetConfig, records: int, batch_size: int) -> None:
    """How long to train: ``total_steps``, else ``total_epochs`` passes over the records."""
    if config.total_steps is not None:
        keys.lay(config, "total_steps", "train.steps", config.total_steps)
    else:
        steps = math.ceil(records * config.total_epochs / batch_size)
        keys.lay(config, "total_epochs", "train.steps", steps)


def model_keys(keys: JobKeys, config: TunerModelConfig, backbone: str) -> None:
    """The keys of the trained model. Raises ConfigError for what training or the backbone cannot honour."""
    if config.top_p < 1:
        raise ConfigError(
            f"TunerModelConfig.top_p: {config.top_p} removes tokens from the distribution that the model samples from, so training "
            "would learn from wrong probabilities. Remove it."
        )
    if config.temperature == 0:
        raise ConfigError(
            "TunerModelConfig.temperature: with 0, all episodes of a task are the same, so there is nothing to learn. Raise it."
        )
    keys.lay(config, "model_path", "model", config.model_path)
    keys.lay(config, "max_model_len", "rollout.context_length", config.max_model_len)
    for section in ("rollout", "eval"):
        keys.lay(config, "temperature", f"{section}.sampling.temperature", config.temperature)
        most = min(config.max_tokens, config.max_model_len)
        keys.lay(config, "max_tokens", f"{section}.sampling.max_tokens", most)
    if config.enable_thinking is not None:
        key = "rollout.chat_template.enable_thinking"
        keys.lay(config, "enable_thinking", key, config.enable_thinking)
    template_reads(config)
    _engine_keys(keys, config, backbone)
    if config.tinker_config is not None:
        _tinker_keys(keys, config, backbone)


def _engine_keys(keys: JobKeys, config: TunerModelConfig, backbone: str) -> None:
    if backbone == VERL:
        shared, verl = config.tensor_parallel_size, "backbone.verl"
        if "tensor_parallel_size" in config.model_fields_set:
            key = f"{verl}.actor_rollout_ref.rollout.tensor_model_parallel_size"
            keys.lay(config, "tensor_parallel_size", key, shared)
        if "inference_engine_num" in config.model_fields_set:
            gpus = config.inference_engine_num * shared
            keys.lay(config, "inference_engine_num", f"{verl}.trainer.n_gpus_per_node", gpus)
        return
    one_engine(
        config,
        f"the backbone {backbone!r} samples with one engine on one device; backbone='verl' has several",
    )


def one_engine(config: TunerModelConfig, why: str) -> None:
    """Warn of numbers of engines and GPUs above 1, which only change how fast a model answers."""
    _warn(config, ("tensor_parallel_size", "inference_engine_num"), why)


def template_reads(config: TunerModelConfig) -> None:
    """Warn of vLLM's parsers, which AgentJet does not need."""
    why = "answers are read as the model's chat template writes them, whatever the parser"
    _warn(config, ("tool_call_parser", "reasoning_parser"), why)


def _warn(config: TunerModelConfig, fields: Sequence[str], why: str) -> None:
    for field in fields:
        asked = getattr(config, field)
        if asked not in (None, TunerModelConfig.model_fields[field].default):
            log.warning("TunerModelConfig.%s: no effect of %s: %s", field, asked, why)


def _tinker_keys(keys: JobKeys, config: TunerModelConfig, backbone: str) -> None:
    if backbone != TINKER:
        raise ConfigError(
            f"TunerModelConfig.tinker_config: trains at Tinker, but backbone={backbone!r}. Remove one of them."
        )
    assert config.tinker_config
    for field, value in config.tinker_config.model_dump(exclude_none=True).items():
        key = "run.seed" if field == "seed" else f"backbone.tinker.{field}"
        keys.lay(config.tinker_config, field, key, value)


def refuse(config: BaseModel, why: Mapping[str, str]) -> None:
    """Raise ConfigError for the first of these fields that is set to something else than its default."""
    for field, reason in why.items():
        if getattr(config, field) != type(config).model_fields[field].default:
            raise ConfigError(f"{type(config).__name__}.{field}: {reason}")


def algorithm(name: str) -> str:
    """The name of the same algorithm in AgentJet. Raises ConfigError that names the nearest one."""
    same, where = SAME.get(name, name), f"AlgorithmConfig.algorithm_type: {name!r}"
    installed = sorted(load_plugins().of(Algorithm).keys() - {"sft"})
    if same in installed:
        return same
    if name in WHY or name in NEAREST:
        instead = NEAREST.get(name, "rloo")
        why = WHY.get(name, "is not in AgentJet")
        raise ConfigError(f"{where} {why}. The nearest algorithm is {SAME.get(instead, instead)!r}.")
    raise ConfigError(
        where, f"unknown algorithm{nearest(name, {*installed, *SAME})}. Known: {', '.join(installed)}."
    )
