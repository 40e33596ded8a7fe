"""The filter on system calls: no network, no namespaces, and no memory outside the limits."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys

from ajet_sandbox.linux import SECCOMP, NoWalls, failure, libc

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Architectures with a filter, and their numbers in the kernel's filter."""
_DENIED = """
ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, personality 135 92,
mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, setns 308 268, unshare 272 97, swapon 167 224,
keyctl 250 219, add_key 248 217, request_key 249 218, bpf 321 280, perf_event_open 298 241, userfaultfd 323 282,
memfd_create 319 279, shmget 29 194, msgget 68 186, semget 64 190, mq_open 240 180, socket 41 198,
setsockopt 54 208, vmsplice 278 75, io_setup 206 0, inotify_init1 294 26, inotify_init 253 26, fanotify_init 300 262,
kexec_load 246 104, init_module 175 105, finit_module 313 273, open_by_handle_at 304 265, reboot 169 142,
syslog 103 116, quotactl 179 60
"""
"""Name, number on x86_64, number on aarch64. They include calls that allocate memory outside any process: shared memory
segments, larger socket buffers (setsockopt), pages of others in pipes (vmsplice), event queues."""
# io_uring_setup open_tree move_mount fsopen fspick pidfd_getfd mount_setattr memfd_secret: the same numbers on both
_SAME = (425, 428, 429, 430, 433, 438, 442, 447)
_CLONE3 = 435
_CLONE, _MMAP, _SOCKETPAIR, _FCNTL, _SIGACTION = (56, 220), (9, 222), (53, 199), (72, 25), (13, 134)
"""Numbers on x86_64 and aarch64."""
_NEW_ANYTHING = 0x7E020000
"""The flags of clone that create namespaces."""
_CLONE_THREAD, _CLONE_FILES = 0x10000, 0x400
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
_AF_UNIX, _F_SETPIPE_SZ, _SIGCHLD = 1, 1031, 17

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _GIVE = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of the kernel's filter language (BPF)."""
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_REFUSE, _ABSENT = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
_NUMBER, _MACHINE = 0, 4

Step = tuple[int, int, int, int]
"""(instruction, steps to skip if true, if false, value)"""


def filtered() -> bool:
    """Whether this machine's system calls can be filtered. If so, there is no network even without namespaces."""
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES


def filter_calls() -> None:
    """Apply the filter to this process and its children. Raises NoWalls."""
    if not filtered():
        return
    steps = _steps()
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(packed))
    if libc().prctl(SECCOMP, 2, program, 0, 0) != 0:
        raise NoWalls(failure("seccomp"))


def _steps() -> list[Step]:
    column = list(_ARCHITECTURES).index(platform.machine())
    denied = [int(line.split()[1 + column]) for line in _DENIED.split(",")]
    steps = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, _ARCHITECTURES[platform.machine()]),
        (_GIVE, 0, 0, _KILL),
    ]
    steps += [(_LOAD, 0, 0, _NUMBER)]
    steps += [(_AT_LEAST, 0, 1, 0x40000000), (_GIVE, 0, 0, _REFUSE)]  # the x32 numbers
    for number in (*denied, *_SAME):
        steps += [(_EQUAL, 0, 1, number), (_GIVE, 0, 0, _REFUSE)]
    # The filter cannot see its flags; the C library then tries clone.
    steps += [(_EQUAL, 0, 1, _CLONE3), (_GIVE, 0, 0, _ABSENT)]
    # Refuse namespaces, and threads with their own file tables, whose open files would be hard to find.
    steps += _refused_if(
        _CLONE[column],
        [
            (_LOAD, 0, 0, _argument(0)),
            (_ANY_BIT, 2, 0, _NEW_ANYTHING),
            (_ANY_BIT, 0, 2, _CLONE_THREAD),
            (_ANY_BIT, 1, 0, _CLONE_FILES),
        ],
    )
    # Refuse shared memory without a file: it can exist while no process maps it, and /proc does not show its size.
    steps += _refused_if(
        _MMAP[column],
        [(_LOAD, 0, 0, _argument(3)), (_ANY_BIT, 0, 2, _MAP_ANONYMOUS), (_ANY_BIT, 0, 1, _MAP_SHARED)],
    )
    # Allow pairs of connected Unix sockets, which asyncio needs, but not those of other families, such as TIPC.
    steps += _refused_if(_SOCKETPAIR[column], [(_LOAD, 0, 0, _argument(0)), (_EQUAL, 1, 0, _AF_UNIX)])
    steps += _refused_if(_FCNTL[column], [(_LOAD, 0, 0, _argument(1)), (_EQUAL, 0, 1, _F_SETPIPE_SZ)])
    # The kernel reaps the children of a process that ignores SIGCHLD, and their CPU time is lost. Reading the current
    # action (a null pointer) is allowed.
    new_action = _argument(1)
    steps += _refused_if(
        _SIGACTION[column],
        [
            (_LOAD, 0, 0, _argument(0)),
            (_EQUAL, 0, 5, _SIGCHLD),
            (_LOAD, 0, 0, new_action),
            (_EQUAL, 0, 2, 0),
            (_LOAD, 0, 0, new_action + 4),
            (_EQUAL, 1, 0, 0),
        ],
    )
    return [*steps, (_GIVE, 0, 0, _ALLOW)]


def _argument(index: int) -> int:
    """Offset of the low half of a call's argument; both architectures are little-endian."""
    return 16 + 8 * index


def _refused_if(call: int, condition: list[Step]) -> list[Step]:
    """Refuse a call if its arguments meet a condition. The condition must end by skipping one step if they do not."""
    return [
        (_EQUAL, 0, len(condition) + 2, call),
        *condition,
        (_GIVE, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER),
    ]
