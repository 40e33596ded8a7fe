"""What the processes of a program use, counted in /proc: where the program cannot have a cgroup of its own.

Resident memory alone would miss what belongs to no process. Memory that processes share without a file is refused by the
filter in `calls`, as /proc does not say how much of it there is. Nor does it say how much lies in sockets and pipes: each
counts with the most that it can hold, and the filter refuses every call that would let it hold more.
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
"""Most open files of a process."""
_TICKS = os.sysconf("SC_CLK_TCK")
_OWN_MEMORY = re.compile(rb"^(?:RssAnon|VmSwap|VmPTE|HugetlbPages):\s*(\d+) kB", re.MULTILINE)
_MAPPING = 256
"""Bytes of the kernel's record of a mapping."""
_SHARED_ZEROS = b"/dev/zero (deleted)\n"
"""What /proc calls a shared mapping of no file."""


def _most_in_a_socket() -> int:
    """Its send buffer, and a last message that may be as large."""
    try:
        with open("/proc/sys/net/core/wmem_default") as file:
            return 2 * int(file.read())
    except (OSError, ValueError):
        return 2 * 208 * KiB


_SOCKET, _PIPE, _EPOLL = _most_in_a_socket(), 64 * KiB, FILES * 256
"""Bytes in each at most. Those of a socket are read when the launcher starts: new network namespaces do not show them."""


class Use(NamedTuple):
    """What all processes of the program use together."""

    memory: int
    """Bytes."""
    cpu: float
    """Seconds, also of processes that have ended."""
    processes: int


class Process(NamedTuple):
    """A line of the process table."""

    pid: int
    parent: int
    place: str | None
    """Its folder in /proc, or that of a thread if the main thread has ended; None if all have."""
    cpu: float
    """Seconds, with those of the children that it has waited for."""


class Proc:
    """Counts the processes that ``wanted`` returns.

    Their processor time is exact: every second is that of a process in the table, ended or not, or of a child that was
    waited for. (The filter refuses children that the kernel reaps by itself, of whose time nothing would remain.)
    """

    mechanism = "counting in /proc" if sys.platform == "linux" else "limits of single processes"

    def __init__(
        self, wanted: Callable[[], Iterable[Process]], most: int, owner: int | None, folder: str | None
    ) -> None:
        """``most`` bytes of memory are allowed; programs run as the user ``owner``. ``folder`` is the program's own file
        system in memory, if it has one and a network namespace of its own."""
        self._wanted = wanted
        self._most = most
        self._owner = owner
        self._folder = folder
        self._waited_for = _cpu_of_children()

    def enter(self) -> None:
        """Nothing to do for the program: its processes are known by their parents."""

    def look(self) -> Use:
        """What is used now."""
        found = list(self._wanted())
        cpu = sum(process.cpu for process in found) + _cpu_of_children() - self._waited_for
        places = [process.place for process in found if process.place]
        with _seeing_as(self._owner):
            return Use(self._memory(places) + self._in_files(), cpu, len(places))

    def out_of_memory(self) -> bool:
        """Whether the kernel ended the program at its limit of memory, of which it knows nothing here."""
        return False

    def _memory(self, places: Iterable[str]) -> int:
        own, held = 0, dict[str, int]()
        for place in places:
            try:
                mappings = _read(f"{place}/maps")
                if _SHARED_ZEROS in mappings:  # by way of /dev/zero, where a program can see that
                    return self._most + 1
                own += sum(map(int, _OWN_MEMORY.findall(_read(f"{place}/status")))) * KiB
                own += mappings.count(b"\n") * _MAPPING
                held |= _held(place)
            except PermissionError:
                if _alive(place):  # it hides from us
                    return self._most + 1
            except OSError:  # it has just ended
                continue
        return own + sum(held.values()) + self._in_flight(held)

    def _in_files(self) -> int:
        if not self._folder:
            return 0
        files = os.statvfs(self._folder)
        return (files.f_blocks - files.f_bfree) * files.f_frsize

    def _in_flight(self, held: Iterable[str]) -> int:
        """Bytes in sockets that no process has open, as they are on their way through another socket."""
        if not self._folder:
            return 0
        sockets = _read("/proc/net/unix").count(b"\n") - 1
        return max(sockets - sum(name.startswith("socket:") for name in held), 0) * _SOCKET


def process_table() -> list[Process]:
    """All processes that this one can see; none where there is no /proc."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    found = []
    for name in names:
        if name.isdigit():
            try:
                found.append(_process(int(name)))
            except OSError:  # it has just ended
                continue
    return found


def descendants() -> list[Process]:
    """The processes that this one has started, and those that they have."""
    children: dict[int, list[Process]] = {}
    for process in process_table():
        children.setdefault(process.parent, []).append(process)
    found, parents = list[Process](), [os.getpid()]
    while parents:
        begun = children.pop(parents.pop(), [])
        found += begun
        parents += [process.pid for process in begun]
    return found


def _process(pid: int) -> Process:
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    place: str | None = f"/proc/{pid}"
    if fields[0] in (b"Z", b"X"):  # so it looks, too, when only its main thread has ended
        threads = [name for name in os.listdir(f"/proc/{pid}/task") if name != str(pid)]
        place = f"/proc/{pid}/task/{threads[0]}" if threads else None
    return Process(pid, int(fields[1]), place, sum(map(int, fields[11:15])) / _TICKS)


def _alive(place: str) -> bool:
    """Whether it has memory, and so has not ended. Everyone may know that."""
    try:
        return b"\nRssAnon:" in _read(f"{place}/status")
    except OSError:
        return False


def _held(place: str) -> dict[str, int]:
    """What a process has open that holds memory: bytes by name, the same name in all processes that share it."""
    found = {}
    for file in os.listdir(f"{place}/fd"):
        try:
            name = os.readlink(f"{place}/fd/{file}")
        except FileNotFoundError:  # just closed
            continue
        if name.startswith("socket:"):
            found[name] = _SOCKET
        elif name.startswith("pipe:"):
            found[name] = _PIPE
        elif name == "anon_inode:[eventpoll]":
            found[f"{place}/{file}"] = _EPOLL
    return found


@contextmanager
def _seeing_as(owner: int | None) -> Iterator[None]:
    """See in /proc what a user sees of its own processes: root of a container may not look at those of others."""
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
