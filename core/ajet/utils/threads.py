"""Calls plain functions in threads, so that they do not block the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], Any], name: str) -> Any:
    """Call a function in a daemon thread with the caller's context and return its result. If the caller is cancelled, the
    thread continues, because threads cannot be stopped, but it does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (context.run(call), None)
        except StopIteration as error:  # a future cannot hold a StopIteration
            outcome = (None, RuntimeError(f"StopIteration: {error}"))
        except BaseException as error:  # SystemExit and the like would vanish with the thread
            outcome = (None, ordinary(error))
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, name=f"ajet-{name}", daemon=True).start()
    return await future


def ordinary(error: BaseException) -> Exception:
    """An error of a user's code as one that ends no more than this code: a RuntimeError for SystemExit, a panic of a Rust extension,
    and whatever else is not an Exception."""
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")


async def called(function: Callable[..., Any], *arguments: Any, name: str) -> Any:
    """Call a user's function and return its result: an async one is awaited here, any other one runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    returned = await in_thread(lambda: function(*arguments), name)
    # A decorator or an object with an async __call__ hides that the function is a coroutine.
    return await returned if inspect.isawaitable(returned) else returned


async def to_its_end(call: Callable[[], T]) -> T:
    """Call a function in a thread and return its result. It never outlives its caller: a cancellation takes effect when
    the function has returned."""
    # A separate task would be cancelled with all others when the loop ends.
    work = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        work.result()
        raise
