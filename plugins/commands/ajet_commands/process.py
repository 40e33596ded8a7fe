"""Runs a program in a process session of its own and ends all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.interfaces.helpers import called
from ajet.interfaces.workflow import WorkflowFailed
from ajet.utils.process_group import signal_group
from ajet_commands.bounds import Bounds, resident

MOST_ANSWER = 1 << 20
"""Maximum bytes of the last line of stdout; everything before it is dropped."""
MOST_ERRORS = 8 << 10
"""Bytes of stderr that are kept."""
MOST_PROCESSES = 1024
"""Processes of one program; one that starts more is ended."""
GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL."""
_LOOK = 1.0
"""Seconds between two looks at the processes, unless looking takes long."""
_CREDENTIALS = struct.Struct("=iII")
"""Process, user and group of who has written into a socket."""
_SAID = 1000
"""Characters of its output that an error shows."""
_FRAMES = re.compile(r"^\s+at .+\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    cause: str
    """``exit 1``, ``signal 9``, ``timeout``, ``processes``, ``memory``, ``disk``, or what ``stop`` said; empty if all went well."""
    line: str | None
    """The last non-empty line of stdout; None if it is longer than what is kept."""
    own: str | None
    """The same of what the program itself has written there, without what others have that it has started."""
    said: str
    """The end of stderr, or of stdout if stderr is empty, with its name."""
    memory: int
    """The most bytes that its processes had in memory at once, as far as it was seen; 0 where that is unknown."""


async def run_process(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    stdin: bytes = b"",
    *,
    stop: asyncio.Future[str] | None = None,
    timeout: float | None = None,
    pass_fds: Sequence[int] = (),
    bounds: Bounds | None = None,
    first_writes: bool = False,
) -> Ended:
    """Run a command until it ends, ``stop`` has a result, or after ``timeout`` seconds. Cancelling ends it. Raises
    WorkflowFailed if it cannot start. ``first_writes``: the command starts the program, which is the first to write to stdout."""
    out, err = _Stdout(MOST_ANSWER), _Tail(MOST_ERRORS)
    with tempfile.TemporaryFile() as given, out.theirs:
        given.write(stdin)
        given.seek(0)
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=given,
                stdout=out.theirs.fileno(),
                stderr=subprocess.PIPE,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: an argument that no program can be given
            out.close()
            said = getattr(error, "strerror", None) or error
            raise WorkflowFailed("start", f"{command[0]}: {said}") from error
    watched = _Watched(process, bounds)
    try:
        assert process.stderr
        os.fchmod(process.stderr.fileno(), 0o666)  # for programs of another user that open /dev/stderr
        out.listen(None if first_writes else process.pid)
        await err.read(process.stderr)
        cause = await _ended(watched, stop, timeout)
        if watched.process.returncode is None:
            await _end(watched)
    except BaseException:
        await _end(watched)
        raise
    finally:
        signal_group(process.pid, signal.SIGKILL)  # remaining children keep its pipes open
        await asyncio.wait((out.ended, err.ended), timeout=GRACE)
        out.close()
        err.close()
    said = f"stderr ends: {err.text(_SAID)!r}" if err.text(1) else f"stdout ends: {out.text(_SAID)!r}"
    return Ended(cause, out.last_line(), out.own.last_line(), said, watched.memory)


async def _ended(watched: _Watched, stop: asyncio.Future[str] | None, timeout: float | None) -> str:
    """The cause of the end."""
    running = asyncio.ensure_future(watched.code())
    try:
        ends: list[asyncio.Future[Any]] = [running, *([stop] if stop else [])]
        await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if stop is not None and stop.done():  # also if the program has ended because of it
            return stop.result()
        if not running.done():
            return "timeout"
        code = running.result()
        if code is None:
            return watched.exceeded
        return "" if code == 0 else f"exit {code}" if code > 0 else f"signal {-code}"
    finally:
        running.cancel()


class _Watched:
    """A program, the memory of its processes and its bounds."""

    def __init__(self, process: subprocess.Popen[bytes], bounds: Bounds | None) -> None:
        self.process = process
        self.memory = 0
        self.exceeded = ""
        """The bound that it has exceeded."""
        self._bounds = bounds

    async def code(self) -> int | None:
        """The exit code of the command itself, even if its children keep its pipes open; None if it has exceeded a bound. It
        is polled: waiting for a process costs a thread each, or system calls that not every system has."""
        delay, clock = 0.002, asyncio.get_running_loop().time
        look = clock()
        while (code := self.process.poll()) is None:
            if clock() >= look:
                took = await self._look()
                if self.exceeded:
                    return None
                look = clock() + max(min(_LOOK, 20 * delay), 10 * took)
            await asyncio.sleep(delay)
            delay = min(2 * delay, 0.05)
        return code

    async def _look(self) -> float:
        """Look at the processes. Returns the seconds that it took."""
        began = time.monotonic()
        processes = family(self.process.pid)
        self.memory = max(self.memory, sum(map(resident, processes)))
        if len(processes) > MOST_PROCESSES:
            self.exceeded = "processes"
        elif bounds := self._bounds:
            self.exceeded = await called(bounds.exceeded, processes, name="bounds")
        return time.monotonic() - began


def family(pid: int) -> list[int]:
    """A process and its descendants, as far as they are known; at most a few more than `MOST_PROCESSES`."""
    processes, waiting = list[int](), [pid]
    while waiting and len(processes) <= MOST_PROCESSES:
        processes.append(parent := waiting.pop())
        with contextlib.suppress(OSError, ValueError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                waiting += map(int, Path(f"/proc/{parent}/task/{thread}/children").read_text().split())
    return processes


async def _end(watched: _Watched) -> None:
    """Terminate the command and its children, then kill them, and collect its exit code, so no zombie remains."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_group(watched.process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(watched.code(), GRACE)


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
        """The last characters; of a longer text, without the lines of a stack, which follow the error in JavaScript and Java."""
        text = self._data.decode(errors="replace").strip()
        return text if len(text) <= most else _FRAMES.sub("", text).strip()[-most:]

    def last_line(self) -> str | None:
        """The last non-empty line; None if it is longer than what is kept."""
        line = bytes(self._data).strip().rpartition(b"\n")[2].strip()
        return None if len(line) > self._most else line.decode(errors="replace")


class _Stdout(_Tail):
    """Keeps the last bytes that come through a socket, and those that the program itself has written. A socket tells who has
    written, and unlike a pipe it cannot be opened through /proc by what the program has started."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.own = _Tail(most)
        self._program: int | None = None
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)
        if sys.platform == "linux":
            self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    def listen(self, program: int | None) -> None:
        """Start reading. ``program``: its process; None if it is the one that writes first."""
        self._program = program
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def close(self) -> None:
        """See `_Tail.close`."""
        asyncio.get_running_loop().remove_reader(self._ours)
        self._ours.close()

    def _read(self) -> None:
        try:
            data, about, _, _ = self._ours.recvmsg(1 << 16, socket.CMSG_SPACE(_CREDENTIALS.size))
        except BlockingIOError:
            return
        except OSError:
            data, about = b"", []
        if not data:
            asyncio.get_running_loop().remove_reader(self._ours)
            self.connection_lost(None)
            return
        self.data_received(data)
        writer = _CREDENTIALS.unpack(about[0][2])[0] if about else None
        self._program = self._program or writer
        if writer in (None, self._program):  # macOS does not say who
            self.own.data_received(data)
