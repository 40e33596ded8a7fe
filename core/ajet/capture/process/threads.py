"""Threads keep the episode: contextvars do not reach a pool's workers by themselves.

``ThreadPoolExecutor.submit`` carries the caller's context, one copy per job, so shared pools stay correct;
``loop.run_in_executor``, and with it every framework's sync tools, uses it. Plain threads carry the context
only with ``threads``: a thread that a library starts once, inside some episode, and uses for everything would
belong to that episode forever. What they print always does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, thread
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

from ajet.capture.process.printed import printed_by_episode
from ajet.capture.session import current_session, threads_without_session
from ajet.utils.patching import replaced


@contextmanager
def propagated(*, threads: bool, engine_loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """A block in which jobs of thread pools, and with ``threads`` plain threads too, that are started inside an
    episode run in the context of their caller. The engine's own jobs are unchanged."""
    submit, start = ThreadPoolExecutor.submit, threading.Thread.start
    threads_without_session.clear()

    def carries() -> bool:
        return current_session.get() is not None and asyncio._get_running_loop() is not engine_loop

    def submit_carrying(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if carries():
            return submit(self, copy_context().run, fn, *args, **kwargs)
        return submit(self, fn, *args, **kwargs)

    def start_carrying(self: Any) -> None:
        if carries() and getattr(self, "_target", None) is not thread._worker:
            run, printed = self.run, printed_by_episode.get()
            if threads:
                run = partial(copy_context().run, run)
            else:
                threads_without_session.add(self)
            self.run = lambda: (
                printed_by_episode.set(printed),
                run(),
            )  # also a traceback belongs to the episode
        start(self)

    with (
        replaced(ThreadPoolExecutor, submit=submit_carrying),
        replaced(threading.Thread, start=start_carrying),
    ):
        yield
