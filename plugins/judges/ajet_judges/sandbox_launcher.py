"""Runs one untrusted Python program behind walls: run by path, in a process of its own, by `sandbox.py`.

    launcher            told by the first line of its stdin; its stdin's end means: stop
      └ keeper          process 1 of new namespaces: builds the walls, watches, reaps; its end ends all in there
          └ program     another user, no capabilities, limits, a system-call filter

Without namespaces (``walls`` false) the launcher is the keeper, and what stands outside the filter and the
limits is open: the files that its user may read. Imports the standard library alone, and nothing of ours.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

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
PDEATHSIG, DUMPABLE, SECCOMP, NO_NEW_PRIVS, SUBREAPER = 1, 4, 22, 38, 36
ROOT = "/sys"
"""Where the new root is put together: a folder that every Linux has and that no program needs."""
BOX = "/box"
NOBODY = 65534
LOOK = 0.01
"""Seconds between two looks at what the program uses."""
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

Use = tuple[int, int, float]
"""(process id, bytes in memory, CPU seconds)"""


class NoWalls(Exception):
    """This machine does not let us build them."""


def main() -> None:
    """Run what the first line of stdin says; write what became of it, as JSON, to the file descriptor in argv."""
    status = int(sys.argv[1])
    os.set_inheritable(status, False)
    line = sys.stdin.buffer.readline()
    if not line:
        return
    job = json.loads(line)
    try:
        ended = _behind_walls(job) if job["walls"] else _in_the_open(job)
    except NoWalls as error:
        ended = {"unavailable": str(error)}
    os.write(status, json.dumps(ended).encode())


# ------------------------------------------------------------------ behind walls


def _behind_walls(job: dict[str, Any]) -> dict[str, Any]:
    if sys.platform != "linux":
        raise NoWalls(f"{sys.platform} has no namespaces")
    owner = _leave(job["as_user"])
    told, tell = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(told)
        _guarded(lambda: _keep(job, tell, owner), tell)
    os.close(tell)
    deadline = time.monotonic() + job["seconds"] + 5.0  # the keeper has its own; this is for a stuck one
    said = b""
    while True:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([told, 0], [], [], max(left, 0))
        if told in ready:
            part = os.read(told, 65536)
            if not part:
                break
            said += part
        elif not ready or not os.read(0, 1):
            os.kill(keeper, signal.SIGKILL)
            said = b'{"cause": "stopped"}' if ready else b'{"cause": "time"}'
            break
    os.waitpid(keeper, 0)
    ended: dict[str, Any] = json.loads(said or b'{"cause": "killed"}')
    if "unavailable" in ended:
        raise NoWalls(ended["unavailable"])
    return ended


def _leave(as_user: bool) -> int | None:
    """Enter new namespaces; the user id for the program, None where it is the only one there is."""
    if os.geteuid() == 0 and not as_user:
        if _libc().unshare(WALLS) == 0:
            return _spare_id()
        if ctypes.get_errno() != errno.EPERM:
            raise NoWalls(_said("unshare"))
    if os.geteuid() == 0:  # root of a container that may not do what root may: go on as anyone
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        _libc().prctl(DUMPABLE, 1, 0, 0, 0)  # else /proc/self is root's
    user, group = os.geteuid(), os.getegid()
    if _libc().unshare(WALLS | NEW_USER) != 0:
        raise NoWalls(_said("unshare"))
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


def _spare_id() -> int:
    """A user id that nobody has, so that limits on a user's processes count this program's alone."""
    with open("/proc/self/uid_map") as file:
        top = max(int(first) + int(count) for first, _, count in map(str.split, file))
    return 1_000_000_000 + os.getpid() if top > 2_000_000_000 else NOBODY


def _keep(job: dict[str, Any], tell: int, owner: int | None) -> None:
    """What process 1 does. It is never seen by the program: other rights, no memory to look at."""
    _libc().prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as process 1 it then ignores it
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)  # what is written to us is no business of the program
    _build(job, owner)
    _libc().prctl(DUMPABLE, 0, 0, 0, 0)
    os.environ.clear()
    program = _start(job, lambda: _become(owner), BOX)
    ended = _watch(job, program, lambda: _uses(lambda pid, parent: pid != 1), BOX)
    os.write(tell, json.dumps(ended).encode())


def _build(job: dict[str, Any], owner: int | None) -> None:
    """A root of the system's programs and libraries, read-only, and one small folder to write to."""
    _mount(None, "/", None, REC | PRIVATE)
    sizes = f"size={job['files'] * MiB},nr_inodes=4096"
    _mount(job["mark"], ROOT, "tmpfs", NOSUID | NODEV, "size=1m,nr_inodes=512,mode=755")
    for path in _outermost(
        ["/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/etc/ld.so.cache", *job["show"]]
    ):
        _show(path)
    for name in ("null", "zero", "full", "random", "urandom"):
        _show(f"/dev/{name}", read_only=False)
    for name in ("/proc", BOX):
        os.makedirs(ROOT + name, exist_ok=True)
    _mount("proc", f"{ROOT}/proc", "proc", NOSUID | NODEV | NOEXEC)
    _mount(job["mark"], ROOT + BOX, "tmpfs", NOSUID | NODEV, f"{sizes},mode=700")
    if not os.path.lexists(f"{ROOT}/tmp"):
        os.symlink(BOX, f"{ROOT}/tmp")
    _write_files(job, ROOT + BOX)
    if owner is not None:
        _give(ROOT + BOX, owner)
    os.chdir(ROOT)
    pivot_root = {"x86_64": 155, "aarch64": 41}.get(platform.machine())
    if pivot_root is None:
        raise NoWalls(f"no walls are built on {platform.machine()} yet")
    if _libc().syscall(pivot_root, b".", b".") != 0:
        raise NoWalls(_said("pivot_root"))
    if _libc().umount2(b".", DETACH) != 0:
        raise NoWalls(_said("umount"))
    os.chdir("/")
    _mount(None, "/", None, REMOUNT | BIND | RDONLY | NOSUID | NODEV)
    _libc().sethostname(b"sandbox", 7)


