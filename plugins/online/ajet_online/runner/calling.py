"""Calls of the user's functions, which may be async."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose `__call__` is async
    )


def in_event_loop() -> bool:
    """Whether this thread is running an event loop."""
    return asyncio._get_running_loop() is not None


class Call:
    """One call of a function, in this thread; async functions run in an event loop of their own. Another thread may cancel
    it."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._function = function
        self._args = args
        self._cancelled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def result(self) -> Any:
        """What the function returns. Raises what it raises, and CancelledError if the call was cancelled."""
        if is_async(self._function):
            return asyncio.run(self._awaited())
        returned = self._function(*self._args)
        return asyncio.run(self._awaited(returned)) if inspect.isawaitable(returned) else returned

    def cancel(self) -> None:
        """Cancel the task of an async function. A function that is not async goes on, as threads cannot be ended."""
        self._cancelled = True
        if self._loop and self._task:
            with suppress(RuntimeError):  # the loop is closed, so the call has ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def _awaited(self, awaitable: Any = None) -> Any:
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        if self._cancelled:
            raise asyncio.CancelledError
        return await (self._function(*self._args) if awaitable is None else awaitable)
