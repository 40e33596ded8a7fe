"""Programs that run a library's environments in its own Python, kept for further episodes, and what ends them.

A program that has answered is used again: importing a library takes seconds. Not so if the environment asks models of its own, as
its clients may keep the key of an episode. One whose episode is cancelled cancels it, so that the library releases what it
has opened, and ends; what is left of it then is killed.

What a library runs, such as code that the model has written, may try to answer in its place. A program is asked through a socket,
which unlike a pipe cannot be opened through /proc, and with a random id, which the answer repeats. One that sends any other line
is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet import ConfigError
from ajet.interfaces.service import looks_secret
from ajet.interfaces.workflow import EpisodeEndpoint, WorkflowFailed

PROGRAM = Path(__file__).parent / "worker"
SECONDS_TO_RELEASE = 10.0
"""Maximum time in which a library releases what a cancelled episode has opened."""
SECONDS_TO_LIST = 600.0
"""Maximum time for listing tasks: data sets are read, and libraries imported."""
_QUIET = {"INSPECT_DISPLAY": "none", "PRIME_RUNS_MODE": "disabled"}
"""Inspect would draw its table, verifiers send what it runs to its makers."""
_MOST_LINE = 64 << 20
_SAID = 600
"""Characters of what a program printed that an error shows."""


def list_tasks(about: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The first tasks of a library's environment. Raises ConfigError."""
    with tempfile.TemporaryDirectory(prefix="ajet-environment-") as folder:
        mark = new_mark()
        line, own = _numbered({"do": "tasks", "count": count})
        try:
            done = subprocess.run(
                _command(about),
                input=line,
                capture_output=True,
                env=_variables(about, mark, folder),
                timeout=SECONDS_TO_LIST,
            )
        except OSError as error:
            raise ConfigError(
                "venv",
                f"{_python(about)}: {error.strerror}. Name the folder of an environment in which {about['library']} is installed.",
            ) from None
        except subprocess.TimeoutExpired:
            raise ConfigError("environment", f"listed no tasks within {SECONDS_TO_LIST:.0f} s.") from None
        finally:
            kill_marked(mark)
    answer = _answer(done.stdout.partition(b"\n")[0], own) or {
        "error": _end_of(done.stderr.decode(errors="replace"))
    }
    if "tasks" not in answer:
        raise ConfigError("environment", f"{about['library']} cannot open it: {answer['error']}")
    tasks: list[dict[str, Any]] = answer["tasks"]
    return tasks


