"""The Ray cluster of a run."""

from __future__ import annotations

import sys

import pytest
from omegaconf import OmegaConf

from ajet_verl import cluster
from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine

SLOW = """
import ray
from ray._private import services
from ajet_verl.cluster import start_ray

get_node, times = services.get_node, []


def slow(*arguments):
    times.append(1)
    if len(times) == 1:
        raise Exception("The current node timed out during startup.")
    return get_node(*arguments)


services.get_node = slow
start_ray(num_cpus=1, include_dashboard=False, log_to_driver=False)
print("CPUs", ray.cluster_resources()["CPU"])
ray.shutdown()
"""

HANGING = """
import atexit, os, time
import psutil, ray
from ajet_verl import cluster


@ray.remote
class Hangs:
    def __init__(self):
        atexit.register(time.sleep, 3600)

    def pid(self):
        return os.getpid()


cluster.ENDING_SECONDS = 1.0
cluster.start_ray(num_cpus=1, include_dashboard=False, log_to_driver=False)
actor = Hangs.remote()
worker = psutil.Process(ray.get(actor.pid.remote()))
del actor  # its process ends, or rather hangs
time.sleep(2)
cluster.end_ray()
worker.wait(60)
"""


def test_vllm_has_the_model_runner_that_the_tests_know_unless_the_user_names_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}})

    def chosen(**given: str) -> str:
        return str(
            cluster._runtime_env(config, {"env_vars": given}, {})["env_vars"]["VLLM_USE_V2_MODEL_RUNNER"]
        )

    assert chosen() == "0"
    assert chosen(VLLM_USE_V2_MODEL_RUNNER="1") == "1"
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    assert chosen() == "1"


def test_ray_is_started_once_more_if_the_machine_was_too_busy_for_it(machine: Machine) -> None:
    assert "CPUs 1.0" in machine.run(sys.executable, "-c", SLOW, seconds=PATIENCE)


def test_a_worker_that_hangs_while_its_python_ends_is_not_left(machine: Machine) -> None:
    machine.run(sys.executable, "-c", HANGING, seconds=PATIENCE)
