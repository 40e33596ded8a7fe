"""Starts the program: its files, limits, filter and command."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from ajet_sandbox.calls import filter_calls
from ajet_sandbox.linux import NO_NEW_PRIVS, NoWalls, libc

MiB = 1 << 20


def write_files(job: dict[str, Any], folder: str) -> None:
    """Write the program's sources into its folder."""
    for name, text in job["sources"].items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)


def give(folder: str, owner: int) -> None:
    """Make a user the owner of a folder and its contents."""
    for inside, _, names in os.walk(folder):
        for path in (inside, *(os.path.join(inside, n) for n in names)):
            os.chown(path, owner, owner)


def start(job: dict[str, Any], owner: int | None, folder: str, enter: Callable[[], None]) -> int:
    """Fork the program and return its process id once it runs. The child calls ``enter`` (its cgroup) and becomes the
    user ``owner``; None if it has no rights to give up. Raises NoWalls."""
    with tempfile.TemporaryFile(dir=folder) as stdin:
        stdin.write(job["input"].encode("utf-8", "replace"))
        stdin.seek(0)
        reader, writer = os.pipe()
        program = os.fork()
        if program == 0:
            guarded(lambda: _exec(job, owner, folder, stdin.fileno(), enter), writer)
    os.close(writer)
    with open(reader, "rb") as errors:  # ends when the program starts
        error = errors.read()
    if error:
        os.waitpid(program, 0)
        raise NoWalls(json.loads(error)["unavailable"])
    return program


def _exec(job: dict[str, Any], owner: int | None, folder: str, stdin: int, enter: Callable[[], None]) -> None:
    os.setsid()
    os.dup2(stdin, 0)
    os.chdir(folder)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if the machine runs out of memory, the kernel kills this first
    enter()
    if owner is not None:
        os.setgroups([])
        os.setresgid(owner, owner, owner)
        os.setresuid(owner, owner, owner)
    for kind, limit in _limits(job):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        try:
            resource.setrlimit(kind, (limit, limit))
        except (ValueError, OSError):
            if sys.platform == "linux":
                raise
    if sys.platform == "linux":
        libc().prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
        filter_calls()
    environment = {
        "HOME": folder,
        "TMPDIR": folder,
        "PATH": "/usr/bin",
        "LANG": "C.UTF-8",
        "MALLOC_ARENA_MAX": "2",
    }
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    if job["packages"]:
        environment["PYTHONPATH"] = os.pathsep.join(job["packages"])
    os.execve(job["python"], [job["python"], "-s", "-B", os.path.join(folder, "main.py")], environment)


def _limits(job: dict[str, Any]) -> list[tuple[int, int]]:
    limits = [
        (resource.RLIMIT_AS, job["memory"] * MiB),
        (resource.RLIMIT_CPU, int(job["cpu_seconds"]) + 1),
        (resource.RLIMIT_FSIZE, job["files"] * MiB),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ]
    if sys.platform == "linux":
        limits += [
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_SIGPENDING, 256),
        ]
        if job["walls"] or job.get("own_user"):  # else it would count all processes of this user
            limits += [(resource.RLIMIT_NPROC, job["processes"])]
    return limits


def guarded(work: Callable[[], None], writer: int) -> NoReturn:
    """Do the work of a forked child, report an error to ``writer``, and exit: the child never returns into the caller's
    code."""
    try:
        work()
    except NoWalls as error:
        os.write(writer, json.dumps({"unavailable": str(error)}).encode())
    except BaseException as error:
        os.write(writer, json.dumps({"unavailable": f"{type(error).__name__}: {error}"}).encode())
    finally:
        os._exit(126)
