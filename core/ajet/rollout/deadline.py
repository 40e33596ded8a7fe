"""A deadline that holds even for code that swallows its cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ajet.utils.threads import ordinary

T = TypeVar("T")
_GRACE = 2.0  # seconds that cancelled code has to clean up


class Cancelled(Exception):
    """The code ended as cancelled without being cancelled from outside: it awaited a task that it, or a library, had cancelled."""


class DeadlinePassed(Exception):
    """The deadline passed. Unlike TimeoutError, it cannot be confused with a timeout of the awaited code."""


async def within(
    seconds: float | None,
    coroutine: Coroutine[Any, Any, T],
    excused: Callable[[], float] = lambda: 0.0,
    name: str | None = None,
    stopped: asyncio.Future[Any] | None = None,
) -> T:
    """The coroutine's result; it runs in a task of this name. Raises DeadlinePassed after ``seconds`` (None: no
    limit), not counting those that ``excused`` reports, at most two seconds late: code that does not react to its
    cancellation is abandoned. Raises the result of ``stopped`` at once. Raises Cancelled, and RuntimeError for
    what is not an Exception, so that one coroutine cannot end all others; but KeyboardInterrupt is raised as it is."""
    task = asyncio.create_task(_without_exit(coroutine), name=name)
    clock = asyncio.get_running_loop().time
    started = clock()
    ends: set[asyncio.Future[Any]] = {task, stopped} if stopped else {task}
    try:
        while not task.done():
            if stopped and stopped.done():
                raise stopped.result()
            left = None if seconds is None else seconds + excused() - (clock() - started)
            if left is not None and left <= 0:
                raise DeadlinePassed
            await asyncio.wait(ends, timeout=left and max(left, 0.05), return_when=asyncio.FIRST_COMPLETED)
        if task.cancelled():
            raise Cancelled(
                "it awaited a task that was cancelled. Catch asyncio.CancelledError where you await that task."
            )
        try:
            return task.result()
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise ordinary(error) from error
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_GRACE)


async def _without_exit(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        return await coroutine
    except SystemExit as error:  # asyncio would end the event loop
        raise ordinary(error) from error
