"""A thread with an event loop of its own: the engine lives there, callers from any thread hop to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Portal:
    """Runs coroutines on its loop for callers of any thread or loop. A workflow that blocks its own
    loop with a synchronous client can therefore still be answered."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="ajet-engine", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop; cancelling the future cancels it there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that runs on the loop; cancellation goes through."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def leave(self, coroutine: Coroutine[Any, Any, None], seconds: float = 1.0) -> None:
        """Run a coroutine that ends something, and wait for it unless this is the loop's own thread. Does
        nothing once the loop has stopped."""
        if not self.loop.is_running():
            coroutine.close()
            return
        future = self.submit(coroutine)
        if threading.current_thread() is not self._thread:
            with suppress(TimeoutError):
                future.result(seconds)

    def close(self) -> None:
        """Cancel what still runs and end the thread."""
        self.submit(_cancel_others()).result(timeout=10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self.loop.close()


async def _cancel_others() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