class Workers:
    """The programs of a job. `end` ends them."""

    def __init__(self) -> None:
        self._idle: dict[str, list[_Worker]] = {}
        """By what they run."""
        self._all: set[_Worker] = set()
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self, about: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request of a library's environment. If the caller is cancelled, the episode is released in its own
        time. Raises WorkflowFailed if the program ends without an answer."""
        key = json.dumps(about, sort_keys=True)
        idle = self._idle.setdefault(key, [])
        while idle and not idle[-1].is_alive:
            self._end_later(idle.pop())
        worker = idle.pop() if idle else await self._start(about)
        try:
            answer = await worker.ask(request)
        except BaseException:
            self._end_later(worker)
            raise
        if request.get("judge"):
            self._end_later(worker)
        else:
            idle.append(worker)
        return answer

    async def end(self) -> None:
        """End all programs; what they have started, too."""
        for worker in list(self._all):
            self._end_later(worker)
        while self._ending:
            await asyncio.wait(self._ending)

    async def _start(self, about: Mapping[str, Any]) -> _Worker:
        worker = _Worker()
        self._all.add(worker)
        try:
            await worker.start(about)
        except BaseException:
            self._end_later(worker)
            raise
        return worker

    def _end_later(self, worker: _Worker) -> None:
        if worker in self._all:
            self._all.discard(worker)
            ending = asyncio.ensure_future(worker.end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


class _Worker:
    """One program."""

    def __init__(self) -> None:
        self._mark = new_mark()
        self._folder = Path(tempfile.mkdtemp(prefix="ajet-environment-"))
        self._process: asyncio.subprocess.Process | None = None
        self._channel, self._theirs = socket.socketpair()
        self._channel.setblocking(False)

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self, about: Mapping[str, Any]) -> None:
        """Start it. Raises WorkflowFailed."""
        try:
            with (self._folder / "said").open("wb") as said, self._theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *_command(about),
                    stdin=self._theirs.fileno(),
                    stdout=self._theirs.fileno(),
                    stderr=said,
                    env=_variables(about, self._mark, str(self._folder)),
                    start_new_session=True,
                )
        except OSError as error:
            raise WorkflowFailed("start", f"{_python(about)}: {error.strerror}") from error

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request. Raises WorkflowFailed if there is none."""
        line, own = _numbered(request)
        said, part = bytearray(), b""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):  # it has ended: then there is no line either
            await loop.sock_sendall(self._channel, line)
            while (part := await loop.sock_recv(self._channel, 1 << 16)) and len(said) <= _MOST_LINE:
                said += part
                if b"\n" in part:
                    break
        if answer := _answer(said, own):
            return answer
        if part:
            raise WorkflowFailed(
                "forged",
                "something else than the environment's program has written to where its answers are read, and the program was "
                f"ended: {bytes(said[:_SAID])!r}. Code of the model runs as you there: let the library run it in a container.",
            )
        printed = (self._folder / "said").read_text(errors="replace")
        raise WorkflowFailed(
            "ended", f"the environment's program ended without an answer: {_end_of(printed)}"
        )

    async def end(self) -> None:
        """End it, at first in a way that lets the library release what is open."""
        process = self._process
        try:
            if process and self.is_alive:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), SECONDS_TO_RELEASE)
        finally:
            self._channel.close()
            kill_marked(self._mark)
            if process:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)


def _numbered(request: Mapping[str, Any]) -> tuple[bytes, str]:
    """The line of a request, and its id."""
    own = secrets.token_hex(16)
    return json.dumps({**request, "id": own}, default=str).encode() + b"\n", own


def _answer(line: bytes | bytearray, own: str) -> dict[str, Any] | None:
    """What answers the request of an id; None for anything else."""
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(reply, dict) or reply.pop("id", None) != own:
        return None
    return reply


def _command(about: Mapping[str, Any]) -> list[str]:
    return [str(_python(about)), str(PROGRAM), about["library"], json.dumps(about["options"])]


def _python(about: Mapping[str, Any]) -> Path:
    return Path(about["venv"]) / "bin" / "python"


def _variables(about: Mapping[str, Any], mark: str, folder: str) -> dict[str, str]:
    """Ours, without secrets and addresses of models: an environment would ask models of its own with them."""
    ours = {name: value for name, value in os.environ.items() if not looks_secret(name, value)}
    endpoints = EpisodeEndpoint("http://127.0.0.1:1/v1", "").environment().keys() - {"NO_PROXY", "no_proxy"}
    for ours_only in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", *endpoints):
        ours.pop(ours_only, None)
    programs = f"{_python(about).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    given = {"PATH": programs, "TMPDIR": folder, NAME: mark}
    return {**ours, **_QUIET, **given, **about["variables"]}


def _end_of(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return " / ".join(lines)[-_SAID:] or "it printed nothing"


NAME = "AJET_ENVIRONMENT"
"""A variable that all processes inherit that others start for an episode, also those in sessions of their own."""


def new_mark() -> str:
    """A value of the variable. What begins with it belongs to it, too."""
    return secrets.token_hex(8)


def kill_marked(mark: str) -> None:
    """Kill all processes with a mark. Only where there is /proc."""
    marked = f"\0{NAME}={mark}".encode()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if marked in b"\0" + file.read_bytes():
                os.kill(int(file.parent.name), signal.SIGKILL)
