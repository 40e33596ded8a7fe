"""Like `asyncio.run`, but does not wait for tasks and threads that ignore cancellation: after three seconds they are
reported and abandoned.

A workflow may swallow its cancellation, block the event loop, or hang in a thread. `asyncio.run` would wait forever in
each case.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakSet

from ajet.types import AjetError
from ajet.utils.breakpoints import under_debugger
from ajet.utils.user_code import is_users

T = TypeVar("T")
GRACE = 3.0
"""Seconds that cancelled tasks and threads have to end."""
BLOCKED = 6.0
"""Seconds after which the end of a loop is interrupted: more than `GRACE`, on a busy machine too."""
_running: dict[asyncio.AbstractEventLoop, _Run] = {}
_cancellables: dict[threading.Thread, tuple[asyncio.Task[Any], asyncio.AbstractEventLoop]] = {}
"""The `run` of each thread but the main one."""
_interrupted: WeakSet[threading.Thread] = WeakSet()
"""Threads for which `interrupt` was called."""
_left_behind: list[object] = []
"""Kept alive on purpose: collecting an unfinished loop makes asyncio print a warning for each pending task."""


def run(main: Coroutine[Any, Any, T], say: Callable[[str], None] = lambda text: None) -> T:
    """Run a coroutine like `asyncio.run` and return its result. Ctrl-C cancels it; a second Ctrl-C also interrupts what
    blocks the loop. ``say`` gets a line on what was left behind. Raises the error of `end_run`, if that was called, and
    KeyboardInterrupt after `interrupt`."""
    with _ctrl_c_heeded():
        runner = asyncio.Runner()
        loop = runner.get_loop()
        executor = ThreadPoolExecutor(thread_name_prefix=f"ajet-to-thread-{id(loop)}-")
        loop.set_default_executor(executor)
        this = _running[loop] = _Run(_in_main_thread())
        try:
            with _woken_by_signals(loop):
                return runner.run(main if this.in_main_thread else _cancellable(main, loop))
        except asyncio.CancelledError:
            if threading.current_thread() in _interrupted:
                raise KeyboardInterrupt from None
            raise
        except KeyboardInterrupt:
            if this.error is not None:
                raise this.error from None
            raise
        finally:
            _end(runner, executor, say)
            del _running[loop]
            this.ended.set()


def end_run(loop: asyncio.AbstractEventLoop, error: AjetError) -> bool:
    """From another thread: let the `run` of this loop raise ``error``, even if something blocks the loop. Python code is
    interrupted as by Ctrl-C; if native code does not return, the process is ended. Returns False, and does nothing, if
    the loop is not that of a `run` in the main thread, the only thread that Python can interrupt."""
    this = _running.get(loop)
    if this is None or not this.in_main_thread:
        return False
    this.error = error
    # The first one cancels the run, the second one interrupts what blocks it; one of them may be lost.
    _interrupt(this.ended, (1.0, 1.0, 2 * BLOCKED), str(error))
    return True


def interrupt(thread: threading.Thread) -> None:
    """Do for another thread than the main one what Ctrl-C does for that: cancel its `run`, and those that it begins later."""
    _interrupted.add(thread)
    task, loop = _cancellables.get(thread, (None, None))
    if task is not None and loop is not None:
        with suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(task.cancel)


def anything_left_behind() -> bool:
    """Whether some `run` of this process has left something behind that may keep the process from ending."""
    return bool(_left_behind)


async def _cancellable(main: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """The main task of a `run` that `interrupt` may cancel."""
    thread, task = threading.current_thread(), asyncio.current_task()
    assert task is not None
    _cancellables[thread] = task, loop
    try:
        if thread in _interrupted:
            main.close()
            raise asyncio.CancelledError
        return await main
    finally:
        del _cancellables[thread]


class _Run:
    """A `run` in progress."""

    def __init__(self, in_main_thread: bool) -> None:
        self.in_main_thread = in_main_thread
        self.error: AjetError | None = None
        self.ended = threading.Event()


class _Blocked(KeyboardInterrupt):
    """Something blocked the end of a loop for too long."""


def _end(runner: asyncio.Runner, executor: ThreadPoolExecutor, say: Callable[[str], None]) -> None:
    """End all tasks and threads of a stopped loop, and close the loop unless some of them continue."""
    loop, deadline = runner.get_loop(), time.monotonic() + GRACE
    loop.set_exception_handler(_tell_all_but_interruptions)
    try:
        with _limited(loop, BLOCKED):
            left = [_describe(task) for task in loop.run_until_complete(_cancel_all(GRACE))]
            executor.shutdown(wait=False, cancel_futures=True)
            while (busy := _threads_of(loop)) and time.monotonic() < deadline:
                busy[0].join(0.05)
            left += [f"{len(busy)} threads of asyncio.to_thread"] * bool(busy)
            if not left:
                runner.close()
                return
    except _Blocked as blocked:
        executor.shutdown(wait=False, cancel_futures=True)
        own = [frame for frame in traceback.extract_tb(blocked.__traceback__) if is_users(frame.filename)]
        left = [
            f"{blocked}{f' ({own[-1].filename}:{own[-1].lineno})' if own else ''}, which blocks the event loop"
        ]
    loop.set_exception_handler(lambda *_: None)
    _left_behind.append(runner)
    say(f"left behind because it does not end when it is cancelled: {'; '.join(left)}")


def _tell_all_but_interruptions(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """No code asks a task that was interrupted for its exception, so asyncio would print its traceback after the run's error."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


