"""A thread with an event loop of its own: the engine lives there, callers from any thread hop to it.

While it has nothing to do, a call goes as far as its first wait in the caller's thread (`lent_loop`); what
ends before that needs no hop. A hop is one callback on either side: futures of `concurrent.futures`, their
wrappers and `asyncio.wait_for` would add half of its cost or more.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar

from ajet.capture.lent_loop import LentLoop

T = TypeVar("T")


class Portal:
    """Runs coroutines on its loop for callers of any thread or loop. A workflow that blocks its own
    loop with a synchronous client can therefore still be answered."""

    def __init__(self) -> None:
        self.loop = LentLoop()
        self._thread = threading.Thread(target=self.loop.run, name="ajet-engine", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Submitted[T]:
        """Start a coroutine on the loop, in its thread."""
        return Submitted(self.loop, coroutine)

    def wait(self, coroutine: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """What a coroutine returns on the loop; until its first wait it may run in this thread. Not for the
        loop's own. Raises TimeoutError after so many seconds; whatever ends the waiting cancels it."""
        started = time.monotonic()
        submitted = Submitted(self.loop, coroutine, here=True)
        try:
            return submitted.result(seconds and max(started + seconds - time.monotonic(), 0))
        except BaseException:
            submitted.cancel()
            raise

    async def run(
        self, coroutine: Coroutine[Any, Any, T], seconds: float | None = None, *, here: bool = False
    ) -> T:
        """As `wait`, for callers on another loop; their cancellation goes through. ``here`` allows it to
        run in this thread until its first wait."""
        own = asyncio.get_running_loop()
        started = own.time()
        over: asyncio.Future[None] = own.create_future()
        told = lambda _: own.is_closed() or own.call_soon_threadsafe(_end, over)  # noqa: E731
        call = _Call(self.loop, coroutine, told, here)
        if call.ended_here:
            return call.task.result()
        timer = None if seconds is None else own.call_at(started + seconds, _end, over, TimeoutError)
        try:
            await over
        except BaseException:
            call.cancel()
            raise
        finally:
            if timer:
                timer.cancel()
        return call.task.result()

    def leave(self, coroutine: Coroutine[Any, Any, None], seconds: float = 1.0) -> None:
        """Run a coroutine that ends something, and wait for it unless this is the loop's own thread. Does
        nothing once the loop has stopped."""
        if not self.loop.is_running():
            coroutine.close()
            return
        is_there = asyncio._get_running_loop() is self.loop
        submitted = Submitted(self.loop, coroutine, here=not is_there)
        if not is_there:
            submitted.wait(seconds)

    def close(self) -> None:
        """Cancel what still runs and end the thread."""
        self.submit(_cancel_others()).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self.loop.close()


class _Call(Generic[T]):
    """A coroutine on its way to a loop; ``over`` is called there when it has ended, unless that was at
    once, in the thread of its caller."""

    __slots__ = ("_coroutine", "_loop", "_over", "ended_here", "task")

    def __init__(
        self, loop: LentLoop, coroutine: Coroutine[Any, Any, T], over: Callable[[Any], Any], here: bool
    ) -> None:
        self.task: asyncio.Task[T]
        """There once it has begun."""
        self._loop = loop
        self._coroutine = coroutine
        self._over = over
        ended = loop.borrow(self._begin) if here else None
        self.ended_here = bool(ended)
        if ended is None:
            loop.call_soon_threadsafe(self._begin_there)

    def _begin(self) -> bool:
        """Whether it has ended with that."""
        self.task = self._loop.begin(self._coroutine)
        if self.task.done():
            return True
        self.task.add_done_callback(self._over)
        return False

    def _begin_there(self) -> None:
        if self._begin():
            self._over(self.task)

    def cancel(self) -> None:
        """From any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self.task.cancel())


class Submitted(_Call[T]):
    """A coroutine on its way, for a thread to wait for."""

    __slots__ = ("_running",)

    def __init__(self, loop: LentLoop, coroutine: Coroutine[Any, Any, T], *, here: bool = False) -> None:
        self._running = threading.Lock()
        self._running.acquire()
        super().__init__(loop, coroutine, lambda _: self._running.release(), here)
        if self.ended_here:
            self._running.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended within so many seconds."""
        ended = self._running.acquire(timeout=-1 if seconds is None else seconds)
        if ended:
            self._running.release()
        return ended

    def result(self, seconds: float | None = None) -> T:
        """What it returned. Raises TimeoutError if that takes longer, and CancelledError (that of
        `concurrent.futures`, an Exception: no task of the caller's was cancelled)."""
        if not self.wait(seconds):
            raise TimeoutError
        try:
            return self.task.result()
        except asyncio.CancelledError:
            raise CancelledError from None


def _end(over: asyncio.Future[None], error: type[Exception] | None = None) -> None:
    if over.done():
        return
    if error:
        over.set_exception(error())
    else:
        over.set_result(None)


async def _cancel_others() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
