# ruff: noqa: E501
"""Thirty programs that mean harm, each bounded by itself: 500 forks, 4 GB, 30 s at most.

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
}
