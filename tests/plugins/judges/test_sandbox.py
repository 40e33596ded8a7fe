"""The code sandbox: what hostile programs cannot do, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ajet_judges.sandbox import LAUNCHER, Limits, NoSandbox, Ran, doctor, run_python
from tests.patience import PATIENCE
from tests.tiers import fast, thinned

from .hostile import HIDDEN_MEMORY, PROGRAMS

LIMITS = Limits(seconds=2, cpu_seconds=2, memory=256, processes=12, files=16, output=64)
PATIENT = LIMITS.model_copy(update={"seconds": 30.0, "cpu_seconds": 10.0})
"""For programs that end otherwise than by the clock, however busy the machine is."""
LATE = 10.0
"""Seconds that building and ending a sandbox may take on a busy machine; hostile programs go on for longer."""
SYSTEM_PYTHON = "/usr/bin/python3"
linux = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")


def run(source: str, **options: Any) -> Ran:
    return asyncio.run(run_python(source, **options))


def limits(name: str) -> Limits:
    """Those of a hostile program."""
    return LIMITS if "time" in PROGRAMS[name].ends else PATIENT


def how_ended(ran: Ran) -> str:
    """As `hostile.Hostile` calls it."""
    if ran.cause or ran.code:
        return ran.cause or "exit"
    return "ended" if ran.stdout.endswith("HARMLESS\n") else "finished"


def walls() -> str | None:
    """Why this machine cannot build walls; None if it can."""
    try:
        run("pass")
    except NoSandbox as error:
        return str(error)
    return None


WALLS = walls() if sys.platform == "linux" else "not Linux"
with_walls = pytest.mark.skipif(WALLS is not None, reason=str(WALLS))
WAYS: dict[str, dict[str, Any]] = {"root or user": {}, "user": {"as_user": True, "python": SYSTEM_PYTHON}}


MARK = f"ajet-sandbox-{os.getpid()}-"
"""Of our sandboxes: other processes have theirs at the same time."""


def left_behind() -> list[str]:
    """Processes in a sandbox of ours: its mounts carry our number, and nothing inside can change that."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if MARK in (entry / "mountinfo").read_text():
                    found.append((entry / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return found


@pytest.fixture(scope="module")
def listener() -> Iterator[tuple[int, list[Any]]]:
    """A TCP server on this machine, and who connected to it."""
    connected: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connected.append(server.accept())
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1], connected
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def ends(
    listener: tuple[int, list[Any]],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Mapping[str, Mapping[str, tuple[Ran, float]]]:
    """How each hostile program that a selected test looks at ended, by the way in which the walls were built; run four at
    a time."""
    looked_at = {
        (item.callspec.params["way"], item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module and "way" in item.fixturenames
    }
    secret = tmp_path_factory.mktemp("home") / "secret.txt"
    secret.write_text("secret")
    os.environ["SECRET_OF_THE_CALLER"] = "secret"
    shown = Path(sys.base_prefix).parts
    names = {
        "{home}": str(Path.home()),
        "{file}": str(secret),
        "{shown}": " ".join(shown),
        "{port}": str(listener[0]),
        "{pid}": str(os.getpid()),
        "{parent}": str(os.getppid()),
    }

    async def one(name: str, slots: asyncio.Semaphore, options: dict[str, Any]) -> tuple[Ran, float]:
        source = PROGRAMS[name].source
        for mark, value in names.items():
            source = source.replace(mark, value)
        async with slots:
            started = time.monotonic()
            ran = await run_python({"main.py": source}, limits=limits(name), **options)
            return ran, time.monotonic() - started

    async def everything() -> dict[str, dict[str, tuple[Ran, float]]]:
        slots = asyncio.Semaphore(4)
        found = {}
        for way, options in WAYS.items():
            if way == "user" and not os.path.exists(SYSTEM_PYTHON):
                continue
            chosen = [name for name in PROGRAMS if (way, name) in looked_at]
            runs = await asyncio.gather(*(one(name, slots, options) for name in chosen))
            found[way] = dict(zip(chosen, runs, strict=True))
        return found

    try:
        return asyncio.run(everything())
    finally:
        del os.environ["SECRET_OF_THE_CALLER"]


def test_there_are_forty_hostile_programs() -> None:
    assert len(PROGRAMS) == 40


@with_walls
@thinned
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hostile_program_is_stopped_and_has_done_no_harm(ends: Any, name: str, way: str) -> None:
    if way not in ends:
        pytest.skip(f"no {SYSTEM_PYTHON}, which every user may run")
    ran, seconds = ends[way][name]
    assert how_ended(ran) in PROGRAMS[name].ends, ran
    assert seconds < limits(name).seconds + LATE, "stopped in time"
    assert ran.memory < (LIMITS.memory + 200) << 20, "seen before it grew far"
    assert len(ran.stdout) + len(ran.stderr) <= LIMITS.output << 10


@with_walls
@thinned
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", HIDDEN_MEMORY)
def test_memory_that_no_process_has_mapped_is_refused_or_counted(ends: Any, name: str, way: str) -> None:
    if way not in ends:
        pytest.skip(f"no {SYSTEM_PYTHON}, which every user may run")
    ran, _ = ends[way][name]
    assert how_ended(ran) in PROGRAMS[name].ends, ran


@with_walls
def test_sockets_on_their_way_through_another_socket_are_counted() -> None:
    """Sent and closed, they are open in no process, but the kernel keeps them and what lies in them."""
    source = (
        "import array, socket, time\nkept = []\nfor i in range(100):\n    pair = socket.socketpair()\n    for end in pair:\n"
        "        end.setblocking(False)\n        try:\n            while True: end.send(b'x' * 100_000)\n        except OSError: pass\n"
        "    fds = array.array('i', [end.fileno() for end in pair])\n    if i % 20 == 0: way = socket.socketpair(); kept.append(way)\n"
        "    way[0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])\n    [end.close() for end in pair]\ntime.sleep(20)"
    )
    ran = run(source, limits=PATIENT.model_copy(update={"memory": 64}))
    assert ran.cause == "memory", ran


@pytest.mark.whole
@pytest.mark.parametrize("isolation", fast({1}, ["full", "limits"]))
@linux
def test_processor_time_of_children_that_nobody_waits_for_is_counted(isolation: str) -> None:
    """Where a program ignores the end of its children, no parent is ever charged for them."""
    if isolation == "full" and WALLS is not None:
        pytest.skip(WALLS)
    if isolation == "limits" and OPEN["python"] and not os.path.exists(SYSTEM_PYTHON):
        pytest.skip(f"root's programs need {SYSTEM_PYTHON}, which every user may run")
    source = (
        "import os, signal, time\ntry: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nexcept OSError: pass\n"
        "for i in range(100):  # five seconds\n    if os.fork() == 0:\n        while time.process_time() < 0.05: pass\n"
        "        os._exit(0)\n"
        "    if i % 4 == 0:\n        try: os.waitpid(-1, 0)\n        except OSError: pass\n    time.sleep(0.02)\n"
    )
    few = Limits(seconds=60, cpu_seconds=1, processes=200)
    options = OPEN if isolation == "limits" else {}
    ran = run(source, limits=few, **options)
    assert ran.cause == "cpu", ran


@pytest.mark.whole
@with_walls
def test_asyncio_threads_and_subprocesses_work_under_the_filter() -> None:
    source = (
        "import asyncio, mmap, subprocess, threading\n"
        "async def echo():\n    cat = await asyncio.create_subprocess_exec('/bin/cat', stdin=-1, stdout=-1)\n"
        "    return (await cat.communicate(b'asyncio'))[0].decode()\nprint(asyncio.run(echo()))\n"
        "thread = threading.Thread(target=print, args=('thread',))\nthread.start(); thread.join()\n"
        "for i in range(30): subprocess.run(['/bin/true'], check=True)\nprint(len(mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE)))\n"
    )
    ran = run(source)
    assert (ran.cause, ran.stdout) == (None, "asyncio\nthread\n4096\n"), ran


@pytest.mark.whole
@with_walls
def test_the_verdict_and_ajet_doctor_say_what_holds_the_limits() -> None:
    ran = run("pass")
    assert ran.mechanism in ("cgroup v2", "counting in /proc")
    assert doctor()[1].endswith(f"limits held by {ran.mechanism}")


@pytest.mark.whole
@with_walls
def test_no_cgroup_is_left_by_a_program_that_the_kernel_ended() -> None:
    ran = run(PROGRAMS["memory in sockets"].source, limits=PATIENT)
    if ran.mechanism != "cgroup v2":
        pytest.skip("this process can make no cgroup v2 with limits")
    assert (ran.cause, ran.code) == ("memory", -signal.SIGKILL), ran
    assert not list(Path("/sys/fs/cgroup").rglob("ajet-sandbox-*"))


@with_walls
def test_nothing_is_left_behind(ends: Any, listener: tuple[int, list[Any]]) -> None:
    assert left_behind() == []
    assert listener[1] == [], "nobody connected"
    assert not list(Path(tempfile.gettempdir()).glob(f"{MARK}*"))


@pytest.mark.whole
@with_walls
def test_a_program_gets_its_input_and_gives_its_output() -> None:
    ran = run("import sys\nprint(input()[::-1])\nprint('so', file=sys.stderr)\nsys.exit(3)", input="abc\nd\n")
    assert (ran.code, ran.cause, ran.stdout, ran.stderr) == (3, None, "cba\n", "so\n")
    assert not ran.ok and ran.describe() == "exit 3: so"


@pytest.mark.whole
@with_walls
def test_files_beside_the_program_can_be_imported() -> None:
    ran = asyncio.run(run_python({"main.py": "import other; print(other.x)", "other.py": "x = 5"}))
    assert ran.stdout == "5\n"


@pytest.mark.whole
@with_walls
def test_a_program_of_one_file_is_text_and_the_plugin_exports_what_a_tool_needs() -> None:
    from ajet_judges import Limits, run_python

    ran = asyncio.run(run_python("print(input())", input="5", limits=Limits(output=1)))
    assert ran.ok and ran.stdout == "5\n"
    ran = asyncio.run(run_python("print('x' * 2000)", limits=Limits(output=1)))
    assert ran.describe() == "stopped at its limit of output" and len(ran.stdout) == 1024


@pytest.mark.whole
@with_walls
def test_packages_are_there_only_if_allowed() -> None:
    source = "import pydantic; print(pydantic.__name__)"
    assert "ModuleNotFoundError" in run(source, python=SYSTEM_PYTHON).stderr or not os.path.exists(
        SYSTEM_PYTHON
    )
    assert run(source, packages=True).stdout == "pydantic\n"


@pytest.mark.kept
@with_walls
def test_many_run_at_once() -> None:
    async def all_of_them() -> list[Ran]:
        return await asyncio.gather(*(run_python({"main.py": f"print({i})"}) for i in range(8)))

    assert [ran.stdout for ran in asyncio.run(all_of_them())] == [f"{i}\n" for i in range(8)]


@with_walls
def test_a_cancelled_run_ends_at_once_with_all_it_started() -> None:
    source = PROGRAMS["orphan of its own session"].source + "\ntime.sleep(300)"

    async def cancelled() -> None:
        task = asyncio.ensure_future(run_python({"main.py": source}, limits=Limits(seconds=300)))
        async with asyncio.timeout(PATIENCE):
            while sum("main.py" in line for line in left_behind()) < 2:  # the program, and what it forked
                await asyncio.sleep(0.02)
        task.cancel()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < LATE

    asyncio.run(cancelled())
    assert left_behind() == []


@with_walls
def test_of_a_home_where_python_was_installed_only_its_folders_are_seen(tmp_path: Path) -> None:
    if not os.path.exists(SYSTEM_PYTHON):
        pytest.skip(f"makes a home of {SYSTEM_PYTHON}")
    (tmp_path / "bin").mkdir()
    shutil.copy(os.path.realpath(SYSTEM_PYTHON), tmp_path / "bin" / "python3")
    (tmp_path / "lib").symlink_to("/usr/lib")
    (tmp_path / ".ssh").mkdir()
    ran = run(
        f"import os\nprint(sorted(os.listdir({str(tmp_path)!r})))", python=str(tmp_path / "bin" / "python3")
    )
    assert ran.ok and ran.stdout == "['bin', 'lib']\n", ran


@pytest.mark.whole
@with_walls
def test_a_caller_that_is_killed_takes_the_program_with_it() -> None:
    code = (
        "import asyncio\nfrom ajet_judges.sandbox import run_python, Limits\n"
        "asyncio.run(run_python({'main.py': 'import time; time.sleep(600)'}, limits=Limits(seconds=600)))"
    )
    caller = subprocess.Popen([sys.executable, "-c", code])
    mark = f"ajet-sandbox-{caller.pid}-".encode()

    def inside() -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    found += [entry.name] if mark in (entry / "mountinfo").read_bytes() else []
                except OSError:
                    continue
        return found

    wait_until(lambda: len(inside()) >= 2)
    caller.kill()
    caller.wait()
    wait_until(lambda: not inside())


def wait_until(true: Any, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


# ------------------------------------------------------------------ without walls

OPEN: dict[str, Any] = {
    "isolation": "limits",
    "python": SYSTEM_PYTHON if os.geteuid() == 0 else None,
}
CONTAINED_IN_THE_OPEN = [
    "endless loop",
    "endless sleep",
    "endless output",
    "many sleeping children",
    "orphan of its own session",
    "orphan that holds the output",
    "one large allocation",
    "memory in many processes",
    "endless file",
    "the caller's environment",
    "network by TCP",
    "network by UDP and name",
    "shared memory that only sleeping children keep",
    "shared memory of System V",
    "memory in sockets",
    "larger buffers of sockets and pipes",
    "memory of threads whose main thread has ended",
    "children that nobody waits for",
]


@linux
@pytest.mark.parametrize("name", fast(range(0, len(CONTAINED_IN_THE_OPEN), 2), CONTAINED_IN_THE_OPEN))
def test_limits_alone_stop_what_they_can(name: str) -> None:
    if OPEN["python"] and not os.path.exists(SYSTEM_PYTHON):
        pytest.skip(f"root's programs need {SYSTEM_PYTHON}, which every user may run")
    started = time.monotonic()
    ran = run(PROGRAMS[name].source.replace("{port}", "9"), limits=limits(name), **OPEN)
    assert how_ended(ran) in PROGRAMS[name].ends, ran
    assert time.monotonic() - started < limits(name).seconds + LATE
    assert not list(Path(tempfile.gettempdir()).glob(f"{MARK}*")), "no folder and no orphan in it"
    assert not [p for p in Path("/proc").glob("[0-9]*/cwd") if MARK in _target(p)]


@pytest.mark.whole
@linux
def test_a_program_that_ends_its_launcher_is_not_waited_for() -> None:
    """Without walls, and as the same user, it can: nobody is left who would stop it."""
    if OPEN["python"] and not os.path.exists(SYSTEM_PYTHON):
        pytest.skip(f"root's programs need {SYSTEM_PYTHON}, which every user may run")
    source = (
        "import os, time\nprint(os.getpid(), os.getcwd(), flush=True)\nopen('begun', 'w')\ntime.sleep(600)"
    )
    few = PATIENT.model_copy(update={"seconds": 3.0})

    async def ended_from_outside() -> Ran:
        running = asyncio.ensure_future(run_python({"main.py": source}, limits=few, **OPEN))
        while not running.done() and not list(Path(tempfile.gettempdir()).glob(f"{MARK}*/begun")):
            await asyncio.sleep(0.02)
        launchers = [p for p in _children() if str(LAUNCHER) in (p / "cmdline").read_text()]
        os.kill(int(launchers[0].name), signal.SIGKILL)
        return await running

    started = time.monotonic()
    ran = asyncio.run(ended_from_outside())
    try:
        assert ran.cause == "killed" and time.monotonic() - started < few.seconds + 10 * LATE
    finally:
        program, folder = ran.stdout.split()
        os.kill(int(program), signal.SIGKILL)
        shutil.rmtree(folder)


def _children() -> list[Path]:
    tasks = Path(f"/proc/{os.getpid()}/task")
    pids = [pid for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
    return [Path("/proc", pid) for pid in pids]


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def test_where_there_are_no_walls_it_is_said_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = shutil.copytree(LAUNCHER.parent, tmp_path / "ajet_sandbox")
    launcher = broken / "launcher.py"
    launcher.write_text(launcher.read_text().replace('sys.platform != "linux"', "True"))
    monkeypatch.setattr("ajet_judges.sandbox.LAUNCHER", broken / LAUNCHER.name)
    with pytest.raises(NoSandbox, match=r"has no namespaces.*isolation: limits"):
        run("print(1)")


@pytest.mark.whole
def test_ajet_doctor_says_what_this_machine_can_do() -> None:
    what, found, remedy = doctor()
    assert (what, remedy) == ("code sandbox", ""), "nobody but the judge `code` needs it"
    assert found.startswith("full" if WALLS is None else "limits only: ")
