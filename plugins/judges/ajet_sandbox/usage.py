"""Counts in /proc what the processes of a program use, where the program cannot have its own cgroup.

Resident memory alone would miss memory outside any process. The filter in `calls` refuses shared memory without a file,
because /proc does not show its size. /proc does not show the contents of sockets and pipes either: each counts with its
maximum, and the filter refuses every call that would raise it.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ajet_sandbox.linux import libc

KiB = 1 << 10
FILES = 256
"""Maximum open files of a process."""
_TICKS = os.sysconf("SC_CLK_TCK")
_OWN_MEMORY = re.compile(rb"^(?:RssAnon|VmSwap|VmPTE|HugetlbPages):\s*(\d+) kB", re.MULTILINE)
_MAPPING = 256
"""Bytes of the kernel's record of a memory mapping."""
_SHARED_ZEROS = b"/dev/zero (deleted)\n"
"""The name of a shared mapping without a file in /proc."""


def _most_in_a_socket() -> int:
    """Bytes: its send buffer, and a last message of up to the same size."""
    try:
        with open("/proc/sys/net/core/wmem_default") as file:
            return 2 * int(file.read())
    except (OSError, ValueError):
        return 2 * 208 * KiB


_SOCKET, _PIPE, _EPOLL = _most_in_a_socket(), 64 * KiB, FILES * 256
"""Maximum bytes in each. The socket's is read when the launcher starts, because new network namespaces do not show it."""


class Use(NamedTuple):
    """Total use of all processes of the program."""

    memory: int
    """Bytes."""
    cpu: float
    """CPU seconds, including processes that have ended."""
    processes: int


class Process(NamedTuple):
    """A line of the process table."""

    pid: int
    parent: int
    folder: str | None
    """Its folder in /proc, or that of a thread if the main thread has ended; None if all threads have ended."""
    cpu: float
    """CPU seconds, including children that it has waited for."""


class Proc:
    """Counts the processes that ``wanted`` returns.

    Their CPU time is exact: every second belongs to a process in the table, ended or not, or to a child that was waited
    for. (The filter prevents the kernel from reaping children itself, which would lose their time.)
    """

    mechanism = "counting in /proc" if sys.platform == "linux" else "limits of single processes"

    def __init__(
        self, wanted: Callable[[], Iterable[Process]], limit: int, owner: int | None, folder: str | None
    ) -> None:
        """``limit``: bytes of memory. ``owner``: the user id of the program. ``folder``: the program's own file system in
        memory, if it has one and its own network namespace."""
        self._wanted = wanted
        self._limit = limit
        self._owner = owner
        self._folder = folder
        self._waited_for = _cpu_of_children()

    def enter(self) -> None:
        """Does nothing: the program's processes are found by their parents."""

    def look(self) -> Use:
        """What is used now."""
        processes = list(self._wanted())
        cpu = sum(process.cpu for process in processes) + _cpu_of_children() - self._waited_for
        folders = [process.folder for process in processes if process.folder]
        with _seeing_as(self._owner):
            return Use(self._memory(folders) + self._in_files(), cpu, len(folders))

    def out_of_memory(self) -> bool:
        """Always false: without a cgroup, the kernel does not enforce the memory limit."""
        return False

    def _memory(self, folders: Iterable[str]) -> int:
        own, buffers = 0, dict[str, int]()
        for folder in folders:
            try:
                mappings = _read(f"{folder}/maps")
                if _SHARED_ZEROS in mappings:  # through /dev/zero, if the program can see it
                    return self._limit + 1
                own += sum(map(int, _OWN_MEMORY.findall(_read(f"{folder}/status")))) * KiB
                own += mappings.count(b"\n") * _MAPPING
                buffers |= _buffers(folder)
            except PermissionError:
                if _alive(folder):  # it hides its memory
                    return self._limit + 1
            except OSError:  # it has just ended
                continue
        return own + sum(buffers.values()) + self._in_flight(buffers)

    def _in_files(self) -> int:
        if not self._folder:
            return 0
        files = os.statvfs(self._folder)
        return (files.f_blocks - files.f_bfree) * files.f_frsize

    def _in_flight(self, buffers: Iterable[str]) -> int:
        """Bytes in sockets that no process has open, because they are being sent through another socket."""
        if not self._folder:
            return 0
        sockets = _read("/proc/net/unix").count(b"\n") - 1
        return max(sockets - sum(name.startswith("socket:") for name in buffers), 0) * _SOCKET


def process_table() -> list[Process]:
    """All processes that this one can see; empty without /proc."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    processes = []
    for name in names:
        if name.isdigit():
            try:
                processes.append(_process(int(name)))
            except OSError:  # it has just ended
                continue
    return processes


def descendants() -> list[Process]:
    """The processes that this one has started, and their descendants."""
    children: dict[int, list[Process]] = {}
    for process in process_table():
        children.setdefault(process.parent, []).append(process)
    processes, parents = list[Process](), [os.getpid()]
    while parents:
        started = children.pop(parents.pop(), [])
        processes += started
        parents += [process.pid for process in started]
    return processes


def _process(pid: int) -> Process:
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    folder: str | None = f"/proc/{pid}"
    if fields[0] in (b"Z", b"X"):  # also the state if only the main thread has ended
        threads = [name for name in os.listdir(f"/proc/{pid}/task") if name != str(pid)]
        folder = f"/proc/{pid}/task/{threads[0]}" if threads else None
    return Process(pid, int(fields[1]), folder, sum(map(int, fields[11:15])) / _TICKS)


def _alive(folder: str) -> bool:
    """Whether a process has memory, so has not ended. Every user can read that."""
    try:
        return b"\nRssAnon:" in _read(f"{folder}/status")
    except OSError:
        return False


def _buffers(folder: str) -> dict[str, int]:
    """Maximum bytes in each socket, pipe and event queue that a process has open, by a name that is the same in all
    processes that share it."""
    sizes = {}
    for file in os.listdir(f"{folder}/fd"):
        try:
            name = os.readlink(f"{folder}/fd/{file}")
        except FileNotFoundError:  # just closed
            continue
        if name.startswith("socket:"):
            sizes[name] = _SOCKET
        elif name.startswith("pipe:"):
            sizes[name] = _PIPE
        elif name == "anon_inode:[eventpoll]":
            sizes[f"{folder}/{file}"] = _EPOLL
    return sizes


@contextmanager
def _seeing_as(owner: int | None) -> Iterator[None]:
    """Read /proc as a user reads its own processes: root of a container cannot inspect those of other users."""
    if owner is None:
        yield
        return
    libc().setfsgid(owner)
    libc().setfsuid(owner)
    try:
        yield
    finally:
        libc().setfsuid(os.geteuid())
        libc().setfsgid(os.getegid())


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
