"""What a runner has done so far, as numbers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Counts:
    """A snapshot of a runner's counters."""

    requests: int = 0
    """Requests that the production model has answered while the runner was started."""
    selected: int = 0
    """Requests that a strategy has selected."""
    shadow_runs: int = 0
    """Shadow runs that have begun."""
    dropped: int = 0
    """Shadow runs that never began: the queue was full, the runner was stopped, or tools cannot be intercepted."""
    failed: int = 0
    """Shadow runs whose agent or reward calculator raised, and requests whose selection raised."""
    timed_out: int = 0
    """Shadow runs that were abandoned: after ``timeout`` seconds, or when the runner stopped."""
    refused_tools: int = 0
    """Tool calls that were refused."""
    feedback_sent: int = 0
    """Rewards that the explorer has taken."""
    feedback_failed: int = 0
    """Rewards that it has not."""
    commits: int = 0
    """Tasks that were committed."""
    commits_failed: int = 0
    """Attempts to commit a task that failed; the task is tried again after the next interval."""


class Counter:
    """Counters that several threads increase."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()

    def add(self, name: str, number: int = 1) -> None:
        """Increase the counter with the name of a field of `Counts`."""
        with self._lock:
            self._counts = replace(self._counts, **{name: getattr(self._counts, name) + number})

    @property
    def snapshot(self) -> Counts:
        """The counters now, all read at the same moment."""
        return self._counts
