"""A server that dies while the trainer waits for it ends the run, and one that hangs is ended: on a real Ray cluster with actors
in the servers' place."""

from __future__ import annotations

import sys

from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine

DRIVER = """
import asyncio
import signal
import subprocess
import time
import ray
from ajet_verl import survivors
from ajet_verl.cluster import start_ray

survivors.LOOK = survivors.ASK = 0.5
survivors.ANSWER, survivors.FIRST_ANSWER = 10.0, 12.0
survivors.recorder_of = lambda config: config


class EngineDeadError(Exception):
    pass


class Engine:
    errored = False
    dead_error = EngineDeadError()


class Server:
    def __init__(self):
        self.engine = Engine()
        self.child = subprocess.Popen(["sleep", "600"])
        self.hangs = False

    async def collective_rpc(self, method):
        while self.hangs:
            await asyncio.sleep(0.1)

    async def hang(self):
        self.hangs = True

    async def child_ended(self):
        return self.child.wait(30) == -signal.SIGKILL

    async def lose_engine(self):
        self.engine.errored = True


def said_within(seconds, during=lambda: None, watched=survivors.watched_servers):
    said = []
    with watched(said.append):
        during()
        until = time.monotonic() + seconds
        while not said and time.monotonic() < until:
            time.sleep(0.1)
    return said


class Steps:  # what a trainer of verl calls
    def _setup(self):
        class Said:
            class say:
                remote = staticmethod(lambda text: self.said.append(text))

            fail = say

        self.config, self.said, self.checkpoint_manager = Said, [], None

    def on_sample_begin(self):
        pass

    on_sample_end = on_sample_begin


class Trainer(survivors.Survivors, Steps):
    pass


start_ray(num_cpus=1, include_dashboard=False, log_to_driver=False)
one, two, three = (
    ray.remote(Server).options(num_cpus=0, name=f"vllm_server_{n}_0").remote() for n in (1, 2, 3)
)
ray.get([server.__ray_ready__.remote() for server in (one, two, three)])
class Replica:
    def __init__(self, server):
        self.servers = [server]


print("WELL", said_within(3))
trainer = Trainer()
trainer._setup()
for step, server in enumerate((three, two)):
    trainer.on_sample_begin()
    time.sleep(3)
    print("ANSWERS", trainer.said[step:])
    ray.get(server.hang.remote())
    until = time.monotonic() + 30
    while len(trainer.said) == step and time.monotonic() < until:
        time.sleep(0.1)
    trainer.on_sample_end()
    print(f"ENDED {step}", [ray.get(server.child_ended.remote(), timeout=60)])
    if server is three:
        ray.kill(three)
print("HANG", trainer.said)
print("ENGINE", said_within(30, lambda: ray.get(one.lose_engine.remote())))
ray.kill(one)
print("GONE BEFORE", said_within(3))
replicas = [Replica(one), Replica(two)]
print("DEAD", [cause for replica, cause in survivors.causes(replicas).items() if replica is replicas[0]])
print("ALIVE", [replica for replica in survivors.causes(replicas) if replica is replicas[1]])
print("PROCESS", said_within(30, lambda: ray.kill(two)))
ray.shutdown()
"""


def test_a_server_that_dies_or_hangs_is_named(machine: Machine) -> None:
    printed = machine.run(sys.executable, "-c", DRIVER, seconds=4 * PATIENCE)
    lines = dict(line.split(" [", 1) for line in printed.splitlines() if " [" in line)
    assert lines["WELL"] == lines["ANSWERS"] == lines["GONE BEFORE"] == lines["ALIVE"] == "]", printed
    hang = "'inference server vllm_server_{}_0 has not answered for {} s; it is ended'"
    assert lines["HANG"] == f"{hang.format(3, 12)}, {hang.format(2, 10)}]", printed
    assert lines["ENDED 0"] == lines["ENDED 1"] == "True]" and "The actor" in lines["DEAD"], printed
    died = "'inference server vllm_server_{}_0 died while the trainer waited for it: {}"
    assert lines["ENGINE"].startswith(died.format(1, "EngineDeadError")), printed
    assert lines["PROCESS"].startswith(died.format(2, "The actor")), printed
