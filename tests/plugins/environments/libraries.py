"""What the tests of the libraries share: the library's Python, jobs over its environments, and a model for its own evaluation."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet import Task, load_run
from ajet.cli import run_program
from ajet.interfaces.progress import Silent
from ajet.interfaces.workflow import EpisodeEndpoint
from ajet.job.models import model_source
from ajet_environments import LibraryWorkflow
from tests.patience import PATIENCE

PYTHON = os.environ.get("AJET_LIBRARY_PYTHON", "")
needs_library = pytest.mark.skipif(not PYTHON, reason="make test-environments")


def run(program: str, *arguments: str, folder: Path, **variables: str) -> str:
    """What a program of the library's environment prints."""
    path = f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(Path(PYTHON).parent / program), *arguments],
        cwd=folder,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


class Job:
    """Jobs over an environment of a library, in a folder."""

    def __init__(self, folder: Path, library: str, options: Any, **variables: str) -> None:
        self.folder = folder
        self._reader = {
            "type": "library",
            "library": library,
            "venv": str(Path(PYTHON).parents[1]),
            "options": options,
            "variables": variables,
        }

    def task(self) -> Task:
        """The first task."""
        about = {name: self._reader[name] for name in ("library", "venv", "options", "variables")}
        return Task("one", metadata={"environment": {**about, "index": 0}})

    def file(self, **sections: Any) -> str:
        """The job's file."""
        job = {
            "task": {"reader": {**self._reader, "count": sections.pop("count", 2)}},
            "workflow": {"type": "library"},
            "model": "starter",
            "rollout": {
                "retries": 0,
                "concurrency": 2,
                "timeout": 4 * PATIENCE,
                **sections.pop("rollout", {}),
            },
            **sections,
        }
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job))
        return str(self.folder / "job.yaml")

    def check(self, answers: Sequence[Any], first: int = 2, **sections: Any) -> list[Any]:
        """The episodes of the first tasks, with scripted answers, in the order of their tasks."""
        before = set(self.folder.glob("runs/*"))
        (self.folder / "answers.yaml").write_text(yaml.safe_dump(list(answers)))
        file = self.file(count=first, **sections)
        run_program(
            [
                "check",
                file,
                "--answers",
                str(self.folder / "answers.yaml"),
                "--first",
                str(first),
                "--group-size",
                "1",
            ]
        )
        (folder,) = set(self.folder.glob("runs/*")) - before
        return sorted(load_run(folder).episodes(), key=lambda episode: episode.task)

    def train(self, **sections: Any) -> Any:
        """The run of two steps of training the starter."""
        sections.setdefault("model", long_starter(self.folder))
        train = {"steps": 2, "batch_size": 1, "learning_rate": 1e-4}
        rollout = {"group_size": 2, "sampling": {"max_tokens": 24}}
        before = set(self.folder.glob("runs/*"))
        assert run_program(["run", self.file(train=train, rollout=rollout, **sections)]) == 0
        (folder,) = set(self.folder.glob("runs/*")) - before
        return load_run(folder)