def _outermost(paths: Iterable[str]) -> list[str]:
    """Existing paths, without those that lie inside others."""
    found: list[str] = []
    for path in sorted({os.path.normpath(p) for p in paths if os.path.exists(p)}):
        if not any(path.startswith(f"{outer}/") for outer in found if not os.path.islink(outer)):
            found.append(path)
    return found


def _show(path: str, *, read_only: bool = True) -> None:
    """Let the new root have a path of the old one."""
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
        # A mount of another owner keeps the flags that it has: they must be given again.
        kept = {2: NOSUID, 4: NODEV, 8: NOEXEC, 1024: 1024, 2048: 2048, 4096: 1 << 21}
        has = os.statvfs(to).f_flag
        flags = sum(flag for bit, flag in kept.items() if has & bit)
        _mount(None, to, None, REMOUNT | BIND | RDONLY | NOSUID | NODEV | flags)


def _mount(source: str | None, to: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if t is None else t.encode() for t in (source, to, kind, data)]
    if _libc().mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]) != 0:
        raise NoWalls(_said(f"mount {to.removeprefix(ROOT) or '/'}"))


def _become(owner: int | None) -> None:
    """Another user, who owns nothing; where there is only one, the rights go when the program starts."""
    if owner is not None:
        os.setgroups([])
        os.setresgid(owner, owner, owner)
        os.setresuid(owner, owner, owner)


# ------------------------------------------------------------------ in the open


def _in_the_open(job: dict[str, Any]) -> dict[str, Any]:
    """Limits and the filter, without walls. Every descendant comes to us when its parent ends."""
    owner = None
    if os.geteuid() == 0:
        if not _for_everyone(job["python"]):
            raise NoWalls(f"programs would run as root, as no other user may read {job['python']}")
        owner = _spare_id() if sys.platform == "linux" else NOBODY
        job["own_user"] = owner != NOBODY
    if sys.platform == "linux":
        _libc().prctl(SUBREAPER, 1, 0, 0, 0)
    folder = tempfile.mkdtemp(prefix=f"{job['mark']}-")
    program = 0
    try:
        _write_files(job, folder)
        if owner is not None:
            _give(folder, owner)
        program = _start(job, lambda: _become(owner), folder)
        return _watch(job, program, _descendants, folder, lifeline=0)
    finally:
        _end_all(program)
        shutil.rmtree(folder, ignore_errors=True)


