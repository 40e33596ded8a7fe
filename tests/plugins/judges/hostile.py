# ruff: noqa: E501
"""Forty programs that mean harm, each bounded by itself: 500 forks, 4 GB, 30 s at most.

Each has the ways in which it may end: the limits that stop it; "exit" for a complaint of its own, or a signal; "ended"
for one that comes to its end without having done harm, as it then prints HARMLESS last; "finished" for one that just
comes to its end.
"""

from __future__ import annotations

from typing import NamedTuple


class Hostile(NamedTuple):
    """A program and how it may end."""

    ends: tuple[str, ...]
    source: str


PROGRAMS = {
    "endless loop": Hostile(
        ("time", "cpu"), "import time\nend = time.time() + 30\nwhile time.time() < end: pass"
    ),
    "endless sleep": Hostile(("time",), "import time\ntime.sleep(30)"),
    "loop that swallows everything": Hostile(
        ("time", "cpu"),
        "import signal, time\nfor s in range(1, 65):\n    try: signal.signal(s, lambda *a: None)\n    except Exception: pass\n"
        "end = time.time() + 30\nwhile time.time() < end:\n    try: time.sleep(0.01)\n    except BaseException: pass",
    ),
    "endless output": Hostile(
        ("output",), "import time\nend = time.time() + 30\nwhile time.time() < end: print('x' * 10000)"
    ),
    "endless complaints": Hostile(
        ("output",),
        "import sys, time\nend = time.time() + 30\nwhile time.time() < end: sys.stderr.write('x' * 10000)",
    ),
    "fork bomb": Hostile(
        ("processes", "time", "cpu", "ended"),
        "import os, time\nend, forks = time.time() + 30, 0\nwhile time.time() < end and forks < 8:\n"
        "    try: os.fork()\n    except OSError: time.sleep(0.1)\n    forks += 1\ntime.sleep(10)\nprint('HARMLESS')",
    ),
    "many sleeping children": Hostile(
        ("processes", "time"),
        "import os, time\nfor i in range(400):\n    try:\n        if os.fork() == 0:\n            time.sleep(30); os._exit(0)\n"
        "    except OSError: time.sleep(0.05)\n",
    ),
    "many threads": Hostile(
        ("processes", "ended"),
        "import os, threading, time\nthreading.stack_size(1 << 16)  # or memory would be the limit\nstarted = 0\nfor i in range(400):\n"
        "    try: threading.Thread(target=time.sleep, args=(30,)).start()\n    except RuntimeError: break\n    started += 1\n"
        "print('HARMLESS' if started < 20 else started, flush=True)\nos._exit(0)  # without waiting for them",
    ),
    "children that fork on when their parent ends": Hostile(
        ("time", "cpu", "processes", "finished"),
        "import os, time\nend = time.time() + 20\nfor i in range(400):\n    if time.time() > end: break\n"
        "    try: pid = os.fork()\n    except OSError: time.sleep(0.05); continue\n    if pid: time.sleep(0.03); os._exit(0)\n",
    ),
    "orphan of its own session": Hostile(
        ("ended",),
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(30)\n    os._exit(0)\n"
        "time.sleep(0.1)\nprint('HARMLESS')",
    ),
    "orphan that holds the output": Hostile(
        ("ended",),
        "import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    end = time.time() + 30\n"
        "    while time.time() < end:\n        time.sleep(1)\n    os._exit(0)\nprint('HARMLESS')",
    ),
    "one large allocation": Hostile(("memory", "exit"), "x = bytearray(4 << 30)\nprint(len(x))"),
    "growing list": Hostile(
        ("memory", "exit"), "x = []\nfor i in range(4000): x.append(bytearray(b'x' * (1 << 20)))"
    ),
    "memory in many processes": Hostile(
        ("memory",),
        "import os, time\nfor i in range(8):\n    if os.fork() == 0:\n        x = []\n        for j in range(10): x.append(b'x' * (10 << 20)); "
        "time.sleep(0.2)\n        time.sleep(20)\n        os._exit(0)\ntime.sleep(20)",
    ),
    "large mapping of a file": Hostile(
        ("files", "exit", "memory"),
        "import mmap, os\nf = open('big', 'wb+')\nos.truncate('big', 2 << 30)\nm = mmap.mmap(f.fileno(), 2 << 30)\n"
        "for i in range(0, 2 << 30, 4096): m[i] = 1",
    ),
    "memory without a name": Hostile(
        ("ended",),
        "import os\ntry:\n    fd = os.memfd_create('x')\nexcept OSError:\n    print('HARMLESS')\n",
    ),
    "endless file": Hostile(
        ("files", "exit"), "with open('big', 'wb') as f:\n    for i in range(2000): f.write(b'x' * (1 << 20))"
    ),
    "many files": Hostile(
        ("exit", "memory"),
        "for i in range(2000):\n    with open(f'f{i}', 'wb') as f: f.write(b'x' * (1 << 20))",
    ),
    "many empty files": Hostile(("exit",), "for i in range(100_000): open(f'f{i}', 'w').close()"),
    "the caller's environment": Hostile(
        ("ended",),
        "import glob, os\nassert 'SECRET_OF_THE_CALLER' not in os.environ\nfor p in glob.glob('/proc/[0-9]*/environ'):\n    try:\n"
        "        assert b'SECRET_OF_THE_CALLER' not in open(p, 'rb').read(), p\n    except OSError: pass\nprint('HARMLESS')",
    ),
    "the caller's home and files": Hostile(
        ("ended",),
        "import os\nfor p in ['{home}', '{file}', '/home', '/root/.bashrc', '/etc/passwd', '/etc/shadow', '/work', '/var/run', '/run']:\n"
        "    found = os.path.exists(p) and (os.path.isfile(p) or [n for n in os.listdir(p) if n not in '{shown}'])\n"
        "    assert not found, (p, found)\nprint('HARMLESS')",
    ),
    "the caller's file by another way": Hostile(
        ("ended",),
        "import os\nfor p in ['/proc/1/root{file}', '/proc/self/root/../..{file}', '/proc/1/cwd', '/proc/1/fd']:\n    try: found = os.listdir(p) "
        "if os.path.isdir(p) else open(p).read()\n    except OSError: continue\n    assert 'proc' in p and not found, p\nprint('HARMLESS')",
    ),
    "writing outside its folder": Hostile(
        ("ended",),
        "import sys, os\nfor p in ['/x', '/usr/x', os.path.dirname(os.__file__) + '/x.py', os.path.dirname(sys.executable) + '/x', '/etc/x', '/dev/x']:\n"
        "    try: open(p, 'w')\n    except OSError: continue\n    raise SystemExit(p)\nprint('HARMLESS')",
    ),
    "network by TCP": Hostile(
        ("ended",),
        "import socket\ntry:\n    socket.create_connection(('127.0.0.1', {port}), 3)\nexcept OSError:\n    print('HARMLESS')",
    ),
    "network by UDP and name": Hostile(
        ("ended",),
        "import socket\nfor family, kind in [(2, 2), (10, 1), (16, 3), (17, 3), (40, 1), (1, 1)]:\n    try: socket.socket(family, kind)\n"
        "    except OSError: continue\n    raise SystemExit(str(family))\ntry: socket.getaddrinfo('localhost', 80)\nexcept OSError: pass\nprint('HARMLESS')",
    ),
    "killing other processes": Hostile(
        ("ended", "exit"),
        "import os, signal\nfor pid in [{pid}, {parent}, 1]:\n    for s in (15, 9):\n        try: os.kill(pid, s)\n        except OSError: pass\n"
        "print('HARMLESS')",
    ),
    "killing its keeper's group": Hostile(
        ("ended", "exit"),
        "import os, signal\nsignal.signal(15, signal.SIG_IGN)\ntry: os.kill(-1, 15)\nexcept OSError: pass\n"
        "try: os.killpg(os.getpgid(1), 9)\nexcept OSError: pass\nprint('HARMLESS')",
    ),
    "new namespaces, mounts and a new root": Hostile(
        ("ended",),
        "import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\nassert c.unshare(0x10000000) != 0\nassert c.unshare(0x20000) != 0\n"
        "assert c.mount(b'x', b'/box', b'tmpfs', 0, None) != 0\nassert c.umount2(b'/proc', 2) != 0\nassert c.chroot(b'/box') != 0\n"
        "assert c.ptrace(16, 1, 0, 0) != 0\nassert c.setuid(0) != 0 or os.getuid() != 0\nprint('HARMLESS')",
    ),
    "raising its own limits": Hostile(
        ("memory", "exit"),
        "import resource\nfor r in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC):\n    try: resource.setrlimit(r, (-1, -1))\n"
        "    except (OSError, ValueError): pass\nx = bytearray(b'x' * (3 << 30))",
    ),
    "a fake report": Hostile(
        ("exit",),
        'import os\nfor fd in range(3, 256):\n    try: os.write(fd, b\'{"code": 0, "cause": null}\')\n    except OSError: pass\n'
        "raise SystemExit(7)",
    ),
    "shared memory that only sleeping children keep": Hostile(
        ("ended",),
        "import mmap, os, time\nkept = 0\nfor i in range(10):\n    try: m = mmap.mmap(-1, 150 << 20)\n    except OSError: break\n"
        "    for j in range(0, 150 << 20, 4096): m[j] = 1\n    if os.fork() == 0: time.sleep(30); os._exit(0)\n    m.close(); kept += 150\n"
        "print('HARMLESS' if not kept else kept)",
    ),
    "shared memory by a device": Hostile(
        ("ended",),
        "import mmap\ntry: m = mmap.mmap(open('/dev/zero', 'r+b').fileno(), 150 << 20)\nexcept OSError: print('HARMLESS')\n"
        "else:\n    for j in range(0, 150 << 20, 4096): m[j] = 1",
    ),
    "shared memory of System V": Hostile(
        ("ended",),
        "import ctypes\nprint('HARMLESS' if ctypes.CDLL(None).shmget(0, 100 << 20, 0o1600) == -1 else 'got it')",
    ),
    "memory in sockets": Hostile(
        ("memory",),
        "import os, socket, time\nfor i in range(8):\n    if os.fork() == 0:\n        kept = []\n        for j in range(115):\n"
        "            pair = socket.socketpair(); kept.append(pair)\n            for end in pair:\n                end.setblocking(False)\n"
        "                try:\n                    while True: end.send(b'x' * 100_000)\n                except OSError: pass\n"
        "        time.sleep(30); os._exit(0)\ntime.sleep(30)",
    ),
    "larger buffers of sockets and pipes": Hostile(
        ("ended",),
        "import fcntl, os, socket\nfor grow in (lambda: socket.socketpair()[0].setsockopt(1, 7, 4 << 20), lambda: fcntl.fcntl(os.pipe()[0], 1031, 1 << 20)):\n"
        "    try: grow()\n    except OSError: continue\n    raise SystemExit(1)\nprint('HARMLESS')",
    ),
    "pages of its own in a pipe": Hostile(
        ("ended",),
        "import ctypes, os\nclass Part(ctypes.Structure): _fields_ = [('base', ctypes.c_char_p), ('length', ctypes.c_size_t)]\n"
        "part = Part(b'x' * 4096, 4096)\nsent = ctypes.CDLL(None).vmsplice(os.pipe()[1], ctypes.byref(part), 1, 8)\nprint('HARMLESS' if sent == -1 else sent)",
    ),
    "queues of the kernel": Hostile(
        ("ended",),
        "import ctypes, platform\nc = ctypes.CDLL(None)\nx86 = platform.machine() == 'x86_64'\nring = ctypes.create_string_buffer(512)\n"
        "assert c.inotify_init1(0) == -1\nassert c.fanotify_init(0, 0) == -1\nassert c.syscall(425, 8, ring) == -1  # io_uring_setup\n"
        "assert c.syscall(206 if x86 else 0, 1000, ring) == -1  # io_setup\nassert c.socketpair(30, 1, 0, ring) == -1  # TIPC\nprint('HARMLESS')",
    ),
    "memory of threads whose main thread has ended": Hostile(
        ("memory",),
        "import ctypes, os, platform, threading, time\ndef fill():\n    x = b'x' * (90 << 20)\n    time.sleep(30)\nfor i in range(4):  # with two threads each, all of which count as processes\n    if os.fork() == 0:\n"
        "        threading.Thread(target=fill).start()\n        ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)\ntime.sleep(30)",
    ),
    "children that nobody waits for": Hostile(
        ("ended",),
        "import ctypes, signal\nrefused = 0\ntry: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nexcept OSError: refused += 1\n"
        "no_wait = ctypes.create_string_buffer(b'\\0' * 136 + b'\\2' + b'\\0' * 15)  # SA_NOCLDWAIT\n"
        "refused += ctypes.CDLL(None).sigaction(17, no_wait, None) == -1\nassert signal.getsignal(signal.SIGCHLD) == 0\nprint('HARMLESS' if refused == 2 else refused)",
    ),
    "a thread with open files of its own": Hostile(
        ("ended",),
        "import ctypes, platform\nflags = 0x100 | 0x800 | 0x10000  # memory and signals shared, but not files\n"
        "call = 56 if platform.machine() == 'x86_64' else 220\nprint('HARMLESS' if ctypes.CDLL(None).syscall(call, flags, 0, 0, 0, 0) == -1 else 'begun')",
    ),
}

HIDDEN_MEMORY = [
    name
    for name in PROGRAMS
    if "memory" in name
    or name in ("larger buffers of sockets and pipes", "queues of the kernel", "pages of its own in a pipe")
]
"""Those that look for memory that no limit counts."""
