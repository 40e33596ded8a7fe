"""The Ray cluster of a run."""

from __future__ import annotations

import sys

from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine

DRIVER = """
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


def test_ray_is_started_once_more_if_the_machine_was_too_busy_for_it(machine: Machine) -> None:
    assert "CPUs 1.0" in machine.run(sys.executable, "-c", DRIVER, seconds=PATIENCE)
