"""The processes of a sandbox, and the messages between them."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

from ajet_sandbox.cgroup import Cgroup, make_cgroup
from ajet_sandbox.linux import DUMPABLE, PDEATHSIG, SUBREAPER, NoWalls, libc
from ajet_sandbox.program import give, guarded, start, write_files
from ajet_sandbox.usage import Proc, Process, descendants, process_table
from ajet_sandbox.walls import BOX, NOBODY, build, leave, spare_id
from ajet_sandbox.watch import Meter, watch

MiB = 1 << 20


def main() -> None:
    """Run the job in the first line of stdin; write its result, as JSON, to the file descriptor in argv."""
    status = int(sys.argv[1])
    os.set_inheritable(status, False)
    line = sys.stdin.buffer.readline()
    if not line:
        return
    job = json.loads(line)
    try:
        ended = _behind_walls(job) if job["walls"] else _without_walls(job)
    except NoWalls as error:
        ended = {"unavailable": str(error)}
    os.write(status, json.dumps(ended).encode())


def _cgroup(job: dict[str, Any]) -> Cgroup | None:
    return make_cgroup(job["memory"] * MiB, job["processes"]) if sys.platform == "linux" else None


# ------------------------------------------------------------------ behind walls


def _behind_walls(job: dict[str, Any]) -> dict[str, Any]:
    if sys.platform != "linux":
        raise NoWalls(f"{sys.platform} has no namespaces")
    owner = leave(job["as_user"])
    cgroup = _cgroup(job)
    try:
        return _kept(job, owner, cgroup)
    finally:
        if cgroup:
            cgroup.remove()


def _kept(job: dict[str, Any], owner: int | None, cgroup: Cgroup | None) -> dict[str, Any]:
    """The program's result, as its keeper reports it. Raises NoWalls."""
    reader, writer = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(reader)
        guarded(lambda: _keep(job, writer, owner, cgroup), writer)
    os.close(writer)
    deadline = time.monotonic() + job["seconds"] + 5.0  # the keeper enforces the limit, unless it hangs
    report = b""
    while True:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([reader, 0], [], [], max(left, 0))
        if reader in ready:
            part = os.read(reader, 65536)
            if not part:
                break
            report += part
        elif not ready or not os.read(0, 1):
            os.kill(keeper, signal.SIGKILL)
            report = b'{"cause": "stopped"}' if ready else b'{"cause": "time"}'
            break
    os.waitpid(keeper, 0)
    ended: dict[str, Any] = json.loads(report or b'{"cause": "killed"}')
    if "unavailable" in ended:
        raise NoWalls(ended["unavailable"])
    return ended


def _keep(job: dict[str, Any], writer: int, owner: int | None, cgroup: Cgroup | None) -> None:
    """The work of process 1. The program cannot inspect it: it has other rights, and its memory is protected."""
    libc().prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # process 1 ignores signals with the default action
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)  # the program must not read the launcher's stdin
    build(job, owner)
    libc().prctl(DUMPABLE, 0, 0, 0, 0)
    os.environ.clear()
    meter: Meter = cgroup or Proc(_all_but_us, job["memory"] * MiB, owner, BOX)
    program = start(job, owner, BOX, meter.enter)
    os.write(writer, json.dumps(watch(job, program, meter)).encode())


def _all_but_us() -> list[Process]:
    return [process for process in process_table() if process.pid != 1]


# ------------------------------------------------------------------ without walls


def _without_walls(job: dict[str, Any]) -> dict[str, Any]:
    """Limits and the filter, without walls. The launcher inherits every descendant whose parent ends."""
    owner = None
    if os.geteuid() == 0:
        if not _all_can_read(job["python"]):
            raise NoWalls(f"programs would run as root, because no other user can read {job['python']}")
        owner = spare_id() if sys.platform == "linux" else NOBODY
        job["own_user"] = owner != NOBODY
    if sys.platform == "linux":
        libc().prctl(SUBREAPER, 1, 0, 0, 0)
    cgroup = _cgroup(job)
    folder = tempfile.mkdtemp(prefix=f"{job['mark']}-")
    program = 0
    try:
        write_files(job, folder)
        if owner is not None:
            give(folder, owner)
        meter: Meter = cgroup or Proc(descendants, job["memory"] * MiB, owner, None)
        program = start(job, owner, folder, meter.enter)
        return watch(job, program, meter, lifeline=0)
    finally:
        _end_all(program)
        if cgroup:
            cgroup.remove()
        shutil.rmtree(folder, ignore_errors=True)


def _all_can_read(path: str) -> bool:
    while os.path.dirname(path) != path:
        if not os.stat(path).st_mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True


def _end_all(program: int) -> None:
    for _ in range(1000):
        if program:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(program, signal.SIGKILL)
        for process in descendants():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)
