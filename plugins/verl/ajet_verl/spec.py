"""The node ``ajet`` of verl's configuration, from which our classes in verl's processes get the job and the recorder."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import ray
from ray import cloudpickle

from ajet.job.spec import JobSpec
from ajet_verl.cluster import NAMESPACE


def dumps(value: Any) -> bytes:
    """An object as Ray would send it, also a function or a class of a script or a notebook."""
    return bytes(cloudpickle.dumps(value))


def to_text(value: Any) -> str:
    """An object as text, for verl's queue and configuration, which would turn objects into dictionaries."""
    return base64.b64encode(pickle.dumps(value)).decode()


def from_text(text: str) -> Any:
    """The object of a text from `to_text`. Only for texts of the same run, because it unpickles them."""
    return pickle.loads(base64.b64decode(text))


def read_spec(config: Any) -> JobSpec:
    """The job's spec from verl's configuration."""
    spec = from_text(config.ajet.spec)
    assert isinstance(spec, JobSpec)
    return spec


def recorder_of(config: Any) -> Any:
    """The Ray handle of the run's `ajet_verl.recorder.Recorder`. Raises ValueError if there is none."""
    return ray.get_actor(config.ajet.recorder, namespace=NAMESPACE)
