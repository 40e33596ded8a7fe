"""A thread with its own event loop: the engine runs there, and callers on any thread or loop send it coroutines.

A call costs one callback on each side, and calls of one moment wake a loop together (`Mailbox`); futures of
`concurrent.futures`, their wrappers and `asyncio.wait_for` would add at least half of that again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class Portal:
    """Runs coroutines on its loop for callers of any thread or loop. A workflow that blocks its own
    loop with a synchronous client can therefore still be answered."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._mailbox = Mailbox(self.loop)
        self._thread = threading.Thread(target=self.loop.run_forever, name="ajet-engine", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Submitted[T]:
        """Start a coroutine on the loop."""
        return Submitted(self._mailbox, coroutine)

    def wait(self, coroutine: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Run a coroutine on the loop and return its result; never call this on the loop's own thread. Raises
        TimeoutError after ``seconds``; whatever ends the wait cancels the coroutine."""
        submitted = Submitted(self._mailbox, coroutine)
        try:
            return submitted.result(seconds)
        except BaseException:
            submitted.cancel()
            raise

    async def run(self, coroutine: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Like `wait`, for callers on another loop; cancelling the caller cancels the coroutine."""
        call, over = self._begin(coroutine)
        timer = None if seconds is None else over.get_loop().call_later(seconds, _end, over, TimeoutError)
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
        submitted = Submitted(self._mailbox, coroutine)
        if threading.current_thread() is not self._thread:
            submitted.wait(seconds)

    async def leave_from_loop(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Like `leave`, for callers on another loop. The coroutine runs to its end even if the caller is cancelled."""
        _, over = self._begin(coroutine)
        await over

    def _begin(self, coroutine: Coroutine[Any, Any, T]) -> tuple[_Posted[T], asyncio.Future[None]]:
        """Start a coroutine; the future tells the caller's loop that it has ended."""
        own, mailbox = asyncio.get_running_loop(), own_mailbox()
        over: asyncio.Future[None] = own.create_future()

        def told(_: object) -> None:
            if not own.is_closed():
                mailbox.post(partial(_end, over))

        return _Posted(self._mailbox, coroutine, told), over

    def close(self) -> None:
        """Cancel what is still running and end the thread."""
        self.submit(_cancel_others()).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self.loop.close()


class _Posted(Generic[T]):
    """A coroutine submitted to a loop; ``over`` is called there when it has ended."""

    __slots__ = ("_coroutine", "_mailbox", "_over", "task")

    def __init__(
        self,
        mailbox: Mailbox,
        coroutine: Coroutine[Any, Any, T],
        over: Callable[[asyncio.Task[T]], object],
    ) -> None:
        self.task: asyncio.Task[T]
        """Set once the coroutine has begun."""
        self._mailbox = mailbox
        self._coroutine = coroutine
        self._over = over
        mailbox.post(self._begin)

    def _begin(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._coroutine)
        self.task.add_done_callback(self._over)

    def cancel(self) -> None:
        """Cancel the coroutine, from any thread."""
        with suppress(RuntimeError):  # its loop is closed
            self._mailbox.post(lambda: self.task.cancel())


class Submitted(_Posted[T]):
    """A submitted coroutine that a thread can wait for."""

    __slots__ = ("_running",)

    def __init__(self, mailbox: Mailbox, coroutine: Coroutine[Any, Any, T]) -> None:
        self._running = threading.Lock()
        self._running.acquire()
        super().__init__(mailbox, coroutine, lambda _: self._running.release())

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended within ``seconds``."""
        ended = self._running.acquire(timeout=-1 if seconds is None else seconds)
        if ended:
            self._running.release()
        return ended

    def result(self, seconds: float | None = None) -> T:
        """What it returned. Raises TimeoutError after ``seconds``, and CancelledError (that of
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


class Mailbox:
    """`asyncio.loop.call_soon_threadsafe` for many callers: that writes to a socket for every callback, which can cost more than the
    callback itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._posted: deque[tuple[Callable[[], object], Context]] = deque()
        self._woken = False

    def post(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` soon on the loop, in the caller's context and in the order of the posts. Raises RuntimeError if the loop is
        closed."""
        self._posted.append((callback, copy_context()))
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        self._woken = False  # first: what is posted from here on wakes the loop again
        while self._posted:
            callback, context = self._posted.popleft()
            self._loop.call_soon(callback, context=context)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = WeakKeyDictionary()


def own_mailbox() -> Mailbox:
    """The mailbox of the loop that runs in this thread."""
    loop = asyncio.get_running_loop()
    mailbox = _of_loops.get(loop)
    if mailbox is None:
        mailbox = _of_loops[loop] = Mailbox(loop)
    return mailbox