def _for_everyone(path: str) -> bool:
    while os.path.dirname(path) != path:
        if not os.stat(path).st_mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True


def _give(folder: str, owner: int) -> None:
    for inside, _, names in os.walk(folder):
        for path in (inside, *(os.path.join(inside, n) for n in names)):
            os.chown(path, owner, owner)


def _descendants() -> list[Use]:
    mine = {os.getpid()}

    def ours(pid: int, parent: int) -> bool:
        return pid not in mine and parent in mine

    found: dict[int, Use] = {}
    while new := [use for use in _uses(ours) if use[0] not in found]:
        found |= {use[0]: use for use in new}
        mine |= found.keys()
    return list(found.values())


def _end_all(program: int) -> None:
    for _ in range(1000):
        if program:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(program, signal.SIGKILL)
        for pid, _, _ in _descendants():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


# ------------------------------------------------------------------ the program


def _start(job: dict[str, Any], become: Callable[[], None], folder: str) -> int:
    """Fork the program: its limits, its filter, its command."""
    with tempfile.TemporaryFile(dir=folder) as fed:
        fed.write(job["input"].encode("utf-8", "replace"))
        fed.seek(0)
        told, tell = os.pipe()
        program = os.fork()
        if program == 0:
            _guarded(lambda: _exec(job, become, folder, fed.fileno()), tell)
    os.close(tell)
    with open(told, "rb") as complaint:  # ends when the program begins
        said = complaint.read()
    if said:
        os.waitpid(program, 0)
        raise NoWalls(json.loads(said)["unavailable"])
    return program


def _exec(job: dict[str, Any], become: Callable[[], None], folder: str, fed: int) -> None:
    os.setsid()
    os.dup2(fed, 0)
    os.chdir(folder)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out all the same, this goes first
    become()
    for what, limit in _limits(job):
        hard = resource.getrlimit(what)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        try:
            resource.setrlimit(what, (limit, limit))
        except (ValueError, OSError):
            if sys.platform == "linux":
                raise
    if sys.platform == "linux":
        _libc().prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
        _filter_calls()
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
        limits += [(resource.RLIMIT_MSGQUEUE, 0), (resource.RLIMIT_MEMLOCK, 0)]
        if job["walls"] or job.get("own_user"):  # else it would count all that this user runs
            limits += [(resource.RLIMIT_NPROC, job["processes"])]
    return limits


def _watch(
    job: dict[str, Any], program: int, uses: Callable[[], list[Use]], folder: str, lifeline: int | None = None
) -> dict[str, Any]:
    """Until the program ends or uses too much. What it leaves behind is the caller's to end."""
    started = time.monotonic()
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    before = reaped.ru_utime + reaped.ru_stime
    peak = 0
    while True:
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == program:
                    code = os.waitstatus_to_exitcode(found[1])
                    cpu = _cpu_of_children() - before
                    cause = (
                        "cpu"
                        if -code in (signal.SIGXCPU, signal.SIGKILL) and cpu >= job["cpu_seconds"]
                        else None
                    )
                    cause = "files" if -code == signal.SIGXFSZ else cause
                    return {"code": code, "cause": cause, "memory": peak}
        except ChildProcessError:
            return {"cause": "killed", "memory": peak}
        using = uses()
        files = os.statvfs(folder) if job["walls"] else None
        memory = sum(use[1] for use in using) + (
            (files.f_blocks - files.f_bfree) * files.f_frsize if files else 0
        )
        peak = max(peak, memory)
        cpu = sum(use[2] for use in using) + _cpu_of_children() - before
        for cause, value, most in (
            ("memory", memory, job["memory"] * MiB),
            ("processes", len(using), job["processes"]),
            ("cpu", cpu, job["cpu_seconds"]),
            ("time", time.monotonic() - started, job["seconds"]),
        ):
            if value > most:
                return {"cause": cause, "memory": peak}
        if lifeline is None:
            time.sleep(LOOK)
        elif select.select([lifeline], [], [], LOOK)[0] and not os.read(lifeline, 1):
            return {"cause": "stopped", "memory": peak}


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _uses(wanted: Callable[[int, int], bool]) -> list[Use]:
    """What processes use now, by /proc; nothing where there is none."""
    found = []
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has just ended
            continue
        if wanted(int(name), int(fields[1])) and fields[0] not in (b"Z", b"X"):
            cpu = sum(map(int, fields[11:15])) / TICKS
            found.append((int(name), int(fields[21]) * PAGE, cpu))
    return found


