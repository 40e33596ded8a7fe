"""What a hostile program in a sandbox may do to the machine, if root starts it and if a user does."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ajet.interfaces.workflow import EpisodeEndpoint
from ajet_commands import privileges, sandbox

NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"
ATTACKS = """
import ctypes, json, os, resource, signal, subprocess, sys
libc, told = ctypes.CDLL(None, use_errno=True), {}
def sh(command): return subprocess.run(command, shell=True, capture_output=True).returncode == 0
def can(name, attack):
    try: told[name] = bool(attack())
    except OSError: told[name] = False
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
told['root'] = '0' in status['Uid'].split() + status['Gid'].split() + status['Groups'].split()
told['capabilities'] = any(int(status[name], 16) for name in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb'))
told['may gain some'] = status['NoNewPrivs'].strip() != '1'
shown = sys.argv[1]
can('write what is shown', lambda: open(shown, 'w'))
can('remount what is shown', lambda: libc.mount(None, shown.encode(), None, 32 | 4096, None) == 0)
can('remount a part of the system', lambda: libc.mount(None, b'/usr', None, 32 | 4096, None) == 0)
can('mount a cgroup', lambda: libc.mount(b'x', b'/tmp', b'cgroup2', 0, None) == 0)
can('mount memory', lambda: libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0)
for kind, flag in (('user', 0x10000000), ('mount', 0x20000), ('both', 0x10020000), ('network', 0x40000000)):
    can(f'make a {kind} namespace', lambda: sh(f"{sys.executable} -c 'import ctypes; exit(ctypes.CDLL(None).unshare({flag}))'"))
can('make one with clone', lambda: libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000000 | 17, 0, 0, 0, 0) > 0)
can('make one with clone3', lambda: libc.syscall(435, (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17), 88) > 0)
for path in ('core_pattern', 'modprobe', 'hotplug'): can(path, lambda: os.open('/proc/sys/kernel/' + path, os.O_WRONLY))
can('sysrq', lambda: os.open('/proc/sysrq-trigger', os.O_WRONLY))
can('be root', lambda: os.setuid(0) is None)
can('keep files of /dev', lambda: open('/dev/kept', 'w'))
can('have any number of processes', lambda: resource.getrlimit(resource.RLIMIT_NPROC)[0] == resource.RLIM_INFINITY)
own = ['.', os.environ['HOME'], '/tmp', '/dev/shm']
told['keep what is its own'] = all(open(folder + '/own', 'w') for folder in own)
print(json.dumps(told))
"""


@pytest.fixture(params=["root", "user"])
def starter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Who starts the sandbox: the user id that a test by root takes on for it; None if it is whoever runs the tests."""
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("not root")
    try:
        sandbox.check_sandbox()
    except ValueError as error:
        pytest.skip(str(error))
    if request.param == "root" or os.geteuid() != 0:
        return None
    if not os.path.exists(SYSTEM_PYTHON):
        pytest.skip(f"no {SYSTEM_PYTHON}, and a user may not read that of root")
    monkeypatch.setattr(sandbox, "unused_id", lambda: None)
    monkeypatch.setattr(sys, "executable", SYSTEM_PYTHON)
    return NOBODY


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def told_by(program: str, place: Path, starter: int | None, *arguments: str) -> Any:
    """What a Python program in a sandbox prints, as JSON. It may read ``shown``, and write to a workspace and a home."""
    (place / "program.py").write_text(program)
    own = {place / name: sandbox.IN_SANDBOX / name for name in ("workspace", "home")}
    for folder in own:
        folder.mkdir()
        if starter is not None:
            privileges.give(folder, starter)
    command = [sys.executable, str(place / "program.py"), *arguments]
    endpoint = EpisodeEndpoint("http://127.0.0.1:18900/v1", "key")
    user: Any = {} if starter is None else {"user": starter, "group": starter, "extra_groups": []}

    async def run() -> bytes:
        readable = [place / "program.py", *map(Path, arguments)]
        async with sandbox.sandboxed(command, own[place / "workspace"], own, readable, endpoint) as walled:
            process = await asyncio.create_subprocess_exec(
                *walled.command,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=walled.pass_fds,
                env={**os.environ, "HOME": str(own[place / "home"])},
                cwd="/",
                **user,
            )
            return (await process.communicate())[0]

    return json.loads(asyncio.run(run()))


def test_a_hostile_program_gets_nothing_of_the_machine(place: Path, starter: int | None) -> None:
    shown = place / "shown.txt"
    shown.write_text("untouched")
    told = told_by(ATTACKS, place, starter, str(shown))
    assert told.pop("keep what is its own")
    assert [attack for attack, worked in told.items() if worked] == []
    assert shown.read_text() == "untouched"
    assert (place / "workspace" / "own").exists()


def test_sandboxes_that_root_starts_have_no_user_in_common(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    ids = {privileges.unused_id() for _ in range(20)}
    assert len(ids) == 20 and all(id and id > 60_000 for id in ids)


def test_a_machine_whose_system_calls_are_unknown_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "s390x")
    with pytest.raises(ValueError, match="not made for the machine s390x"):
        privileges.filter_of_calls()
