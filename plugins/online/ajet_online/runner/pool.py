"""A bounded pool of threads that gives up on jobs that take too long."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from ajet_online.runner.shadow_run import ShadowJob


class ShadowPool:
    """At most ``size`` jobs run and ``queue`` wait; a job that runs for ``timeout`` seconds is abandoned.

    Python cannot end a thread. So the thread of an abandoned job goes on until the job returns, and another thread takes its
    place, as long as there are not more than twice ``size`` threads. All are daemons: they do not keep the process alive.
    """

    def __init__(self, size: int, queue: int, timeout: float) -> None:
        self._size, self._queue, self._timeout = size, queue, timeout
        self._changed = threading.Condition()
        self._waiting: deque[ShadowJob] = deque()
        self._running: dict[ShadowJob, float] = {}
        """Jobs and their deadlines, the earliest first."""
        self._workers = self._starting = self._idle = 0
        """Threads for jobs; those of them that have not looked at the queue yet; those that wait for a job."""
        self._abandoned = 0
        """Threads whose jobs were abandoned. They are not workers."""
        self._abandoning = False
        """Whether a job is being told that it was abandoned."""
        self._closed = False
        self._start(self._watch)

    def put(self, jobs: Sequence[ShadowJob]) -> bool:
        """Queue all of the jobs, or none if there is no room for all. Returns whether they are queued."""
        with self._changed:
            if self._closed or len(self._waiting) + len(jobs) > self._queue:
                return False
            self._waiting.extend(jobs)
            self._grow()
            self._changed.notify_all()
            return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no job waits or runs, for at most ``timeout`` seconds. Returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._waiting or self._running or self._abandoning), timeout
            )

    def close(self) -> None:
        """Drop the jobs that wait, and abandon those that run."""
        with self._changed:
            self._closed = True
            waiting, running = list(self._waiting), list(self._running)
            self._waiting.clear()
            for job in running:
                self._release(job)
            self._changed.notify_all()
        for job in waiting:
            job.drop()
        for job in running:
            job.abandon()

    def _start(self, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name="ajet-runner", daemon=True).start()

    def _grow(self) -> None:
        """Start threads for jobs that no thread waits for."""
        while (
            self._idle + self._starting < len(self._waiting)
            and self._workers < self._size
            and self._workers + self._abandoned < 2 * self._size
        ):
            self._start(self._work)
            self._workers += 1
            self._starting += 1

    def _release(self, job: ShadowJob) -> None:
        del self._running[job]
        self._workers -= 1
        self._abandoned += 1

    def _work(self) -> None:
        with self._changed:
            self._starting -= 1
            while True:
                self._idle += 1
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._idle -= 1
                if not self._waiting:
                    self._workers -= 1
                    return
                job = self._waiting.popleft()
                self._running[job] = time.monotonic() + self._timeout
                self._changed.notify_all()
                self._changed.release()
                try:
                    job.run()
                finally:
                    self._changed.acquire()
                if self._running.pop(job, None) is None:
                    self._abandoned -= 1
                    if self._workers >= self._size:
                        return
                    self._workers += 1
                self._changed.notify_all()

    def _watch(self) -> None:
        """Abandon jobs at their deadlines."""
        while True:
            with self._changed:
                if not self._running:
                    if self._closed:
                        return
                    self._changed.wait()
                    continue
                job, deadline = next(iter(self._running.items()))
                left = deadline - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                self._release(job)
                self._grow()
                self._abandoning = True
            job.abandon()  # without the lock, as requests wait for it
            with self._changed:
                self._abandoning = False
                self._changed.notify_all()
