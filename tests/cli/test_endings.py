"""How the program ends: by SIGTERM, with workflows that do not heed their end, with crashes of native code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ajet.cli.summary import describe_result
from ajet.interfaces.backbone import RunResult
from ajet.rollout.recorder import JOURNAL
from tests.patience import PATIENCE
from tests.reports.conftest import Folder, blank
from tests.tiers import fast

from .conftest import AGENT, JOB, TASKS

pytestmark = pytest.mark.whole

ENDINGS = """
import asyncio, ctypes, time

async def swallows(task):
    answer = await run(task)
    asyncio.create_task(never_ends(), name="the helper of " + task.id)
    return answer

async def never_ends():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def hangs_in_a_thread(task):
    answer = await run(task)
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
    return answer

async def crashes(task):
    ctypes.string_at(0)
"""
COMMAND = """
import os, pathlib, sys, time
pathlib.Path("agents", str(os.getpid())).touch()
time.sleep(3600)
"""


class Programs:
    """A folder with a job in it, and the programs that run it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._started: list[subprocess.Popen[str]] = []
        (path / "agents").mkdir()
        (path / "agent.py").write_text(AGENT + ENDINGS)
        (path / "command.py").write_text(COMMAND)
        (path / "tasks.jsonl").write_text(TASKS)
        (path / "script.yaml").write_text('- {say: "4"}\n')
        (path / "job.yaml").write_text(JOB)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "ajet", *arguments],
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate(timeout=PATIENCE)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    made = Programs(tmp_path)
    yield made
    made.end()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("number", "code"),
    fast({0}, [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)]),
)
def test_a_signal_ends_a_run_as_ctrl_c_does_with_its_agents_and_one_line(
    programs: Programs, number: int, code: int
) -> None:
    process = programs.start(
        *("run", "job.yaml", "--workflow", f"cmd:{sys.executable} command.py"),
        *("--set", "backbone.debug.concurrency=2"),
    )
    agents = programs.path / "agents"
    until(lambda: len(list(agents.iterdir())) == 2 or process.poll() is not None)
    pids = [int(file.name) for file in agents.iterdir()]
    assert len(pids) == 2 and all(map(alive, pids))
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, err
    assert err.splitlines()[-1].startswith("interrupted. Run folder: ") and "Traceback" not in err, err
    until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize(
    ("workflow", "left"),
    fast({0}, [("swallows", "the helper of a"), ("hangs_in_a_thread", "threads of asyncio.to_thread")]),
)
def test_a_run_ends_with_its_summary_though_a_workflow_does_not(
    programs: Programs, workflow: str, left: str
) -> None:
    process = programs.start("run", "job.yaml", "--workflow", f"agent.py:{workflow}")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "run folder" in out, "the summary"
    assert "left behind" in err and left in err and "Traceback" not in err and "Exception" not in err, err


def test_a_crash_of_native_code_prints_where_it_happened(programs: Programs) -> None:
    process = programs.start("run", "job.yaml", "--workflow", "agent.py:crashes")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in err and "in crashes" in err, err


def test_a_forked_child_of_the_agent_ends_by_sigterm_as_it_would_without_us(tmp_path: Path) -> None:
    code = """
import os, signal, time
from ajet.cli import _signals_are_ctrl_c
_signals_are_ctrl_c()
ready, tell = os.pipe()
child = os.fork()
if child == 0:
    os.write(tell, b"x")  # Python forgets signals that reach a child before it runs
    time.sleep(60)
    os._exit(1)
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "-15\n" and done.stderr == ""


def test_what_went_wrong_in_answers_is_counted_after_a_run(tmp_path: Path) -> None:
    faults: list[Counter[str]] = [
        Counter(cut_calls=2, malformed_tool_calls=1),
        Counter(cut_calls=1, retries=9),
        Counter(),
    ]
    run = Folder(tmp_path).write([blank(f"1.0/a/{n}", counters=counts) for n, counts in enumerate(faults)])
    said = describe_result(RunResult(run_dir=run.dir, steps=1))
    assert re.search(r"^answers +1 malformed tool calls, 3 cut calls, in 0 calls$", said, re.MULTILINE)
    (tmp_path / JOURNAL).unlink()
    assert "answers" not in describe_result(
        RunResult(run_dir=Folder(tmp_path).write([blank("1.0/a/0")]).dir, steps=1)
    )
