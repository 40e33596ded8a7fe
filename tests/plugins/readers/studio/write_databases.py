"""Writes the databases that `test_studio` reads, with the real programs:

    python -m tests.plugins.readers.studio.write_databases STUDIO PYTHON_1

STUDIO is a folder with a built server of AgentScope Studio 1.0.9: a checkout of
github.com/agentscope-ai/agentscope-studio after ``npm install`` and ``npm run build:server``. PYTHON_1 is a Python with
agentscope 1.0.21 (``.cache/matrix/agentscope-1/bin/python`` after ``make test-matrix``); this Python has agentscope 2.

Every database is written by Studio itself, from what the installed packages send. Only the model is a script, so that the
conversations are always the same. Databases are kept as the SQL that SQLite dumps of them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NOWHERE = "http://127.0.0.1:9"


def main(studio: Path, python_1: str) -> None:
    """Write all databases."""
    with model() as url:
        with database(studio, HERE / "agentscope_1.sql") as there:
            run(python_1, HERE / "agent_1.py", url, there)
            run(python_1, HERE / "agent_1.py", url, there, f"{NOWHERE}/v1/traces")
        with database(studio, HERE / "agentscope_2.sql") as there:
            run(sys.executable, HERE / "agent_2.py", url, there)
    with database(studio, HERE / "ajet.sql") as there:
        logger = json.dumps({"type": "agentscope_studio", "url": there, "project": "sums"})
        job = {
            "task.reader.type": "random",
            "workflow": f"{HERE / 'agent_of_ajet.py'}:run",
            "train.steps": 1,
            "train.batch_size": 2,
            "rollout.group_size": 2,
            "run.loggers": f"[{logger}]",
            "run.dir": tempfile.mkdtemp(),
        }
        sets = [word for key, value in job.items() for word in ("--set", f"{key}={value}")]
        run(sys.executable, "-m", "ajet", "run", *sets)


def run(*command: Any) -> None:
    """Run a program to its end. Raises CalledProcessError."""
    subprocess.run([str(word) for word in command], check=True, timeout=300)


@contextmanager
def database(studio: Path, dump: Path) -> Iterator[str]:
    """A block with an empty Studio; yields its address. Afterwards its database is dumped."""
    with tempfile.TemporaryDirectory() as home:
        port, grpc = _free_ports(2)
        address = f"http://127.0.0.1:{port}"
        environment = {"HOME": home, "PORT": str(port), "OTEL_GRPC_PORT": str(grpc), "NODE_ENV": "server"}
        server = subprocess.Popen(
            ["node", str(studio / "dist" / "server" / "src" / "index.js")],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
        )
        try:
            _wait(address)
            yield address
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
        with closing(sqlite3.connect(Path(home) / "AgentScope-Studio" / "database.sqlite")) as written:
            dump.write_text("\n".join(written.iterdump()) + "\n", encoding="utf-8")


def answer(messages: Sequence[Any]) -> dict[str, Any]:
    """The model: looks first if it is asked about the woods, then answers. AgentScope 2 adds messages of its own, which ask
    nothing."""
    asked = max(i for i, m in enumerate(messages) if m["role"] == "user" and "?" in json.dumps(m["content"]))
    if "woods" not in json.dumps(messages[asked]):
        return {"role": "assistant", "content": "Up to 1000 years."}
    if any(message["role"] == "tool" for message in messages[asked:]):
        return {"role": "assistant", "content": "Oaks grow there."}
    function = {"name": "look", "arguments": '{"place": "woods"}'}
    calls = [{"id": "c1", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


@contextmanager
def model() -> Iterator[str]:
    """A block with the model behind an endpoint; yields its base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            choices = [{"index": 0, "message": answer(asked["messages"]), "finish_reason": "stop"}]
            usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
            reply = {"id": "r", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}
            body = json.dumps({**reply, "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def _wait(address: str) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{address}/trpc/getCurrentVersion", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{address}: Studio did not start")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
