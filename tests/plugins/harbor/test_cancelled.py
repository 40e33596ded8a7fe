"""A trial that is cancelled, interrupted or killed leaves no container and no network."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ajet import Task
from ajet.interfaces.workflow import EpisodeEndpoint
from ajet_harbor import HarborTasks, HarborWorkflow
from tests.patience import PATIENCE
from tests.plugins.harbor.conftest import Left

EPISODES = 20
AT_ONCE = 4
RUN = """
import asyncio, sys
from pathlib import Path
from tests.plugins.harbor.test_cancelled import one_trial
asyncio.run(one_trial(Path(sys.argv[1])))
"""


class NoModel:
    """A tuner for an agent that calls none."""

    def as_base_url(self) -> EpisodeEndpoint:
        """An address at which no server listens."""
        return EpisodeEndpoint("http://127.0.0.1:9/v1", "key")


def sleeping(tasks: Path) -> Task:
    """A task whose solution takes an hour."""
    (tasks / "total/solution/solve.sh").write_text("#!/bin/bash\nsleep 3600\n")
    (task,) = HarborTasks(path=tasks / "total").tasks()
    return task


def workflow(folder: Path) -> HarborWorkflow:
    return HarborWorkflow(agent="oracle", environment="podman", trials_dir=folder / "trials")


async def one_trial(tasks: Path) -> None:
    """Runs until it is ended from outside."""
    async with workflow(tasks.parent).open() as live:
        await live.execute(sleeping(tasks), NoModel())  # type: ignore[arg-type]


def when(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_after_twenty_cancelled_episodes_nothing_is_left(tasks: Path, left: Left) -> None:
    task, draw = sleeping(tasks), random.Random(0)

    async def cancel_all() -> None:
        async with workflow(tasks.parent).open() as live:

            async def episode() -> None:
                running = asyncio.ensure_future(live.execute(task, NoModel()))  # type: ignore[arg-type]
                # At any moment: before there is a container, while it is made, and while the agent works.
                await asyncio.wait([running], timeout=draw.uniform(0, 8))
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running

            for _ in range(EPISODES // AT_ONCE):
                await asyncio.gather(*(episode() for _ in range(AT_ONCE)))

    asyncio.run(cancel_all())
    assert not left.names()  # the end of the job waits for it


@pytest.fixture
def started(tasks: Path, left: Left) -> subprocess.Popen[bytes]:
    """A process whose trial has a container."""
    process = subprocess.Popen([sys.executable, "-c", RUN, str(tasks)], cwd=Path(__file__).parents[3])
    when(left.names)
    return process


def test_ctrl_c_leaves_nothing(started: subprocess.Popen[bytes], left: Left) -> None:
    started.send_signal(signal.SIGINT)
    started.wait(PATIENCE)
    assert not left.names()


def test_what_a_killed_process_leaves_is_removed_by_the_next_job_and_nothing_else(
    started: subprocess.Popen[bytes], left: Left, sandboxes: str, tmp_path: Path
) -> None:
    others = [
        "podman",
        "run",
        "-d",
        "--rm",
        "--init",
        "--name",
        "ajet-of-the-user-0000",
        sandboxes,
        "sleep",
        "3600",
    ]
    subprocess.run(others, check=True, capture_output=True)
    try:
        os.kill(started.pid, signal.SIGKILL)
        started.wait()
        assert len(left.names()) > 1

        async def next_job() -> None:
            async with workflow(tmp_path).open():
                assert left.names() == ["ajet-of-the-user-0000"]

        asyncio.run(next_job())
    finally:
        subprocess.run(["podman", "rm", "-f", "-t", "0", "ajet-of-the-user-0000"], capture_output=True)


def test_what_a_running_process_has_is_left_alone_by_another_job(
    started: subprocess.Popen[bytes], left: Left, tmp_path: Path
) -> None:
    async def another_job() -> None:
        async with workflow(tmp_path).open():
            assert left.names()

    asyncio.run(another_job())
    assert left.names() and started.poll() is None
    started.send_signal(signal.SIGINT)
    started.wait(PATIENCE)
