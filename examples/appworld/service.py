"""AppWorld's tasks as an environment service.

    APPWORLD=venv/bin/appworld APPWORLD_ROOT=. python service.py 8124

AppWorld needs an older pydantic than AgentJet, so it has a virtual environment of its own, and each episode has a process of
AppWorld's own server, which holds one world. An action is Python code; what it prints is the answer.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from ajet.environments import ServedEnvironment, State, serve

PROGRAM = os.environ.get("APPWORLD", "appworld")
ROOT = Path(os.environ.get("APPWORLD_ROOT", ".")).resolve()
"""The folder that contains AppWorld's ``data``."""
DATASETS = ROOT / "data" / "datasets"
START_SECONDS = 60.0
CALL_SECONDS = 110.0
"""More than the 100 seconds after which AppWorld itself ends an action."""
MAX_CALLS = 40
LONGEST = 8000
"""Characters of an action's output that the agent sees."""


def missing() -> str | None:
    """What must be installed before a task can run, in one line."""
    if shutil.which(PROGRAM) is None:
        return (
            f"the program {PROGRAM!r} is missing: python -m venv venv && venv/bin/pip install appworld && venv/bin/appworld install, "
            "then set APPWORLD=venv/bin/appworld"
        )
    if not DATASETS.is_dir():
        return f"{ROOT} has no data: {PROGRAM} download data --root {ROOT}, or set APPWORLD_ROOT to the folder above it"
    return None


class AppWorld(ServedEnvironment):
    """One task, in a process of its own."""

    env_type = "appworld"

    def __init__(self, task_id: str, params: Mapping[str, Any]) -> None:
        super().__init__(task_id, params)
        self.experiment = f"ajet-{uuid.uuid4().hex}"
        self.calls = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.client = httpx2.Client(timeout=CALL_SECONDS)

    @classmethod
    def task_ids(cls, split: str, params: Mapping[str, Any]) -> list[str]:
        """The ids of a data set of AppWorld: train, dev, test_normal or test_challenge."""
        file = DATASETS / f"{split}.txt"
        if split != file.stem or not file.is_file():
            raise LookupError(f"appworld has no split {split!r}; it has {', '.join(splits())}")
        return [line.strip() for line in file.read_text().splitlines() if line.strip()]

    def start(self) -> str:
        """Start the world; return what the user wants, and who the user is."""
        self._serve()
        about = self._post("initialize", experiment_name=self.experiment)
        who = about["supervisor"]
        return (
            f"{about['instruction']}\nI am {who['first_name']} {who['last_name']} ({who['email']}, {who['phone_number']}). "
            f"It is {about['datetime']}."
        )

    def step(self, message: Mapping[str, Any]) -> State:
        """Run the code in a message."""
        self.calls += 1
        said = str(self._post("execute", code=str(message.get("content") or "")))
        if len(said) > LONGEST:
            said = f"{said[:LONGEST]}\n… {len(said) - LONGEST} more characters"
        ended = bool(self._post("task_completed")) or self.calls >= MAX_CALLS
        return State(({"role": "user", "content": said},), is_terminated=ended)

    def evaluate(self) -> float:
        """1 if all of AppWorld's tests of the task pass, 0 otherwise."""
        return float(self._post("evaluate", suppress_errors=True)["success"])

    def info(self, params: Mapping[str, Any]) -> Any:
        """The tests that pass and those that fail."""
        return self._post("evaluate", suppress_errors=True)

    def close(self) -> None:
        """End the process, and remove what it has written."""
        self.client.close()
        if self.process:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(ROOT / "experiments" / "outputs" / self.experiment, ignore_errors=True)

    def _serve(self) -> None:
        """Start AppWorld's server and wait until it answers."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [PROGRAM, "serve", "environment", "--port", str(port), "--root", str(ROOT)]
        # In the process group of this service, so that it never outlives the job.
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.client.get(self.url, timeout=1).raise_for_status()
                return
            except httpx2.HTTPError:
                time.sleep(0.1)
        raise RuntimeError(f"{' '.join(command)} did not start; run it by hand to see why")

    def _post(self, path: str, **body: Any) -> Any:
        answer = self.client.post(f"{self.url}/{path}", json={"task_id": self.task_id, **body})
        return answer.raise_for_status().json()["output"]


def splits() -> list[str]:
    """The names of AppWorld's data sets."""
    return sorted(file.stem for file in DATASETS.glob("*.txt"))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    if lacks := missing():
        sys.exit(f"AppWorld: {lacks}")
    serve(AppWorld, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8124)
