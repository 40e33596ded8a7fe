"""A folder with a job, and a program that can be its service and fail in every way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.job.config import Layers
from tests.patience import PATIENCE
from tests.ports import free_port

SERVER = """
import os, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, HTTPServer

port, *words = sys.argv[1:]
print("serving with", os.environ.get("MY_TOKEN"), "in", os.getcwd(), flush=True)
if "refuse" in words:
    sys.exit("error: no licence")
if "sleep" in words:
    time.sleep(600)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("pids", "a").write(f"{os.getpid()} {child.pid}\\n")

def die_when_told():
    while not os.path.exists("die"):
        time.sleep(0.01)
    print("out of memory", os.environ.get("MY_TOKEN"), flush=True)
    os._exit(3)

threading.Thread(target=die_when_told, daemon=True).start()

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        said = b'{"choices": [{"message": {"role": "assistant", "content": "4"}}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    def log_message(self, *args):
        pass

HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""
AGENT = """
import asyncio, time
import httpx2

async def run(task):
    async with httpx2.AsyncClient() as client:
        body = {"model": "m", "messages": [{"role": "user", "content": task.query}]}
        answer = await client.post("http://127.0.0.1:9/v1/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"]

async def waits(task):
    open("began", "w")
    await asyncio.sleep(600)

def hangs(task):
    open("began", "w")
    time.sleep(600)
"""


class Home:
    """The folder, and what is running in it."""

    def __init__(self, path: Path, port: int) -> None:
        self.path = path
        self.url = f"http://127.0.0.1:{port}/health"
        self.port = port
        self.said: list[str] = []
        self._started: list[subprocess.Popen[str]] = []
        (path / "server.py").write_text(SERVER)
        (path / "agent.py").write_text(AGENT)
        (path / "tasks.jsonl").write_text('{"id": "a", "query": "2+2?", "answer": "4"}\n')
        (path / "script.yaml").write_text('- {say: "4"}\n')

    def job(self, *words: Any, workflow: str = "agent.py:run", **more: Any) -> dict[str, Any]:
        """The job's values, also in job.yaml; ``words`` are the server's arguments."""
        service = {
            "command": ["python", "server.py", self.port, *words],
            "health": self.url,
            **more.pop("service", {}),
        }
        values = {
            "task": {"reader": "tasks.jsonl"},
            "workflow": workflow,
            "judge": "exact",
            "backbone": {"name": "debug", "debug": {"answers": {"type": "script", "path": "script.yaml"}}},
            "services": {"thing": service},
            **more,
        }
        (self.path / "job.yaml").write_text(yaml.safe_dump(values))
        return values

    def layers(self, *words: Any, **more: Any) -> Layers:
        """The job as layers."""
        layers = Layers()
        layers.add(self.job(*words, **more), "job.yaml", self.path)
        return layers

    def say(self, text: str) -> None:
        self.said.append(text)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a program in the folder."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )
        self._started.append(process)
        return process

    def ajet(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `ajet` in the folder."""
        return self.start("-m", "ajet", *arguments)

    def serve(self) -> subprocess.Popen[str]:
        """Start the service by hand."""
        process = self.start("server.py", str(self.port))
        until(self.healthy)
        return process

    def healthy(self) -> bool:
        with suppress(OSError):
            return bool(urllib.request.urlopen(self.url, timeout=PATIENCE).status == 200)
        return False

    def pids(self) -> list[int]:
        """The process ids of every server that was started, and of its child."""
        file = self.path / "pids"
        return [int(word) for word in file.read_text().split()] if file.exists() else []

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def lives(pid: int) -> bool:
    """Whether there is such a process, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ended(*pids: int) -> bool:
    """Whether these end, if they have not: what is killed is gone a moment later."""
    until(lambda: not any(map(lives, pids)))
    return True


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_TOKEN", "s3cret-value")
    made = Home(tmp_path, free_port())
    yield made
    made.end()
