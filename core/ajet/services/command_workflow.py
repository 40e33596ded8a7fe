"""Workflows in any language: ``cmd:python agent.py`` runs a command for each episode.

The command gets the task as JSON on stdin and in ``AJET_TASK``, the model in ``OPENAI_BASE_URL``,
``OPENAI_API_KEY`` and similar variables, and answers with the last line of its stdout. It runs in its own
process session, which is killed when the episode ends, however it ends. No shell is involved.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from ajet.interfaces.prompts import Prompts, current_prompts
from ajet.interfaces.workflow import Tuner, WorkflowFailed, WorkflowPlugin
from ajet.types import Task, WorkflowOutput
from ajet.utils.process_group import signal_group

MOST_ANSWER = 1 << 20
"""Maximum bytes of the last line of stdout; everything before it is dropped."""
MOST_ERRORS = 8 << 10
"""Bytes of stderr that are kept."""
MOST_IN_ENVIRONMENT = 96 << 10
"""Larger tasks are passed only on stdin: Linux limits one variable to 128 KiB."""
GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL."""

_FIELDS = ("reward", "response", "is_success", "metrics", "metadata")


class CommandWorkflow(WorkflowPlugin):
    """Runs a command for each episode."""

    name = "command"

    command: tuple[str, ...] = Field(
        description="Program and arguments: a list, or a text that is split as a shell would. No shell runs it."
    )
    workdir: Path = Field(description="Folder in which it runs.")

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, command: Any) -> Any:
        if isinstance(command, str):
            try:
                command = shlex.split(command)
            except ValueError as error:
                raise ValueError(f"{error}; quote arguments as in a shell") from None
        if isinstance(command, list | tuple) and not command:
            raise ValueError("name a program, as in cmd:python agent.py")
        return command

    @model_validator(mode="after")
    def _can_run(self) -> Self:
        if not hasattr(os, "killpg"):
            raise ValueError("commands need process groups, which only POSIX systems have")
        if not self.workdir.is_dir():
            raise ValueError(f"{self.workdir} is not a directory")
        program = self.command[0]
        executable = str(self.workdir / program) if os.sep in program else program
        if shutil.which(executable) is None:
            raise ValueError(f"{program!r} is not a program that can be run from {self.workdir}")
        return self

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        """See `WorkflowPlugin.execute`."""
        prompts = current_prompts.get() or Prompts({})
        with prompts.as_variables() as variables:
            environment = {**os.environ, **tuner.as_base_url().environment(), **variables}
            return await run_command(list(self.command), self.workdir, task, environment)


async def run_command(
    command: list[str], folder: Path, task: Task, environment: Mapping[str, str]
) -> WorkflowOutput:
    """Run a command on a task. Raises WorkflowFailed if it fails or its answer cannot be read."""
    told = json.dumps(as_json(task), default=str)
    variables = {name: value for name, value in environment.items() if name != "AJET_TASK"}
    if len(told) <= MOST_IN_ENVIRONMENT:
        variables["AJET_TASK"] = told
    out, err = _Tail(MOST_ANSWER), _Tail(MOST_ERRORS)
    with tempfile.TemporaryFile() as stdin:
        stdin.write(told.encode())
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=variables,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise WorkflowFailed("start", f"{command[0]}: {error.strerror or error}") from error
    try:
        await out.read(process.stdout)
        await err.read(process.stderr)
        code = await _exit_code(process)
    except BaseException:
        await _end(process)
        raise
    finally:
        signal_group(process.pid, signal.SIGKILL)  # remaining children keep its pipes open
        await asyncio.wait((out.ended, err.ended), timeout=GRACE)
        out.close()
        err.close()
    if code:
        cause = f"exit {code}" if code > 0 else f"signal {-code}"
        raise WorkflowFailed(
            cause, f"{shlex.join(command)} ended with {cause}; stderr ends: {err.text(1000)!r}"
        )
    return read_answer(out.last_line())


def as_json(task: Task) -> dict[str, Any]:
    """A task as the command gets it."""
    return {
        "id": task.id,
        "query": task.query,
        "messages": [dict(m) for m in task.messages],
        "metadata": dict(task.metadata),
    }


def read_answer(line: str) -> WorkflowOutput:
    """Parse the last line of stdout: a JSON object with fields of `WorkflowOutput`, else plain text. Raises
    WorkflowFailed for an object with such fields and faults."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return WorkflowOutput(response=line)
    if not isinstance(found, dict) or not found.keys() & set(_FIELDS):
        return WorkflowOutput(response=line)
    if unknown := sorted(found.keys() - set(_FIELDS)):
        raise _unreadable(f"has an unknown field {unknown[0]!r}; known: {', '.join(_FIELDS)}")
    reward, is_success = found.get("reward"), found.get("is_success")
    metrics, metadata = found.get("metrics") or {}, found.get("metadata") or {}
    if reward is not None and not _is_number(reward):
        raise _unreadable(f"has the reward {reward!r}; expected a number")
    if is_success is not None and not isinstance(is_success, bool):
        raise _unreadable(f"has is_success {is_success!r}; expected true or false")
    if not isinstance(metrics, dict) or not all(map(_is_number, metrics.values())):
        raise _unreadable("has metrics that are not an object of numbers")
    if not isinstance(metadata, dict):
        raise _unreadable("has metadata that is not an object")
    return WorkflowOutput(
        None if reward is None else float(reward), found.get("response"), is_success, metadata, metrics
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unreadable(fault: str) -> WorkflowFailed:
    return WorkflowFailed("answer", f"the last line of stdout is a JSON object that {fault}")


class _Tail(asyncio.Protocol):
    """Keeps the last bytes that come through a pipe."""

    def __init__(self, most: int) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._most = most
        self._data = bytearray()
        self._transport: asyncio.BaseTransport | None = None

    async def read(self, pipe: Any) -> None:
        """Start reading."""
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, pipe)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._data += data
        if len(self._data) > 2 * self._most:
            del self._data[: -self._most - 1]

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        """Stop reading: a process that left the session may keep the pipe open forever."""
        if self._transport:
            self._transport.close()

    def text(self, most: int) -> str:
        """The last characters."""
        return self._data.decode(errors="replace").strip()[-most:]

    def last_line(self) -> str:
        """The last non-empty line. Raises WorkflowFailed if it is longer than what is kept."""
        line = bytes(self._data).strip().rpartition(b"\n")[2].strip()
        if len(line) > self._most:
            raise WorkflowFailed("answer", f"the last line of stdout is longer than {self._most} bytes")
        return line.decode(errors="replace")


async def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """The exit code of the command itself, even if its children keep its pipes open. It is polled: waiting for a
    process costs a thread each, or system calls that not every system has."""
    delay = 0.002
    while (code := process.poll()) is None:
        await asyncio.sleep(delay)
        delay = min(2 * delay, 0.05)
    return code


async def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the command and its children, then kill them, and collect its exit code, so no zombie remains."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_group(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_exit_code(process), GRACE)
