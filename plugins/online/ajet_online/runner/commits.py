"""Which tasks to commit: those of which all runs have ended."""

from __future__ import annotations

import threading


class Commits:
    """Counts the runs of each task. A commit in the middle of a task would split the group that its runs are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, int] = {}
        self._rated: dict[str, None] = {}
        """Tasks with feedback that is not committed, in order."""

    def begin(self, task_id: str, runs: int) -> None:
        """Note runs that are about to begin."""
        with self._lock:
            self._running[task_id] = self._running.get(task_id, 0) + runs

    def ended(self, task_id: str, *, rated: bool) -> None:
        """Note the end of one run, and whether the explorer has its reward."""
        with self._lock:
            self._running[task_id] -= 1
            if not self._running[task_id]:
                del self._running[task_id]
            if rated:
                self._rated[task_id] = None

    def ready(self) -> list[str]:
        """The tasks to commit now."""
        with self._lock:
            return [task_id for task_id in self._rated if task_id not in self._running]

    def done(self, task_id: str) -> None:
        """Forget a task that is committed."""
        with self._lock:
            self._rated.pop(task_id, None)
