"""The node ``ajet`` of verl's configuration: what our classes in verl's processes are made from."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import ray

from ajet.job_spec import JobSpec
from ajet_verl.recorder import NAMESPACE


def write_spec(spec: JobSpec) -> str:
    """A job's spec as text. Read it in processes of the same run only."""
    return base64.b64encode(pickle.dumps(spec)).decode()


def read_spec(config: Any) -> JobSpec:
    """The job's spec out of verl's configuration, where this run has put it."""
    spec = pickle.loads(base64.b64decode(config.ajet.spec))
    assert isinstance(spec, JobSpec)
    return spec


def recorder_of(config: Any) -> Any:
    """The handle of the run's `ajet_verl.recorder.Recorder`."""
    return ray.get_actor(config.ajet.recorder, namespace=NAMESPACE)
