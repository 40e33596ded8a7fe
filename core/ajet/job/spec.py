"""A job on its way to other processes and machines."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from ajet.job.config import Layers
from ajet.job.objects import unnamed, what
from ajet.job.prepare import Job, prepare, resolved_yaml
from ajet.types import ConfigError


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a process needs to make a prepared job once more: its values with every default and absolute paths,
    and where Python found the user's modules. Tasks are not in it: they travel with their episodes."""

    yaml: str
    folder: str
    """The working directory."""
    paths: tuple[str, ...]
    """Of Python's module search."""

    @classmethod
    def of(cls, job: Job) -> JobSpec:
        """The spec of a prepared job in this process. Raises ConfigError for an object that only this process has."""
        for key in unnamed(job.layers):
            if not key.startswith("task."):  # tasks travel with their episodes
                raise ConfigError(
                    f"{key}: {what(job.layers, key)} exists in this process only, and the backbone {job.backbone.name!r} runs "
                    "agents and judges in others. Put it into a module, import it from there, and give it again."
                )
        return cls(resolved_yaml(job), str(Path.cwd()), tuple(os.path.abspath(path) for path in sys.path))

    def open(self) -> Job:
        """The job, without tasks, in a process of its own: moves the process to the spec's folder, where this
        machine has it, and gives its module search what it lacks. Raises ConfigError as `prepare`."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        there = [os.path.abspath(path) for path in sys.path]
        sys.path[:0] = [path for path in self.paths if path not in there and Path(path).exists()]
        layers = Layers()
        layers.add(yaml.safe_load(self.yaml), "the job that was started", Path(self.folder))
        return prepare(layers, read_tasks=False)
