"""Linux namespaces with their own root: the system's programs, read-only, and one small writable folder."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Iterable
from typing import Any

from ajet_sandbox.linux import DUMPABLE, NoWalls, failure, libc
from ajet_sandbox.program import give, write_files

MiB = 1 << 20
NEW_NS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PID, NEW_NET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
WALLS = NEW_NS | NEW_UTS | NEW_IPC | NEW_PID | NEW_NET
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
ROOT = "/sys"
"""Where the new root is built: a folder that every Linux has and that no program needs."""
BOX = "/box"
"""The folder of the program."""
NOBODY = 65534


def leave(as_user: bool) -> int | None:
    """Enter new namespaces. Returns the user id for the program; None if the namespace has only one. Raises NoWalls."""
    if os.geteuid() == 0 and not as_user:
        if libc().unshare(WALLS) == 0:
            return spare_id()
        if ctypes.get_errno() != errno.EPERM:
            raise NoWalls(failure("unshare"))
    if os.geteuid() == 0:  # root of a container without root's rights: continue as an unprivileged user
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        libc().prctl(DUMPABLE, 1, 0, 0, 0)  # else /proc/self belongs to root
    user, group = os.geteuid(), os.getegid()
    if libc().unshare(WALLS | NEW_USER) != 0:
        raise NoWalls(failure("unshare"))
    try:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"1000 {user} 1"),
            ("gid_map", f"1000 {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError as error:
        raise NoWalls(f"user namespace: {error}") from None
    return None


def spare_id() -> int:
    """An unused user id, so that limits on a user's processes count only those of this program."""
    with open("/proc/self/uid_map") as file:
        top = max(int(first) + int(count) for first, _, count in map(str.split, file))
    return 1_000_000_000 + os.getpid() if top > 2_000_000_000 else NOBODY


def build(job: dict[str, Any], owner: int | None) -> None:
    """Build a root of the system's programs and libraries, read-only, and one small writable folder. Raises NoWalls."""
    _mount(None, "/", None, REC | PRIVATE)
    sizes = f"size={job['files'] * MiB},nr_inodes=4096"
    _mount(job["mark"], ROOT, "tmpfs", NOSUID | NODEV, "size=1m,nr_inodes=512,mode=755")
    for path in _outermost(
        ["/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/etc/ld.so.cache", *job["show"]]
    ):
        _show(path)
    # Not zero: mapping it gives memory that cannot be counted.
    for name in ("null", "full", "random", "urandom"):
        _show(f"/dev/{name}", read_only=False)
    for name in ("/proc", BOX):
        os.makedirs(ROOT + name, exist_ok=True)
    _mount("proc", f"{ROOT}/proc", "proc", NOSUID | NODEV | NOEXEC)
    _mount(job["mark"], ROOT + BOX, "tmpfs", NOSUID | NODEV, f"{sizes},mode=700")
    if not os.path.lexists(f"{ROOT}/tmp"):
        os.symlink(BOX, f"{ROOT}/tmp")
    write_files(job, ROOT + BOX)
    if owner is not None:
        give(ROOT + BOX, owner)
    os.chdir(ROOT)
    pivot_root = {"x86_64": 155, "aarch64": 41}.get(platform.machine())
    if pivot_root is None:
        raise NoWalls(f"{platform.machine()} is not supported")
    if libc().syscall(pivot_root, b".", b".") != 0:
        raise NoWalls(failure("pivot_root"))
    if libc().umount2(b".", DETACH) != 0:
        raise NoWalls(failure("umount"))
    os.chdir("/")
    _mount(None, "/", None, REMOUNT | BIND | RDONLY | NOSUID | NODEV)
    libc().sethostname(b"sandbox", 7)


def _outermost(paths: Iterable[str]) -> list[str]:
    """The existing paths, without those inside other ones."""
    outermost: list[str] = []
    for path in sorted({os.path.normpath(p) for p in paths if os.path.exists(p)}):
        if not any(path.startswith(f"{outer}/") for outer in outermost if not os.path.islink(outer)):
            outermost.append(path)
    return outermost


def _show(path: str, *, read_only: bool = True) -> None:
    """Make a path of the old root visible in the new one."""
    to = ROOT + path
    os.makedirs(os.path.dirname(to), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), to)
        return
    if os.path.isdir(path):
        os.makedirs(to, exist_ok=True)
    else:
        os.close(os.open(to, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(path, to, None, BIND | REC)
    if read_only:
        # The flags of another owner's mount cannot be dropped, so a remount must repeat them.
        kept = {2: NOSUID, 4: NODEV, 8: NOEXEC, 1024: 1024, 2048: 2048, 4096: 1 << 21}
        has = os.statvfs(to).f_flag
        flags = sum(flag for bit, flag in kept.items() if has & bit)
        _mount(None, to, None, REMOUNT | BIND | RDONLY | NOSUID | NODEV | flags)


def _mount(source: str | None, to: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if t is None else t.encode() for t in (source, to, kind, data)]
    if libc().mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]) != 0:
        raise NoWalls(failure(f"mount {to.removeprefix(ROOT) or '/'}"))
