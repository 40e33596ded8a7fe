"""Runs work that would block the engine's loop on a few threads.

A thread that computes in Python releases the interpreter every few milliseconds, so the loop keeps answering.
There are few threads on purpose: each takes a share of the interpreter's time from the loop.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

THREADS = 2


async def off_loop(work: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call a function on one of the threads and return its result. If the caller is cancelled before a thread is
    free, the function is never called."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), work, *args)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "ajet-off-loop")


# A forked child has none of its parent's threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)
