"""What a file of Trinity-RFT gives to `tune` besides keys of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet import ConfigError
from ajet_agentscope.tuner.config import DatasetConfig, TunerModelConfig, ours
from ajet_trinity_files.files import Taskset, TrinityFile

_LENGTHS = {"total_epochs", "total_steps"}


def train_dataset(file: TrinityFile, given: DatasetConfig | None) -> DatasetConfig | None:
    """The data set that the user has given, or else that of the file, each with the file's epochs and steps unless the user has
    set them."""
    dataset = _dataset(file.train) if given is None else ours(DatasetConfig, given)
    if dataset is None or "train.steps" in file.values or _LENGTHS & dataset.model_fields_set:
        return dataset
    return dataset.model_copy(update={"total_epochs": file.epochs})


def eval_dataset(file: TrinityFile, given: DatasetConfig | None) -> DatasetConfig | None:
    """The same for evaluation."""
    return given or _dataset(file.validation)


def workflow_args(file: TrinityFile | None, *, evaluation: bool = False) -> Mapping[str, Any]:
    """What workflow and judge find in ``task["workflow_args"]``: those of the task set, and without any, those of the training
    tasks."""
    sets = (file.validation if evaluation else None, file.train) if file else ()
    return next((tasks.workflow_args for tasks in sets if tasks and tasks.workflow_args), {})


def auxiliary_models(file: TrinityFile) -> dict[str, TunerModelConfig]:
    """The file's auxiliary models. Raises ConfigError for one whose context is nowhere."""
    values, models = file.values, {}
    for name, model in file.auxiliary.items():
        given = {
            "model_path": model["model_path"],
            "max_model_len": model.get("max_model_len", values.get("rollout.context_length")),
            "max_tokens": model.get("max_response_tokens", values.get("eval.sampling.max_tokens")),
            "temperature": model.get("temperature", values.get("eval.sampling.temperature")),
            "top_p": model.get("top_p"),
            "enable_thinking": model.get("enable_thinking"),
            "tensor_parallel_size": model.get("tensor_parallel_size"),
            "inference_engine_num": model.get("engine_num"),
        }
        if given["max_model_len"] is None:
            raise ConfigError(
                f"{file.path}: explorer.auxiliary_models ({name}): max_model_len is missing. Set it there, or in `model`."
            )
        models[name] = TunerModelConfig(**{k: v for k, v in given.items() if v is not None})
    return models


def _dataset(tasks: Taskset | None) -> DatasetConfig | None:
    if tasks is None:
        return None
    return DatasetConfig(path=tasks.path, name=tasks.subset, split=tasks.split)
