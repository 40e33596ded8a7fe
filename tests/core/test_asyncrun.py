"""Coroutines of other people end in bounded time: those that swallow their cancellation, block the loop or hang."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ajet.types import AjetError
from ajet.utils import asyncrun
from ajet.utils.asyncrun import end_run, run
from tests.patience import PATIENCE
from tests.tiers import fast


async def stubborn() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncrun, "GRACE", 0.1)
    monkeypatch.setattr(asyncrun, "_left_behind", [])


def test_a_coroutine_returns_its_value_and_raises_its_error() -> None:
    async def fails() -> None:
        raise KeyError("x")

    assert run(asyncio.sleep(0, "value")) == "value"
    with pytest.raises(KeyError):
        run(fails())
    assert not asyncrun.anything_left_behind()


def test_tasks_that_are_left_are_cancelled_and_clean_up() -> None:
    ended = []

    async def other() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(True)

    async def main() -> None:
        main.task = asyncio.create_task(other())  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    run(main())
    assert ended and not asyncrun.anything_left_behind()


def test_a_task_that_swallows_its_cancellation_is_left_behind_and_named_with_its_line() -> None:
    said: list[str] = []

    async def main() -> str:
        main.task = asyncio.create_task(stubborn(), name="the workflow of episode 7")  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        return "result"

    assert run(main(), said.append) == "result"
    assert len(said) == 1 and "the workflow of episode 7" in said[0] and f"{Path(__file__).name}:" in said[0]
    assert asyncrun.anything_left_behind()


def test_a_thread_that_hangs_in_to_thread_is_left_behind() -> None:
    said: list[str] = []
    release = threading.Event()

    async def main() -> str:
        main.task = asyncio.create_task(asyncio.to_thread(release.wait, 60))  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
        return "result"

    assert run(main(), said.append) == "result"
    release.set()
    assert len(said) == 1 and "1 threads of asyncio.to_thread" in said[0]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough for the interruption on a busy machine: after it, the process that runs the tests would be ended."""
    monkeypatch.setattr(asyncrun, "BLOCKED", 4.0)


def blocked(wait: Callable[[Coroutine[Any, Any, None]], Awaitable[object]]) -> Coroutine[Any, Any, None]:
    """A run that ``wait``s for a coroutine which blocks the loop; then another thread ends the run with an error."""
    begun = threading.Event()

    def watchdog(loop: asyncio.AbstractEventLoop) -> None:
        begun.wait(60)
        end_run(loop, AjetError("the loop is blocked"))

    async def blocks() -> None:
        begun.set()
        time.sleep(60)

    async def main() -> None:
        threading.Thread(target=watchdog, args=(asyncio.get_running_loop(),)).start()
        await wait(blocks())

    return main()


@pytest.mark.whole
def test_a_run_whose_loop_is_blocked_ends_with_the_error_that_it_is_given(patient: None) -> None:
    cleaned = threading.Event()

    async def cleans(block: Coroutine[Any, Any, None]) -> None:
        try:
            await asyncio.gather(block)
        finally:
            cleaned.set()

    started = time.monotonic()
    with pytest.raises(AjetError, match="the loop is blocked"):
        run(blocked(cleans))
    assert cleaned.is_set() and time.monotonic() - started < 50


@pytest.mark.whole
def test_no_traceback_of_an_interrupted_task_follows_the_error_of_the_run(
    patient: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def waits(block: Coroutine[Any, Any, None]) -> None:
        await asyncio.wait({asyncio.create_task(block)})

    with pytest.raises(AjetError, match="the loop is blocked"):
        run(blocked(waits))
    gc.collect()
    assert not caplog.messages


def test_a_run_is_told_whether_it_can_be_ended_from_outside() -> None:
    in_thread: list[bool] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        in_thread.append(await asyncio.to_thread(end_run, loop, AjetError("over")))

    asyncio.run(main())  # no `run`, like the loop of a Ray actor
    other = threading.Thread(target=lambda: run(main()))
    other.start()
    other.join(PATIENCE)
    assert in_thread == [False, False]
    with pytest.raises(AjetError, match="over"):
        run(main())


@pytest.mark.whole
def test_tasks_whose_cleanup_blocks_do_not_keep_a_run_from_ending(patient: None) -> None:
    said: list[str] = []
    release = threading.Event()

    async def cleans_up() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            release.wait(60)

    async def main() -> str:
        main.tasks = [asyncio.create_task(cleans_up(), name=f"task {n}") for n in range(3)]  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        return "result"

    handler = signal.getsignal(signal.SIGINT)
    started = time.monotonic()
    assert run(main(), said.append) == "result"
    assert time.monotonic() - started < 50
    release.set()  # the others clean up when they are collected
    assert len(said) == 1 and "task " in said[0] and f"{Path(__file__).name}:" in said[0]
    assert signal.getsignal(signal.SIGINT) is handler


NATIVE = """
import asyncio, ctypes
from ajet.utils import asyncrun
asyncrun.BLOCKED = 0.4

async def cleans_up():
    try:
        await asyncio.sleep(3600)
    finally:
        while True:
            try:
                ctypes.CDLL(None).sleep(60)
            except KeyboardInterrupt:
                pass

async def main():
    main.task = asyncio.create_task(cleans_up(), name="episode 7")
    await asyncio.sleep(0)

asyncrun.run(main())
"""


@pytest.mark.whole
def test_a_cleanup_that_cannot_be_interrupted_takes_the_process_with_it_and_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NATIVE], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 1 and "error: episode 7 blocks the event loop" in done.stderr, done.stderr


LOST = """
import asyncio, signal, threading, time
from ajet.types import AjetError
from ajet.utils.asyncrun import end_run, run

async def main():
    loop = asyncio.get_running_loop()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=end_run, args=(loop, AjetError("the loop is blocked"))).start()
    time.sleep(1.5)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    time.sleep(60)

try:
    run(main())
except AjetError as error:
    print(error)
"""


@pytest.mark.whole
def test_two_interruptions_that_python_notices_as_one_still_end_the_run() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOST], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout) == (0, "the loop is blocked\n"), done.stderr


SCRIPT = """
import asyncio
from ajet.utils import asyncrun
from ajet.utils.asyncrun import run
asyncrun.GRACE = 0.5

async def stubborn():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def main():
    tasks = [asyncio.create_task(stubborn(), name=f"episode {n}") for n in range(3)]
    await asyncio.sleep(0)
    print("ready", flush=True)
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0.2)

try:
    run(main(), lambda text: print(text, flush=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


UNNOTICED = """
import asyncio, signal, threading, time
from ajet.utils.asyncrun import run

def strike():
    time.sleep(0.2)  # the loop waits: it is not interrupted by a signal that another thread gets
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

async def main():
    threading.Thread(target=strike).start()
    await asyncio.sleep(3600)

try:
    run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.whole
def test_ctrl_c_wakes_a_loop_that_waits_even_if_the_signal_does_not_interrupt_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", UNNOTICED], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert ended.stdout == "interrupted\n"


@pytest.mark.whole
@pytest.mark.parametrize("times", fast({2}, [1, 2, 3]))
def test_ctrl_c_however_often_ends_stubborn_workflows_without_a_traceback(times: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    output, _ = process.communicate(timeout=PATIENCE)
    lines = output.splitlines()
    assert len(lines) == 2 and "episode 0" in lines[0] and lines[1] == "interrupted", output
    assert process.returncode == 0


def test_contextvars_are_those_of_the_caller() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    variable.set(7)

    async def main() -> int:
        return variable.get()

    assert run(main()) == 7
