"""Calls of the user's functions, which may be async."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable
from typing import Any

from ajet_online.runner.loops import Loops, RunnerLoop


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose `__call__` is async
    )


class Call:
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
