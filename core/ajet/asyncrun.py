"""`asyncio.run` for programs of other people: it ends in bounded time whatever they do.

A workflow may swallow its cancellation, block the event loop, or hang in a thread. `asyncio.run` would wait for each of
these for ever. Here they are left behind after a grace and named.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from ajet.types import AjetError

T = TypeVar("T")
GRACE = 3.0
"""Seconds that cancelled tasks and threads have to end."""
_running: dict[asyncio.AbstractEventLoop, _Run] = {}
_left_behind: list[object] = []
"""Loops with tasks that do not end: were they collected, asyncio would complain of each task."""


def run(main: Coroutine[Any, Any, T], say: Callable[[str], None] = lambda text: None) -> T:
    """What a coroutine returns, as by `asyncio.run`. Ctrl-C cancels it; a second one also breaks off what blocks the
    loop. ``say`` is told what was left behind. Raises the error of `end_run`, if that was called."""
    with _ctrl_c(heeded=True):
        runner = asyncio.Runner()
        loop = runner.get_loop()
        executor = ThreadPoolExecutor(thread_name_prefix=f"ajet-to-thread-{id(loop)}-")
        loop.set_default_executor(executor)
        this = _running[loop] = _Run(_in_main_thread())
        try:
            return runner.run(main)
        except KeyboardInterrupt:
            if this.error is not None:
                raise this.error from None
            raise
        finally:
            with _ctrl_c(heeded=False):  # what follows takes seconds at most
                _end(runner, executor, say)
            del _running[loop]
            this.ended.set()


def end_run(loop: asyncio.AbstractEventLoop, error: AjetError) -> None:
    """From another thread: let the `run` of this loop raise ``error``, even if something blocks the loop. Python code is
    broken off as by Ctrl-C; native code that does not return takes the process with it. Only warns where the loop
    is not of the main thread, which alone can be interrupted."""
    this = _running.get(loop)
    main = threading.main_thread().ident
    if this is None or not this.in_main_thread or main is None:
        return
    this.error = error
    for patience in (
        1.0,
        4 * GRACE,
    ):  # the first one cancels the run, the second one breaks off what blocks it
        signal.pthread_kill(main, signal.SIGINT)
        if this.ended.wait(patience):
            return
    print(f"error: {error}", file=sys.stderr, flush=True)
    os._exit(1)


def anything_left_behind() -> bool:
    """Whether some `run` of this process has left something behind, which may keep the process from ending."""
    return bool(_left_behind)


class _Run:
    """A `run` under way."""

    def __init__(self, in_main_thread: bool) -> None:
        self.in_main_thread = in_main_thread
        self.error: AjetError | None = None
        self.ended = threading.Event()


def _end(runner: asyncio.Runner, executor: ThreadPoolExecutor, say: Callable[[str], None]) -> None:
    """End all tasks and threads of a loop that has stopped, and close it unless some of them go on."""
    loop, deadline = runner.get_loop(), time.monotonic() + GRACE
    left = [_describe(task) for task in loop.run_until_complete(_cancel_all(GRACE))]
    executor.shutdown(wait=False, cancel_futures=True)
    while (busy := _threads_of(loop)) and time.monotonic() < deadline:
        busy[0].join(0.05)
    left += [f"{len(busy)} threads of asyncio.to_thread"] * bool(busy)
    if not left:
        runner.close()
        return
    loop.set_exception_handler(lambda *_: None)
    _left_behind.append(runner)
    say(f"left behind, as it does not end when it is cancelled: {'; '.join(left)}")


async def _cancel_all(seconds: float) -> list[asyncio.Task[Any]]:
    """Cancel all other tasks; those that have not ended after so many seconds."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if not others:
        return []
    _, stubborn = await asyncio.wait(others, timeout=seconds)
    return sorted(stubborn, key=lambda task: task.get_name())


def _threads_of(loop: asyncio.AbstractEventLoop) -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(f"ajet-to-thread-{id(loop)}-")]


def _describe(task: asyncio.Task[Any]) -> str:
    """``episode 1.0/t/0 (agent.py:17)``"""
    frames = task.get_stack()
    place = f" ({frames[-1].f_code.co_filename}:{frames[-1].f_lineno})" if frames else ""
    return f"{task.get_name()}{place}"


@contextmanager
def _ctrl_c(*, heeded: bool) -> Iterator[None]:
    """A block in which Ctrl-C works, also in a background job of a shell, which is started to ignore it; or in which it
    is ignored."""
    before = signal.getsignal(signal.SIGINT)
    if not _in_main_thread() or (heeded and before is not signal.SIG_IGN):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler if heeded else signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
