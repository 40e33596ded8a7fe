"""Calls of the user's functions, which may be async, and the event loop of those that are.

They share one loop: an async HTTP client keeps connections that belong to one loop, and frameworks such as LangChain share such a
client between agents. With a loop for each shadow run, the second one would fail.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from typing import Any


class RunnerLoop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._unanswered = 0
        self._thread = threading.Thread(target=self._serve, name="ajet-runner-loop", daemon=True)
        Context().run(self._thread.start)
        self._started.wait()

    @property
    def is_stuck(self) -> bool:
        """Whether it has not come to an interruption, because a function in it blocks."""
        return self._unanswered > 0

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine in it, in a copy of the caller's context."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def interrupt(self, callback: Callable[[], object]) -> None:
        """Call a function in it as soon as it can."""

        def answer() -> None:
            self._unanswered -= 1
            callback()

        self._unanswered += 1
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(answer)

    def close(self, timeout: float = 1.0) -> None:
        """Cancel what it runs, and end it as soon as that has ended. Waits up to ``timeout`` seconds."""
        self.interrupt(lambda: self._closing.set())
        self._thread.join(timeout)

    def _serve(self) -> None:
        with asyncio.Runner() as runner:
            self._loop, self._closing = runner.get_loop(), asyncio.Event()
            runner.run(self._until_closed())

    async def _until_closed(self) -> None:
        self._started.set()
        await self._closing.wait()


class Loops:
    """One event loop at a time. If a function blocks it for longer than a shadow run may take, another one takes its place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: RunnerLoop | None = None
        self._closed = False

    def current(self) -> RunnerLoop:
        """The loop to use now. Raises RuntimeError after `close`."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the runner has stopped")
            if self._loop and self._loop.is_stuck:
                self._loop.close(0)
                self._loop = None
            if self._loop is None:
                self._loop = RunnerLoop()
            return self._loop

    def close(self) -> None:
        """Cancel what runs."""
        with self._lock:
            self._closed = True
            if self._loop:
                self._loop.close()


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose `__call__` is async
    )


class FunctionCall:
    """One call of a function, in this thread; async functions run in the runner's event loop. Another thread may cancel it."""

    def __init__(self, loops: Loops, function: Callable[..., Any], *args: Any) -> None:
        self._loops = loops
        self._function = function
        self._args = args
        self._cancelled = False
        self._loop: RunnerLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def result(self) -> Any:
        """What the function returns; of a stream, the list of its items. Raises what it raises, and CancelledError if the call was
        cancelled."""
        returned = self._function(*self._args)
        if inspect.isgenerator(returned):
            return list(returned)
        if inspect.isasyncgen(returned):
            returned = _listed(returned)
        if not inspect.isawaitable(returned):
            return returned
        self._loop = self._loops.current()
        return self._loop.submit(self._awaited(returned)).result()

    def cancel(self) -> None:
        """Cancel the task of an async function. A function that is not async goes on, as threads cannot be ended."""
        self._cancelled = True
        if self._loop:
            self._loop.interrupt(self._cancel_task)

    async def _awaited(self, awaitable: Any) -> Any:
        self._task = asyncio.current_task()
        if self._cancelled:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise asyncio.CancelledError
        return await awaitable

    def _cancel_task(self) -> None:
        if self._task:
            self._task.cancel()


async def _listed(stream: AsyncGenerator[Any, Any]) -> list[Any]:
    return [item async for item in stream]
