"""The node ``ajet`` of verl's configuration: what our classes in verl's processes are made from."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import ray

from ajet.job.spec import JobSpec
from ajet_verl.recorder import NAMESPACE


def to_text(value: Any) -> str:
    """An object of ours for verl's queue or configuration, where objects would become dictionaries."""
    return base64.b64encode(pickle.dumps(value)).decode()


def from_text(text: str) -> Any:
    """The object. For what processes of the same run have written only."""
    return pickle.loads(base64.b64decode(text))


def read_spec(config: Any) -> JobSpec:
    """The job's spec out of verl's configuration, where this run has put it by `to_text`."""
    spec = from_text(config.ajet.spec)
    assert isinstance(spec, JobSpec)
    return spec


def recorder_of(config: Any) -> Any:
    """The handle of the run's `ajet_verl.recorder.Recorder`."""
    return ray.get_actor(config.ajet.recorder, namespace=NAMESPACE)
