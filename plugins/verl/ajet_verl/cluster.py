"""The Ray cluster of a job: an own one for the run, or the one at RAY_ADDRESS."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ajet.types import AjetError
from ajet_verl.environment import forwarded
from ajet_verl.recorder import NAMESPACE

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet.job.job import Job

NODES_SECONDS = 300.0
"""Maximum seconds for the GPUs of a job to join the cluster."""
NEW_CLUSTER_ARGUMENTS = ("num_cpus", "num_gpus", "resources", "object_store_memory", "include_dashboard")
"""Arguments of `ray.init` that apply only to a new cluster."""
SLOW_NODE = "node timed out during startup"
"""Part of the message of the exception with which Ray gives up its own node."""


@contextmanager
def cluster(config: DictConfig, address: str | None, further: Iterable[str] = ()) -> Iterator[Any]:
    """Ray, connected to the cluster at ``address``, or without one to a new cluster that ends with this block. Its processes
    get the environment variables ``further`` too. Raises AjetError if that fails."""
    import ray
    from omegaconf import OmegaConf

    given = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    assert isinstance(given, dict)
    variables = forwarded(os.environ, further)
    runtime_env = _runtime_env(config, given.pop("runtime_env"), variables if address else {})
    arguments = {"include_dashboard": False, "log_to_driver": False, "namespace": NAMESPACE, **given}
    if address:
        arguments = {k: v for k, v in arguments.items() if k not in NEW_CLUSTER_ARGUMENTS}
        arguments["address"] = address
    else:  # without an address Ray would join a cluster that it finds on this machine
        arguments.setdefault("address", "local")
    start_ray(runtime_env=runtime_env, **arguments)
    try:
        yield ray
    finally:
        ray.shutdown()


def start_ray(**arguments: Any) -> None:
    """Call `ray.init`, once more if Ray's own node was too slow for Ray, which gives it 30 s: a busy machine can need longer.
    Raises AjetError if Ray does not start."""
    import ray

    try:
        try:
            ray.init(**arguments)
        except Exception as error:
            if SLOW_NODE not in str(error):
                raise
            ray.shutdown()
            ray.init(**arguments)
    except Exception as error:  # Ray raises ConnectionError, RuntimeError, ValueError and plain Exception
        raise AjetError(
            f"backbone verl: Ray: {error}. Check RAY_ADDRESS, or `ray status` on that machine."
        ) from error


def _runtime_env(
    config: DictConfig, given: Mapping[str, Any], variables: Mapping[str, str]
) -> dict[str, Any]:
    """verl's environment of Ray's processes, with these variables; then the user's own, which is stronger."""
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    environment: dict[str, Any] = get_ppo_ray_runtime_env(config)
    own = {key: value for key, value in given.items() if value is not None}
    named = {name: str(value) for name, value in (own.get("env_vars") or {}).items()}
    env_vars = {**environment["env_vars"], "TRANSFER_QUEUE_ENABLE": "1", **variables, **named}
    return {**environment, **own, "env_vars": env_vars}


def wait_for_gpus(ray: Any, config: DictConfig, job: Job, *, joined: bool) -> None:
    """Give the other nodes time to join. Raises AjetError if the cluster does not get as many GPUs as the job needs."""
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    wanted = trainer.nnodes * trainer.n_gpus_per_node
    if trainer.v1.trainer_mode == "separate_async":
        wanted += rollout.nnodes * rollout.n_gpus_per_node
    deadline, announced = time.monotonic() + NODES_SECONDS, False
    while (available := int(ray.cluster_resources().get("GPU", 0))) < wanted:
        if not joined or time.monotonic() > deadline:
            raise AjetError(
                f"backbone verl: the job needs {wanted} GPUs, but Ray has {available}. Set backbone.verl.trainer.nnodes and "
                "n_gpus_per_node, or start Ray on the other nodes (docs/verl.md)."
            )
        if not announced:
            job.progress.say(f"waiting for {wanted} GPUs; Ray has {available}")
            announced = True
        time.sleep(1)
