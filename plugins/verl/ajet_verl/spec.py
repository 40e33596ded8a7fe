"""A job on its way to other processes and machines."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ajet.job.config import Layers
from ajet.job.job import Job
from ajet.job.objects import unnamed, what
from ajet.job.prepare import prepare, resolved_yaml
from ajet.types import ConfigError


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a process needs to make a prepared job once more: its values with every default and absolute paths, where
    Python found the user's modules, and the objects that no import leads to. Tasks are not in it: they travel with
    their episodes."""

    yaml: str
    folder: str
    """The working directory."""
    paths: tuple[str, ...]
    """Of Python's module search."""
    objects: Mapping[str, bytes]
    """Key of the job -> its object, pickled."""

    @classmethod
    def of(cls, job: Job, dumps: Callable[[Any], bytes] = pickle.dumps) -> JobSpec:
        """The spec of a prepared job in this process. ``dumps`` writes objects for `pickle.loads`; cloudpickle's also
        writes functions of a script or a notebook. Raises ConfigError that names an object which it cannot write."""
        keys = [key for key in unnamed(job.layers) if not key.startswith("task.")]
        return cls(
            resolved_yaml(job),
            str(Path.cwd()),
            tuple(os.path.abspath(path) for path in sys.path),
            {key: _pickled(job, key, dumps) for key in keys},
        )

    def open(self) -> Job:
        """The job, without tasks, in a process of its own: moves the process to the spec's folder, where this
        machine has it, and gives its module search what it lacks. Raises ConfigError as `prepare`."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        there = [os.path.abspath(path) for path in sys.path]
        sys.path[:0] = [path for path in self.paths if path not in there and Path(path).exists()]
        layers = Layers()
        layers.add(yaml.safe_load(self.yaml), "the job that was started", Path(self.folder))
        layers.objects.update({key: pickle.loads(written) for key, written in self.objects.items()})
        return prepare(layers, read_tasks=False)


def _pickled(job: Job, key: str, dumps: Callable[[Any], bytes]) -> bytes:
    try:
        return dumps(job.layers.objects[key])
    except Exception as error:  # of whatever the object holds
        raise ConfigError(
            key,
            f"{what(job.layers, key)} cannot be sent to the processes in which the backbone {job.backbone.name!r} runs agents "
            f"and judges ({type(error).__name__}: {error}). Define it in a module and import it from there, or create what cannot "
            "be sent, such as a client, inside the function.",
        ) from error
