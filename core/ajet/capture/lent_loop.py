"""An event loop whose thread lends it while it waits for events.

Waking another thread and being woken by it costs more than most of what a caller wants done there. A caller
who borrows the loop does it in its own thread: as on the loop in all respects but the thread, and as alone,
since one lock belongs to whoever runs what is on the loop.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LentLoop(asyncio.SelectorEventLoop):
    """Start `run` in a thread; from any other thread, `borrow`."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._hooks = sys.get_asyncgen_hooks()
        self._first: list[tuple[Callable[..., object], Context]] | None = None
        """Takes the first step of a task while that is being made."""
        self._stirred = False
        """Something was put on the loop since it was last set back."""
        super().__init__(_LendingSelector(self._turn))
        self.call_soon(self._keep_hooks)

    def run(self) -> None:
        """Run until the loop is stopped."""
        with self._turn:
            self.run_forever()

    def borrow(self, work: Callable[[], T]) -> T | None:
        """What ``work`` returns, done in this thread as if on the loop. None, and nothing was done, if the
        loop has other things to do; also in debug mode, where asyncio holds the loop to its own thread."""
        if not self._turn.acquire(blocking=False):
            return None
        self._stirred = False
        # What this thread has put there before, its own thread may not have seen yet: that goes first.
        free = self.is_running() and not self._ready and not self.get_debug()  # type: ignore[attr-defined]
        try:
            return self._as_if_here(work) if free else None
        finally:
            stirred = self._stirred
            self._turn.release()
            if stirred:
                self.call_soon_threadsafe(_look)

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that has been taken to its first wait, or its end. For who is on the loop, and no task's."""
        first: list[tuple[Callable[..., object], Context]] = []
        self._first = first
        try:
            task = asyncio.Task(coroutine, loop=self)
        finally:
            self._first = None
        for step, context in first:
            context.run(step)
        # What it waits for may be something that selectors do not notice while they wait.
        self._stirred |= not task.done()
        return task

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """See `asyncio.loop.call_soon`."""
        if self._first is not None and context is not None:
            self._first.append((callback, context))
            return asyncio.Handle(callback, args, self, context)
        self._stirred = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See `asyncio.loop.call_at`."""
        self._stirred = True
        return super().call_at(when, callback, *args, context=context)

    def _keep_hooks(self) -> None:
        self._hooks = sys.get_asyncgen_hooks()

    def _as_if_here(self, work: Callable[[], T]) -> T:
        own = asyncio._get_running_loop()
        task = None if own is None else asyncio.current_task(own)
        hooks = sys.get_asyncgen_hooks()
        if own and task:
            asyncio._leave_task(own, task)
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(*self._hooks)
        try:
            return work()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(own)
            if own and task:
                asyncio._enter_task(own, task)


class _LendingSelector(selectors.DefaultSelector):
    """Gives up its loop's turn while it waits."""

    def __init__(self, turn: threading.Lock) -> None:
        super().__init__()
        self._turn = turn

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        self._turn.release()
        try:
            return super().select(timeout)
        finally:
            self._turn.acquire()


def _look() -> None:
    """Wakes the loop's thread, which finds what was put there."""
