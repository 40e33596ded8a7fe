"""What a program in a sandbox may do to the machine: as little as a user who owns nothing.

A program that root starts becomes a user that no other program is. Were it still root, files of the kernel, such as
/proc/sys/kernel/core_pattern, would be writable from within all walls: the kernel asks only for the user there.
"""

from __future__ import annotations

import os
import platform
import secrets
import struct
from pathlib import Path

_HIGH, _HIGHS = 1_000_000_000, 1_000_000_000
"""Ids that no system gives to users."""
_DYNAMIC, _DYNAMICS = 61_184, 4_336
"""Where a container has few ids: those that systemd keeps for services, which lends them for their time."""
_CALLS = {"x86_64": (0xC000003E, 56, 272), "aarch64": (0xC00000B7, 220, 97)}
"""The machine's number in the kernel's filters, and its numbers of the system calls clone and unshare."""
_CLONE3 = 435
_NEW_USER = 0x10000000
_REFUSED, _ABSENT, _ALLOWED = 0x50001, 0x50026, 0x7FFF0000
"""Answers of a filter: EPERM, ENOSYS, and the call itself."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _ANSWER = 0x20, 0x15, 0x35, 0x45, 0x06


def unused_id() -> int | None:
    """An id of a user and a group that nothing else has, for a program that root starts; None if root does not start it."""
    if os.geteuid() != 0:
        return None
    ranges = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    if max(first + count for first, _, count in ranges) >= _HIGH + _HIGHS:
        return _HIGH + secrets.randbelow(_HIGHS)
    return _DYNAMIC + secrets.randbelow(_DYNAMICS)


def give(folder: Path, owner: int) -> None:
    """Make a user the owner of a folder and of all in it. No link is followed."""
    for path, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(os.path.join(path, name), owner, owner, follow_symlinks=False)


def others_can_read(path: Path) -> bool:
    """Whether a user who owns nothing can read a file, or look into a folder."""
    return path.stat().st_mode & (0o005 if path.is_dir() else 0o004) != 0


def filter_of_calls() -> bytes:
    """A filter of system calls for bubblewrap (a program of the kernel's BPF) without which a program could make a user namespace
    and be root in it, and so reach much more of the kernel. Raises ValueError for a machine whose calls it does not know."""
    machine = platform.machine()
    if machine not in _CALLS:
        raise ValueError(f"the sandbox is not made for the machine {machine}; known: {', '.join(_CALLS)}")
    number, clone, unshare = _CALLS[machine]
    steps = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, number),
        (_ANSWER, 0, 0, _ABSENT),  # calls of 32-bit programs
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 5, 0, 0x40000000),  # calls of x32
        # Its flags are in memory, which a filter cannot read: the C library then takes clone.
        (_EQUAL, 4, 0, _CLONE3),
        (_EQUAL, 1, 0, clone),
        (_EQUAL, 0, 3, unshare),
        (_LOAD, 0, 0, 16),
        (_ANY_BIT, 2, 1, _NEW_USER),
        (_ANSWER, 0, 0, _ABSENT),
        (_ANSWER, 0, 0, _ALLOWED),
        (_ANSWER, 0, 0, _REFUSED),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
