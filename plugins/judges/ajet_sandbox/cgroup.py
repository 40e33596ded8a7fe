"""A cgroup (version 2) for the program: the kernel counts and limits what all its processes use, under any user.

It can be created in any cgroup that this user can write to and that passes memory and process limits to its children:
as root of a machine, or in a subtree that belongs to the user, such as a service or scope of a systemd user session.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress

from ajet_sandbox.usage import Use

PREFIX = "ajet-sandbox-"
_NEEDED = {"memory", "pids"}
_PATIENCE = 2.0
"""Seconds that the kernel may take to end the processes of a cgroup."""


class Cgroup:
    """A cgroup owned by this process. A lock on its folder marks the owner; the kernel releases the lock when the process
    dies."""

    mechanism = "cgroup v2"

    def __init__(self, parent: int, name: str) -> None:
        """``parent``: file descriptor of the folder to create it in. Raises OSError."""
        self._parent, self._name = parent, name
        os.mkdir(name, dir_fd=parent)
        self._folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent)
        fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def limit(self, memory: int, processes: int) -> None:
        """Limit memory (bytes, no swap) and the number of processes and threads. Raises OSError."""
        _write(self._folder, "memory.max", memory)
        _write(self._folder, "memory.oom.group", 1)
        _write(self._folder, "pids.max", processes)
        if os.access("memory.swap.max", os.F_OK, dir_fd=self._folder):  # else this kernel has no swap
            _write(self._folder, "memory.swap.max", 0)

    def enter(self) -> None:
        """Move this process, which becomes the program, into the cgroup."""
        _write(self._folder, "cgroup.procs", 0)

    def look(self) -> Use:
        """What is used now."""
        spent = int(self._fields("cpu.stat")["usage_usec"]) / 1e6
        return Use(
            int(_read(self._folder, "memory.current")), spent, int(_read(self._folder, "pids.current"))
        )

    def out_of_memory(self) -> bool:
        """Whether the kernel ended the program at its memory limit."""
        return self._fields("memory.events")["oom_kill"] != "0"

    def remove(self) -> None:
        """End the processes in it, and remove it."""
        with suppress(OSError):  # kernels before 5.14 lack it; the caller ends the processes it knows
            _write(self._folder, "cgroup.kill", 1)
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            try:
                os.rmdir(self._name, dir_fd=self._parent)
                break
            except OSError:  # not empty yet
                time.sleep(0.002)
        os.close(self._folder)
        os.close(self._parent)

    def _fields(self, file: str) -> dict[str, str]:
        return dict(line.split() for line in _read(self._folder, file).splitlines())


def make_cgroup(memory: int, processes: int) -> Cgroup | None:
    """A new cgroup with these limits (bytes, processes); None if this process cannot create one. Also removes abandoned
    ones."""
    for path in _own_and_above():
        try:
            parent = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        made = None
        if _gives_limits(parent):
            _remove_abandoned(parent)
            made = _made(parent)
        if made is None:
            os.close(parent)
            continue
        try:
            made.limit(memory, processes)
        except OSError:
            made.remove()
        else:
            return made
    return None


def _own_and_above() -> Iterator[str]:
    """The folders of this process's cgroup and of its parents, if mounted."""
    try:
        with open("/proc/self/cgroup") as file:
            own = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), "")
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split() for line in file if " - cgroup2 " in line]
    except OSError:
        return
    for _, _, _, root, mount, *_ in mounts:
        root = root.rstrip("/")
        if not own.startswith(f"{root}/") or "/.." in own:
            continue
        below = own.removeprefix(root)
        while below != "/":
            yield mount + below
            below = os.path.dirname(below)
        yield mount


def _gives_limits(parent: int) -> bool:
    """Whether cgroups in a folder get limits, and this process can move processes there."""
    try:
        given = _read(parent, "cgroup.subtree_control").split()
    except OSError:
        return False
    return set(given) >= _NEEDED and os.access("cgroup.procs", os.W_OK, dir_fd=parent)


def _made(parent: int) -> Cgroup | None:
    for _ in range(3):  # another launcher may remove a new one as abandoned before it is locked
        with suppress(OSError):
            return Cgroup(parent, f"{PREFIX}{os.urandom(8).hex()}")
    return None


def _remove_abandoned(parent: int) -> None:
    """Remove the cgroups of launchers that were killed: their locks are free."""
    for name in os.listdir(parent):
        if not name.startswith(PREFIX):
            continue
        with suppress(OSError):
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _write(folder, "cgroup.kill", 1)
                os.rmdir(name, dir_fd=parent)
            finally:
                os.close(folder)


def _read(folder: int, file: str) -> str:
    with open(os.open(file, os.O_RDONLY, dir_fd=folder)) as opened:
        return opened.read()


def _write(folder: int, file: str, value: int) -> None:
    with open(os.open(file, os.O_WRONLY, dir_fd=folder), "w") as opened:
        opened.write(str(value))
