"""Group commit: what is recorded at the same time becomes durable in one transaction."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Sequence

from ajet import AjetError
from ajet_online.database import StoreFailed
from ajet_online.store import TraceStore
from ajet_online.trace import Trace

MOST = 500
"""Traces of one transaction."""
_Kept = tuple[Sequence[Trace], asyncio.Future[None], asyncio.AbstractEventLoop]


class Writer:
    """Writes traces to a store in a thread of its own."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self.transactions = 0
        self.seconds = 0.0
        """Of all transactions."""
        self._queue: queue.SimpleQueue[_Kept | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ajet-writer", daemon=True)
        self._thread.start()

    async def keep(self, new: Sequence[Trace]) -> None:
        """Write traces, and wait until they are durable. Raises StoreFailed."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._queue.put((new, done, loop))
        await done

    def close(self) -> None:
        """Write what is waiting, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            waiting, end = self._waiting(first)
            started = time.monotonic()
            error: AjetError | None
            try:
                self._store.record([trace for new, _, _ in waiting for trace in new])
                error = None
            except AjetError as failed:
                error = failed
            except Exception as failed:  # the thread must live: every call waits for it
                error = StoreFailed(f"the reply cannot be stored: {type(failed).__name__}: {failed}")
            self.transactions += 1
            self.seconds += time.monotonic() - started
            for _, done, loop in waiting:
                loop.call_soon_threadsafe(_tell, done, error)
            if end:
                return

    def _waiting(self, first: _Kept) -> tuple[list[_Kept], bool]:
        """All that waits, up to `MOST` traces; and whether the writer is closing."""
        waiting, count = [first], len(first[0])
        while count < MOST and not self._queue.empty():
            further = self._queue.get()
            if further is None:
                return waiting, True
            waiting.append(further)
            count += len(further[0])
        return waiting, False


def _tell(done: asyncio.Future[None], error: AjetError | None) -> None:
    if done.done():  # the client has gone away
        return
    if error:
        done.set_exception(error)
    else:
        done.set_result(None)