class Unanswered:
    """A tuner whose model never answers; ``asked`` is set once it is asked."""

    auxiliary = ()

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._port = 0

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._say_nothing, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        return server

    def as_base_url(self) -> EpisodeEndpoint:
        return EpisodeEndpoint(f"http://127.0.0.1:{self._port}/v1", "key")

    async def _say_nothing(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.set()
        await reader.read()
        writer.close()


def cancel_episodes(tasks: Sequence[Task], at_once: int, moment: Callable[[], float | None]) -> None:
    """Cancel an episode of each task, as a job does with those that are late, after as many seconds as ``moment`` says; None is as
    soon as its model is asked. No file descriptor of this process is left."""

    async def episode(live: LibraryWorkflow, task: Task) -> None:
        tuner: Any = Unanswered()
        server = await tuner.serve()
        running = asyncio.ensure_future(live.execute(task, tuner))
        if (seconds := moment()) is None:
            asked = asyncio.ensure_future(tuner.asked.wait())
            await asyncio.wait([running, asked], return_when="FIRST_COMPLETED", timeout=PATIENCE)
            assert asked.done(), running
        else:
            await asyncio.wait([running], timeout=seconds)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        server.close()

    async def cancel_all() -> None:
        async with LibraryWorkflow().open() as live:
            for first in range(0, len(tasks), at_once):
                await asyncio.gather(*(episode(live, task) for task in tasks[first : first + at_once]))
        await asyncio.sleep(0.1)  # servers see that their clients are gone

    async def counted() -> None:
        before = len(os.listdir("/proc/self/fd"))
        await cancel_all()
        assert len(os.listdir("/proc/self/fd")) <= before

    asyncio.run(counted())


def processes_with(variable: bytes) -> list[str]:
    """The ids of the processes in whose environment this is."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable in file.read_bytes():
                found.append(file.parent.name)
        except OSError:  # it has ended
            continue
    return found


def long_starter(folder: Path) -> str:
    """The starter, with a context for what these libraries and servers say."""
    model = Path(shutil.copytree(model_source("starter", 0, Silent()), folder / "starter"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return str(model)


def assert_trained(found: Any) -> None:
    """Two steps were trained on episodes of the environment, all of them valid."""
    assert [step["step"] for step in found.metrics if "trained_tokens" in step or "loss" in step][-2:] == [
        1,
        2,
    ]
    episodes = [episode for episode in found.episodes() if episode.phase == "train"]
    assert [episode.failure for episode in episodes] == [None] * 4
    assert all(episode.calls for episode in episodes)


JUDGING = """
import openai
def judged(said):
    client = openai.OpenAI(base_url="http://model.example/v1", api_key="any", max_retries=0)
    try:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": said}])
    except Exception:
        return 0.0
    return 1.0
"""
"""A reward that asks a model at a fixed address; if that fails, it is 0, as in many environments."""


def assert_own_model_is_refused(folder: Path, library: str, files: dict[str, str], options: Any) -> None:
    """An environment in these files, whose reward is that of `JUDGING`, fails in one line that names the address."""
    for name, text in {**files, "judging.py": JUDGING}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    job = Job(folder, library, options, PYTHONPATH=str(folder))
    (episode,) = job.check([{"say": "It is 4."}], 1)
    assert episode.failure == "workflow:environment" and episode.calls == 1, episode.error
    assert "asks a model at model.example itself" in episode.error and "workflow.judge" in episode.error
    assert "\n" not in episode.error


@contextmanager
def scripted(answers: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The URL of a model behind OpenAI's chat completions that answers as `ajet check --answers` does, whole and streamed."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            message = chosen(answers, body["messages"])
            about = {"id": "1", "created": 1, "model": body["model"]}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            reason = "tool_calls" if "tool_calls" in message else "stop"
            if body.get("stream"):
                if calls := message.get("tool_calls"):
                    message = {**message, "tool_calls": [{"index": 0, **calls[0]}]}
                about["object"] = "chat.completion.chunk"
                parts = [
                    {**about, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
                    {**about, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
                    {**about, "choices": [], "usage": usage},
                ]
                lines = [f"data: {json.dumps(part)}\n\n" for part in parts]
                self.reply("text/event-stream", "".join([*lines, "data: [DONE]\n\n"]))
            else:
                choice = {"index": 0, "message": message, "finish_reason": reason}
                about["object"] = "chat.completion"
                self.reply("application/json", json.dumps({**about, "choices": [choice], "usage": usage}))

        def reply(self, kind: str, text: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def chosen(answers: Sequence[dict[str, Any]], messages: Sequence[Any]) -> dict[str, Any]:
    """The message of the first rule that applies."""
    turn, prompt = sum(m["role"] == "assistant" for m in messages), json.dumps(messages, ensure_ascii=False)
    rule = next(r for r in answers if r.get("turn", turn) == turn and r.get("when", "") in prompt)
    if "call" not in rule:
        return {"role": "assistant", "content": rule["say"]}
    function = {"name": rule["call"]["name"], "arguments": json.dumps(rule["call"]["arguments"])}
    call = {"id": f"call-{turn}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
