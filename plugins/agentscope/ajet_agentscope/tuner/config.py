"""The classes of AgentScope's tuner, with its names, fields and defaults. AgentScope 1's own classes are accepted in their
place (`ours`)."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ajet import ConfigError, Reader

log = logging.getLogger("ajet")
M = TypeVar("M", bound=BaseModel)


class Config(BaseModel):
    """A configuration; a misspelt field is an error."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


def _figures(metrics: Any) -> Any:
    """Metrics without texts, which one of AgentScope's samples has among its figures. Each name gets one warning."""
    if not isinstance(metrics, Mapping):
        return metrics
    texts = {name for name, value in metrics.items() if isinstance(value, str) and not _is_number(value)}
    for name in sorted(texts - _TEXTS, key=str):
        log.warning("metrics: %r is a text, %r, and is left out: a metric is a number.", name, metrics[name])
    _TEXTS.update(texts)
    return {name: value for name, value in metrics.items() if name not in texts}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_TEXTS: set[Any] = set()
"""Names of metrics that were texts."""
Figures = Annotated[dict[str, float], BeforeValidator(_figures)]


class WorkflowOutput(BaseModel):
    """What a workflow function returns."""

    reward: float | None = Field(None, description="Reward of the episode; without one, the judge gives it.")
    response: Any | None = Field(None, description="What the judge gets.")
    metrics: Figures | None = Field(None, description="Figures of the episode.")


class JudgeOutput(BaseModel):
    """What a judge function returns."""

    reward: float = Field(description="Reward of the response.")
    metrics: Figures | None = Field(None, description="Figures of the verdict.")


WorkflowType = Callable[..., Awaitable[WorkflowOutput]]
"""An async function of ``task`` (a dict) and ``model``; it may also take ``auxiliary_models`` and ``logger``. For
`tune_prompt` it takes ``task`` and ``system_prompt``."""
JudgeType = Callable[..., Awaitable[JudgeOutput]]
"""An async function of ``task`` (a dict) and ``response``; it may also take ``auxiliary_models`` and ``logger``."""


class TinkerConfig(Config):
    """LoRA at the hosted trainer Tinker."""

    rank: int = Field(16, ge=1, description="Rank of the adapter.")
    seed: int | None = Field(None, description="Seed of the adapter's first weights.")
    train_mlp: bool = Field(True, description="Whether MLP layers are trained.")
    train_attn: bool = Field(True, description="Whether attention layers are trained.")
    train_unembed: bool = Field(True, description="Whether the output layer is trained.")
    base_url: str | None = Field(None, description="Base URL of the service; default: Tinker's own.")

    def get_config(self) -> dict[str, Any]:
        """The fields, under the names that Trinity-RFT gives them."""
        return self.model_dump()


class TunerModelConfig(Config):
    """A model, and how it is sampled and served."""

    model_path: str = Field(description="Folder or Hugging Face id of the model.")
    max_model_len: int = Field(
        ge=1, description="Maximum number of tokens of prompt and completion together."
    )
    temperature: float = Field(1.0, ge=0, description="Sampling temperature.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling; below 1 it is refused in training.")
    max_tokens: int = Field(8192, ge=1, description="Maximum number of tokens of an answer.")
    enable_thinking: bool | None = Field(
        None, description="The chat template's switch; None leaves it to the template."
    )
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs that share one inference engine.")
    inference_engine_num: int = Field(1, ge=1, description="Inference engines.")
    tool_call_parser: str | None = Field("hermes", description="Format of the model's tool calls.")
    reasoning_parser: str | None = Field(
        "deepseek_r1", description="Format of the model's reasoning; None if it writes none."
    )
    tinker_config: TinkerConfig | None = Field(None, description="Trains at Tinker.")

    def get_config(self) -> dict[str, Any]:
        """What Trinity-RFT is told about the model, under its names."""
        same = ("model_path", "max_model_len", "tensor_parallel_size", "tool_call_parser", "reasoning_parser")
        served = {"enable_openai_api": True, "enable_auto_tool_choice": True}
        return self.model_dump(include=set(same)) | {"engine_num": self.inference_engine_num} | served


class AlgorithmConfig(Config):
    """How the model is trained."""

    algorithm_type: str = Field("multi_step_grpo", description="Name of the algorithm.")
    learning_rate: float = Field(1e-6, gt=0, description="Learning rate.")
    group_size: int = Field(8, ge=1, description="Episodes of each task.")
    batch_size: int = Field(32, ge=1, description="Tasks of each training step.")
    save_interval_steps: int = Field(100, ge=1, description="Steps between checkpoints.")
    eval_interval_steps: int = Field(100, ge=1, description="Steps between evaluations.")


class PromptTuneConfig(Config):
    """How `tune_prompt` searches."""

    lm_model_name: str = Field("dashscope/qwen-plus", description="PROVIDER/MODEL that proposes prompts.")
    optimization_level: Literal["light", "medium", "heavy"] | None = Field(
        "light", description="How long to search."
    )
    eval_display_progress: bool = Field(True, description="Whether to show progress.")
    eval_display_table: int = Field(5, ge=0, description="Rows of the evaluation to print.")
    eval_num_threads: int = Field(16, ge=1, description="Episodes at once.")
    compare_performance: bool = Field(True, description="Whether to evaluate the first prompt, too.")


def ours(cls: type[M], value: Any) -> M:
    """A configuration or output as an instance of our class; AgentScope 1's class of the same name is converted. Raises
    TypeError for anything else."""
    if isinstance(value, cls):
        return value
    if isinstance(value, BaseModel) and type(value).__name__ == cls.__name__:
        return cls(**value.model_dump(exclude_unset=True))
    raise TypeError(f"expected {cls.__name__}, got {type(value).__name__}")


class DatasetConfig(Config):
    """A data set: on the Hugging Face hub, in a folder, or in one file."""

    path: str = Field(description="Id on the hub, a folder, or a .parquet, .json(l), .csv or .arrow file.")
    name: str | None = Field(None, description="Configuration of the data set, if it has several.")
    split: str | None = Field("train", description="Split to read; empty or None for all of a file.")
    total_epochs: int = Field(1, ge=1, description="How often training goes through the data.")
    total_steps: int | None = Field(None, ge=1, description="Training steps; overrides `total_epochs`.")

    def preview(self, n: int = 5) -> list[dict[str, Any]]:
        """Print the first records as JSON, and return them. Raises ConfigError if the data cannot be read."""
        samples = list(islice(self.records(streaming=True), n))
        print(json.dumps(samples, indent=2, ensure_ascii=False))
        return samples

    def records(self, *, streaming: bool = False) -> Iterator[dict[str, Any]]:
        """Each record with all its columns; with ``streaming`` none is read before it is asked for, and nothing is stored on
        the disk. Raises ConfigError."""
        from ajet.job.layers import job_layers
        from ajet.job.parts import build_plugin

        split = self.split or ("train" if Path(self.path).is_file() else None)
        if split is None:
            raise ConfigError(f"DatasetConfig.split: {self.path} is not a file; name the split to read.")
        streams = streaming and "[" not in split  # a slice of a split cannot be streamed
        settings: dict[str, Any] = {
            "type": "huggingface",
            "path": self.path,
            "split": split,
            "streaming": streams,
        }
        if self.name:
            settings["subset"] = self.name
        no_field = dict.fromkeys(("id", "query", "answer", "messages"))
        reader = build_plugin(job_layers(None), Reader, {**settings, **no_field}, "DatasetConfig")
        for task in reader.tasks():
            yield dict(task.metadata)
