"""Environments of OpenEnv that nobody here wrote: one from the package index, the one that `openenv init` writes, and those of
the project's repository, whose clone OPENENV_CHECKOUT names."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.plugins.environments.libraries import (
    PYTHON,
    Job,
    assert_own_model_is_refused,
    assert_trained,
    cancel_episodes,
    needs_library,
    processes_with,
    run,
)

pytestmark = [needs_library, pytest.mark.models("starter")]

CASE = {
    "messages": [
        {
            "role": "user",
            "content": "<context>Study A: the drug helps in 40 of 100 patients. Study B: in 42 of 100.</context>"
            "<question>Does the drug help?</question>",
        },
        {
            "role": "assistant",
            "content": "<think>Both agree.</think><proof>the drug helps in 40 of 100 patients</proof>"
            "<answer>It helps in about 40 of 100 patients.</answer>",
        },
    ]
}
"""The package's own cases are on a hub."""
SAYS = {
    "nothing": "I do not know.",
    "all": CASE["messages"][1]["content"],
}
ITS_OWN = {
    "echo": """
from echo_world.client import EchoWorldEnv, EchoWorldAction
with EchoWorldEnv(base_url=url).sync() as client:
    client.reset()
    print(sum(client.step(EchoWorldAction(message=said)).reward for _ in range(2)))
""",
    "dipg": """
from med_safety_gym.client import DIPGSafetyEnv, DIPGAction
with DIPGSafetyEnv(base_url=url).sync() as client:
    client.reset()
    print(client.step(DIPGAction(llm_response=said)).reward)
""",
}
"""Programs that score an answer with the environments' own clients."""
SERVE = """
import asyncio, importlib, socket, sys, threading, time, uvicorn
module, name = {app!r}.split(":")
with socket.socket() as s:
    s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]
server = uvicorn.Server(uvicorn.Config(getattr(importlib.import_module(module), name), port=port, log_level="error"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started: time.sleep(0.05)
url, said = f"http://127.0.0.1:{{port}}", {said!r}
"""


class World:
    """One of the two environments."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        if name == "echo":
            run("openenv", "init", "echo_world", "--output-dir", str(folder), folder=folder)
            self.app, self.variables = "echo_world.server.app:app", {"PYTHONPATH": str(folder)}
        else:
            cases = folder / "cases.jsonl"
            cases.write_text(json.dumps(CASE))
            self.app, self.variables = "med_safety_gym.app:app", {"DIPG_DATASET_PATH": str(cases)}
        self.job = Job(folder, "openenv", {"app": self.app, "steps": 2}, **self.variables)

    def own_reward(self, said: str, folder: Path) -> float:
        program = SERVE.format(app=self.app, said=said) + ITS_OWN[self.name]
        return float(run("python", "-c", program, folder=folder, **self.variables).splitlines()[-1])


@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("name", ITS_OWN)
def test_rewards_are_those_of_the_environments_own_client(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world = World(name, tmp_path)
    (episode,) = world.job.check([{"say": SAYS[says]}], 1)
    assert (episode.failure, episode.calls) == (None, 2 if name == "echo" else 1)
    assert episode.reward == pytest.approx(world.own_reward(SAYS[says], tmp_path))


def test_the_starter_is_trained_for_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_trained(World("echo", tmp_path).job.train())


CHECKOUT = os.environ.get("OPENENV_CHECKOUT", "")
ACTIONS = {
    "maze_env": ("MazeEnv", "MazeAction", [{"action": 2}, {"action": 0}, {"action": 3}]),
    "connect4_env": ("Connect4Env", "Connect4Action", [{"column": 3}, {"column": 9}]),
}
"""Of environments in the repository: client, action, and some actions."""
PLAYS = """
from {name}.client import {client}
from {name}.models import {action}
with {client}(base_url=url).sync() as client:
    client.reset(seed=0)
    print(sum(client.step({action}(**each)).reward for each in {actions}))
"""


@pytest.mark.skipif(not CHECKOUT, reason="OPENENV_CHECKOUT names no folder")
@pytest.mark.parametrize("name", ACTIONS)
def test_rewards_of_the_projects_own_environments_are_those_of_their_clients(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    client, action, actions = ACTIONS[name]
    app, variables = f"{name}.server.app:app", {"PYTHONPATH": f"{CHECKOUT}/envs"}
    answers = [
        {"turn": turn, "call": {"name": "act", "arguments": each}} for turn, each in enumerate(actions)
    ]
    job = Job(tmp_path, "openenv", {"app": app, "steps": len(actions)}, **variables)
    (episode,) = job.check(answers, 1)
    program = SERVE.format(app=app, said="") + PLAYS.format(
        name=name, client=client, action=action, actions=actions
    )
    own = float(run("python", "-c", program, folder=tmp_path, **variables).splitlines()[-1])
    assert (episode.failure, episode.calls) == (None, len(actions))
    assert episode.reward == pytest.approx(own) and own != 0


ASKS = """
from judging import judged
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
class Say(Action):
    text: str
class Asked(Observation):
    question: str = ""
class Sums(Environment[Say, Asked, State]):
    state = State()
    def reset(self, seed=None, episode_id=None, **more):
        return Asked(question="What is 2 + 2?")
    def step(self, action, timeout_s=None, **more):
        return Asked(done=True, reward=judged(action.text))
app = create_fastapi_app(Sums, Say, Asked)
"""


def test_an_environment_with_a_model_of_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_own_model_is_refused(tmp_path, "openenv", {"asks.py": ASKS}, {"app": "asks:app"})


SEVERAL = """
import uvicorn
from openenv.core.env_server import create_app
from echo_world.models import EchoWorldAction, EchoWorldObservation
from echo_world.server.echo_world_environment import EchoWorldEnvironment
app = create_app(EchoWorldEnvironment, EchoWorldAction, EchoWorldObservation, max_concurrent_envs={sessions})
server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
import asyncio
async def serve():
    serving = asyncio.ensure_future(server.serve())
    while not server.started: await asyncio.sleep(0.05)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await serving
asyncio.run(serve())
"""
OPENS = """
from contextlib import ExitStack
from openenv.core import GenericEnvClient
with ExitStack() as stack:
    for _ in range({sessions}):
        stack.enter_context(GenericEnvClient(base_url="{url}").sync()).reset()
print("opened")
"""
AT_ONCE = 5


@contextmanager
def serving(world: World) -> Iterator[str]:
    """The address of a server of the environment with a few sessions at most."""
    variables = {**os.environ, **world.variables}
    server = subprocess.Popen(
        [PYTHON, "-c", SEVERAL.format(sessions=AT_ONCE)], env=variables, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout
    try:
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    finally:
        server.terminate()
        server.communicate()


def test_after_200_cancelled_episodes_no_process_no_socket_and_no_session_is_left(tmp_path: Path) -> None:
    world, draw = World("echo", tmp_path), random.Random(0)
    task = world.job.task()
    cancel_episodes([task] * 175, AT_ONCE, lambda: draw.uniform(0, 2))
    cancel_episodes([task] * 10, AT_ONCE, lambda: None)
    with serving(world) as url:
        # A server with as many sessions as there are episodes at once: one that were left would be missing.
        for _ in range(3):
            served = Job(tmp_path, "openenv", {"url": url}, **world.variables).task()
            cancel_episodes([served] * AT_ONCE, AT_ONCE, lambda: None)
        run("python", "-c", OPENS.format(sessions=AT_ONCE, url=url), folder=tmp_path)
    assert not processes_with(f"PYTHONPATH={tmp_path}".encode())
