"""Environments of OpenEnv that nobody here wrote: one from the package index, and the one that `openenv init` writes."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from ajet import Task
from ajet_environments import LibraryWorkflow
from tests.plugins.environments.libraries import PYTHON, Job, assert_trained, needs_library, run
from tests.plugins.environments.test_episodes import Silent, say_nothing

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


def test_after_200_cancelled_episodes_no_process_and_no_socket_is_left(tmp_path: Path) -> None:
    world, draw = World("echo", tmp_path), random.Random(0)
    about = {
        "library": "openenv",
        "venv": str(Path(PYTHON).parents[1]),
        "options": {"app": world.app},
        "variables": world.variables,
    }
    task = Task("one", metadata={"environment": {**about, "index": 0}})

    async def cancel_all() -> None:
        server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        tuner: Any = Silent(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        before = len(os.listdir("/proc/self/fd"))
        async with LibraryWorkflow().open() as live:

            async def episode() -> None:
                running = asyncio.ensure_future(live.execute(task, tuner))
                await asyncio.wait([running], timeout=draw.uniform(0, 6))
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running

            for _ in range(40):
                await asyncio.gather(*(episode() for _ in range(5)))
        await asyncio.sleep(0.1)
        assert len(os.listdir("/proc/self/fd")) <= before
        server.close()

    asyncio.run(cancel_all())
    left = [file for file in Path("/proc").glob("[0-9]*/environ") if str(tmp_path).encode() in read(file)]
    assert not left


def read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