def _write_files(job: dict[str, Any], folder: str) -> None:
    for name, text in job["sources"].items():
        with open(os.path.join(folder, name), "w", encoding="utf-8", errors="replace") as file:
            file.write(text)


# ------------------------------------------------------------------ system calls that it may not make

_ARCHITECTURES = {"x86_64": (0xC000003E, 56), "aarch64": (0xC00000B7, 220)}
"""(how the filter sees it, the number of clone)"""
_DENIED = """
ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, personality 135 92,
mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, setns 308 268, unshare 272 97, swapon 167 224,
keyctl 250 219, add_key 248 217, request_key 249 218, bpf 321 280, perf_event_open 298 241, userfaultfd 323 282,
memfd_create 319 279, shmget 29 194, msgget 68 186, semget 64 190, mq_open 240 180, socket 41 198,
kexec_load 246 104, init_module 175 105, finit_module 313 273, open_by_handle_at 304 265, reboot 169 142,
syslog 103 116, quotactl 179 60
"""
"""Name, number on x86_64, number on aarch64."""
# io_uring_setup open_tree move_mount fsopen fspick pidfd_getfd mount_setattr memfd_secret: the same everywhere
_SAME = (425, 428, 429, 430, 433, 438, 442, 447)
_CLONE3 = 435
_NEW_ANYTHING = 0x7E020000
"""The flags of clone that make namespaces."""


def filtered() -> bool:
    """Whether this machine's system calls can be filtered: the network is shut even without walls."""
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES


def _filter_calls() -> None:
    """Refuse sockets (a pair of connected ones is fine), namespaces, memory outside the limits, and what only
    attackers of the kernel need."""
    if not filtered():
        return
    arch, clone = _ARCHITECTURES[platform.machine()]
    column = 1 + list(_ARCHITECTURES).index(platform.machine())
    denied = [int(line.split()[column]) for line in _DENIED.split(",")]
    load, equal, at_least, masked, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, absent = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
    code = [(load, 0, 0, 4), (equal, 1, 0, arch), (give, 0, 0, 0x80000000), (load, 0, 0, 0)]
    code += [(at_least, 0, 1, 0x40000000), (give, 0, 0, refuse)]  # the x32 numbers
    for number in (*denied, *_SAME):
        code += [(equal, 0, 1, number), (give, 0, 0, refuse)]
    code += [(equal, 0, 1, _CLONE3), (give, 0, 0, absent)]  # its flags are out of sight; clone is tried next
    code += [(equal, 0, 3, clone), (load, 0, 0, 16), (masked, 0, 1, _NEW_ANYTHING), (give, 0, 0, refuse)]
    code += [(give, 0, 0, allow)]
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
    program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(packed))
    if _libc().prctl(SECCOMP, 2, program, 0, 0) != 0:
        raise NoWalls(_said("seccomp"))


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _said(what: str) -> str:
    return f"{what}: {os.strerror(ctypes.get_errno())}"


def _guarded(work: Callable[[], None], tell: int) -> NoReturn:
    """Work in a fork, which never returns into the caller's code."""
    try:
        work()
    except NoWalls as error:
        os.write(tell, json.dumps({"unavailable": str(error)}).encode())
    except BaseException as error:
        os.write(tell, json.dumps({"unavailable": f"{type(error).__name__}: {error}"}).encode())
    finally:
        os._exit(126)


if __name__ == "__main__":
    main()
