"""A server that dies while the trainer waits for it ends the run, on a real Ray cluster with actors in the servers' place."""

from __future__ import annotations

import sys

from tests.plugins.verl.conftest import Machine

DRIVER = """
import time
import ray
from ajet_verl import health
from ajet_verl.cluster import start_ray

health.LOOK = 0.5


class EngineDeadError(Exception):
    pass


class Engine:
    errored = False
    dead_error = EngineDeadError()


class Server:
    def __init__(self):
        self.engine = Engine()

    async def lose_engine(self):
        self.engine.errored = True


def said_within(seconds, during=lambda: None):
    said = []
    with health.watched_servers(said.append):
        during()
        until = time.monotonic() + seconds
        while not said and time.monotonic() < until:
            time.sleep(0.1)
    return said


start_ray(num_cpus=1, include_dashboard=False, log_to_driver=False)
one, two = (
    ray.remote(Server).options(num_cpus=0, name=f"vllm_server_{n}_0").remote() for n in (1, 2)
)
ray.get([one.__ray_ready__.remote(), two.__ray_ready__.remote()])
print("WELL", said_within(3))
print("ENGINE", said_within(30, lambda: ray.get(one.lose_engine.remote())))
ray.kill(one)
print("GONE BEFORE", said_within(3))
print("PROCESS", said_within(30, lambda: ray.kill(two)))
ray.shutdown()
"""


def test_point_15_a_server_that_dies_while_the_trainer_waits_for_it_is_named(machine: Machine) -> None:
    printed = machine.run(sys.executable, "-c", DRIVER, seconds=180)
    lines = dict(line.split(" [", 1) for line in printed.splitlines() if " [" in line)
    assert lines["WELL"] == "]" and lines["GONE BEFORE"] == "]", printed
    died = "'inference server vllm_server_{}_0 died while the trainer waited for it: {}"
    assert lines["ENGINE"].startswith(died.format(1, "EngineDeadError")), printed
    assert lines["PROCESS"].startswith(died.format(2, "The actor")), printed
