"""Runs untrusted Python programs with limits on time, memory, processes and files, and without network."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

import ajet_sandbox
from ajet import AjetError, Settings

LAUNCHER = Path(ajet_sandbox.__file__).with_name("__main__.py")
LATE = 6.0
"""Seconds to wait for the launcher beyond the program's time limit. The launcher enforces that limit itself, unless it
was killed."""
GRACE = 2.0
"""Seconds that the launcher has to end all processes before it is killed."""
_numbers = count()


class NoSandbox(AjetError):
    """This machine cannot build the requested sandbox."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the code sandbox cannot be built here: {reason}. Allow namespaces (in a container: user namespaces or "
            "CAP_SYS_ADMIN), or accept `isolation: limits`, in which programs can read and write what you can."
        )
        self.reason = reason


class Limits(Settings):
    """Limits of a program. A program that exceeds one is ended, with all processes that it started."""

    seconds: float = Field(10.0, gt=0, description="Wall-clock time in seconds.")
    cpu_seconds: float = Field(10.0, gt=0, description="CPU seconds of all its processes together.")
    memory: int = Field(
        512, ge=64, description="MiB of memory: of all its processes, files, sockets and pipes together."
    )
    processes: int = Field(16, ge=1, description="Processes and threads at once.")
    files: int = Field(32, ge=1, description="MiB that it may write.")
    output: int = Field(256, ge=1, description="KiB of stdout and stderr together.")


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended. ``cause`` is the limit that ended it (time, cpu, memory, processes, files, output), or None;
    then ``code`` is its exit code, negative for a signal."""

    code: int | None
    cause: str | None
    stdout: str
    stderr: str
    memory: int
    """Largest measured memory use, in bytes."""
    mechanism: str = ""
    """What measured memory, processes and CPU time; empty if the launcher was killed."""

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.cause is None and self.code == 0

    def describe(self) -> str:
        """How it ended, in one line."""
        if self.cause:
            return f"stopped at its limit of {self.cause}"
        last = self.stderr.strip().rpartition("\n")[2]
        return f"exit {self.code}{f': {last[:200]}' if last else ''}"


Isolation = Literal["full", "limits"]


async def run_python(
    program: str | Mapping[str, str],
    *,
    input: str = "",
    limits: Limits | None = None,
    isolation: Isolation = "full",
    packages: bool = False,
    as_user: bool = False,
    python: str | None = None,
) -> Ran:
    """Run a Python program with ``input`` on its stdin. A program of several files is a mapping from relative path to text, of
    which ``main.py`` is run.

    ``full``: in Linux namespaces, as another user, with a filter on system calls. The program sees the system's
    programs and libraries (read-only) and its own folder, but no other files, processes, variables or network.
    ``limits``: only limits and, on Linux, the filter (no network); the program can read what you can read.
    ``packages``: the program can import the packages installed for this interpreter. ``python``: another interpreter,
    in the ``bin`` of its installation. ``as_user``: builds the namespaces as a user other than root does.

    Raises NoSandbox if this machine cannot do that. No process that the program starts survives, with one exception:
    with ``limits``, a program of the same user can kill the launcher, and its processes are then not waited for.
    """
    limits = limits or Limits()
    interpreter = os.path.realpath(python or sys.executable)
    installed = [path for path in sys.path if path.endswith("-packages") and os.path.isdir(path)]
    job = {
        "sources": {"main.py": program} if isinstance(program, str) else dict(program),
        "input": input,
        "walls": isolation == "full",
        "as_user": as_user,
        "python": interpreter,
        "show": [*_installation(interpreter), *(installed if packages else [])],
        "packages": installed if packages else [],
        "mark": f"ajet-sandbox-{os.getpid()}-{next(_numbers)}",
        **limits.model_dump(),
    }
    read, write = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(LAUNCHER),
            str(write),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=[write],
            env={},
            start_new_session=True,
        )
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    with open(read, "rb", buffering=0) as status:
        try:
            line = json.dumps(job).encode() + b"\n"
            stdout, stderr, too_much = await _talk(process, line, limits.output << 10, limits.seconds + LATE)
        finally:
            await _end(process)
        report = status.read(1 << 16)  # the launcher has ended
    ended: dict[str, Any] = json.loads(report) if report else {"cause": "killed"}
    if "unavailable" in ended:
        raise NoSandbox(ended["unavailable"])
    cause = "output" if too_much else ended.get("cause")
    out, err = (text.decode("utf-8", "replace") for text in (stdout, stderr))
    code, memory, mechanism = ended.get("code"), ended.get("memory", 0), ended.get("mechanism", "")
    return Ran(code, cause, out, err, memory, mechanism)


def _installation(interpreter: str) -> list[str]:
    """The folders of an interpreter and its libraries, without their parent, which may be a home directory."""
    folder = os.path.dirname(interpreter)
    return [folder, *(os.path.join(os.path.dirname(folder), name) for name in ("lib", "lib64"))]


def doctor() -> tuple[str, str, str]:
    """A line for `ajet doctor`: which sandbox this machine can build, and what measures a program's use. Without
    namespaces it is not an error, because only the judge `code` needs them."""
    what = "code sandbox"
    try:
        ran = asyncio.run(run_python("pass"))
    except NoSandbox as error:
        return what, f"limits only: {error.reason}", ""
    if not ran.ok:
        return (
            what,
            f"an empty program failed in it: {ran.describe()}",
            "Try again when this machine is less busy.",
        )
    return what, f"full: namespaces, another user, no network; limits held by {ran.mechanism}", ""


async def _talk(
    process: asyncio.subprocess.Process, job: bytes, limit: int, seconds: float
) -> tuple[bytes, bytes, bool]:
    """stdout and stderr, up to ``limit`` bytes together, and whether there was more."""
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(job)
    left = limit
    over = asyncio.Event()

    async def take(stream: asyncio.StreamReader, parts: list[bytes]) -> None:
        nonlocal left
        while part := await stream.read(1 << 16):
            parts.append(part[: max(left, 0)])
            left -= len(part)
            if left < 0:
                over.set()  # the rest is read and discarded until the writers end

    outputs: tuple[list[bytes], list[bytes]] = ([], [])
    streams = (process.stdout, process.stderr)
    takes = [asyncio.ensure_future(take(s, parts)) for s, parts in zip(streams, outputs, strict=True)]
    whole = asyncio.gather(*takes)
    overflow = asyncio.ensure_future(over.wait())
    try:
        await asyncio.wait({whole, overflow}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        if not whole.done():
            await _end(process)
            await asyncio.wait(takes, timeout=GRACE)
        return b"".join(outputs[0]), b"".join(outputs[1]), over.is_set()
    finally:
        for task in (*takes, overflow):
            task.cancel()
        await asyncio.gather(whole, overflow, return_exceptions=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the launcher and all of its processes: close its stdin, then kill it."""
    assert process.stdin
    process.stdin.close()
    if not await _ended(process):
        process.kill()
        await _ended(process)
    # Without namespaces, a surviving process may keep the pipes open: stop reading them.
    process._transport.close()  # type: ignore[attr-defined]


async def _ended(process: asyncio.subprocess.Process) -> bool:
    """Whether the launcher ends within `GRACE`. `Process.wait` would also wait for other processes that hold its pipes."""
    until = asyncio.get_running_loop().time() + GRACE
    while process.returncode is None and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.002)
    return process.returncode is not None
