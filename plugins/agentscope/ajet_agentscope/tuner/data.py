"""Data sets, as AgentScope's tuner passes their records to workflows and judges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field

from ajet import ConfigError, Reader
from ajet_agentscope.tuner.config import Config


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
        from ajet.job.prepare import build_plugin

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
