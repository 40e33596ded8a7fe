"""Threads that a shadow run starts belong to it. Without this, a tool that runs in a thread pool would not know."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, thread
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

from ajet.utils.patching import replaced
from ajet_online.runner.shadow import in_shadow_run


@contextmanager
def threads_in_shadow_runs() -> Iterator[None]:
    """A block in which jobs of thread pools, and plain threads, that a shadow run starts run in a copy of its context.
    ``loop.run_in_executor`` uses such a pool."""
    submit, start = ThreadPoolExecutor.submit, threading.Thread.start

    def submit_in_shadow(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if in_shadow_run():
            return submit(self, copy_context().run, fn, *args, **kwargs)
        return submit(self, fn, *args, **kwargs)

    def start_in_shadow(self: Any) -> None:
        # The workers of a pool are shared with other requests; each of their jobs has its own context.
        if in_shadow_run() and getattr(self, "_target", None) is not thread._worker:
            run, context = self.run, copy_context()
            self.run = lambda: context.run(run)
        start(self)

    with (
        replaced(ThreadPoolExecutor, submit=submit_in_shadow),
        replaced(threading.Thread, start=start_in_shadow),
    ):
        yield
