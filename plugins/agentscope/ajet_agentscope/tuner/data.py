"""The records of a data set, as AgentScope's tuner passes them to workflows and judges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ajet.interfaces.reader import Reader
from ajet.plugins import load_plugins, validated
from ajet.types import ConfigError
from ajet_agentscope.tuner.config import DatasetConfig


def reader_settings(data: DatasetConfig) -> dict[str, Any]:
    """The data set as a job's ``task.reader``. Raises ConfigError."""
    if data.split is None:
        raise ConfigError("DatasetConfig.split: name the split to read; None is not supported.")
    subset = {} if data.name is None else {"subset": data.name}
    return {"type": "huggingface", "path": data.path, "split": data.split, **subset}


def records(data: DatasetConfig) -> Iterator[dict[str, Any]]:
    """Each record as a dict, read when it is asked for. Raises ConfigError."""
    settings = reader_settings(data)
    kind = settings.pop("type")
    reader = validated(
        load_plugins().get("reader", kind, "DatasetConfig"), {**settings, "streaming": True}, "DatasetConfig"
    )
    assert isinstance(reader, Reader)
    for task in reader.tasks():
        yield dict(task.metadata)
