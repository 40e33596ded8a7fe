"""One event loop for all trials of a process.

Harbor guards what trials share, such as the build of an image, with locks that belong to one event loop, but each run of
AgentJet has a loop of its own. And a trial that is cancelled needs seconds to stop its container, while a cancelled workflow
is abandoned after two: here it ends in its own time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine in the trials' loop. Cancelling the future cancels it."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="harbor", daemon=True).start()
    return loop