async def _cancel_all(seconds: float) -> list[asyncio.Task[Any]]:
    """Cancel all other tasks; return those that have not ended after ``seconds``."""
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
    location = f" ({frames[-1].f_code.co_filename}:{frames[-1].f_lineno})" if frames else ""
    return f"{task.get_name()}{location}"


@contextmanager
def _limited(loop: asyncio.AbstractEventLoop, seconds: float) -> Iterator[None]:
    """A block that runs a loop to its end, which takes seconds, so Ctrl-C is ignored meanwhile. Code that blocks the loop
    for longer is interrupted by `_Blocked`, with the task's name; if native code does not return, the process is ended.
    Python can interrupt only its main thread: in any other thread there is no limit."""
    if not _in_main_thread():
        yield
        return
    late, ended = threading.Event(), threading.Event()
    name = "a callback"

    def interrupted(*_: object) -> None:
        if late.is_set():
            raise _Blocked(name)

    def limit() -> None:
        nonlocal name
        if not ended.wait(seconds) and not under_debugger():
            task = asyncio.current_task(loop)
            name = task.get_name() if task else name
            late.set()
            error = f"{name} blocks the event loop and cannot be interrupted. Let it clean up by awaiting."
            _interrupt(ended, (BLOCKED / 4, BLOCKED / 4), error)

    threading.Thread(target=limit, name="ajet-end", daemon=True).start()
    with _on_ctrl_c(interrupted):
        try:
            yield
        finally:
            ended.set()


def _interrupt(ended: threading.Event, waits: Sequence[float], error: str) -> None:
    """Interrupt the main thread (see `interrupt_main_thread`). If ``ended`` is never set, print ``error`` and end the
    process."""
    if not interrupt_main_thread(ended, waits):
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(1)


@contextmanager
def _ctrl_c_heeded() -> Iterator[None]:
    """A block in which Ctrl-C works, even in a shell's background job, which is started with Ctrl-C ignored."""
    if _in_main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        with _on_ctrl_c(signal.default_int_handler):
            yield
    else:
        yield


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """A block in which a signal wakes the loop. Otherwise Python would handle a signal that comes just before the loop begins to
    wait only when the wait ends, which may be never."""
    if not _in_main_thread():
        yield
        return
    reading, writing = socket.socketpair()
    with reading, writing:
        reading.setblocking(False)
        writing.setblocking(False)
        loop.add_reader(reading, reading.recv, 4096)
        before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reading)


@contextmanager
def _on_ctrl_c(handler: Callable[..., object]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def interrupt_main_thread(ended: threading.Event, waits: Iterable[float]) -> bool:
    """Send SIGINT to the main thread and wait for ``ended``, once for each number of seconds in ``waits``. Returns
    whether the event was set in time.

    Pass one number more than the interruptions that the main thread needs. Python calls a signal's handler between two
    instructions or when the signal interrupts a system call. A signal that arrives between the two, as the main thread
    begins to wait, is noticed only with the next one, and both count as one.
    """
    main = threading.main_thread().ident
    assert main is not None
    for seconds in waits:
        signal.pthread_kill(main, signal.SIGINT)
        if ended.wait(seconds):
            return True
    return False
