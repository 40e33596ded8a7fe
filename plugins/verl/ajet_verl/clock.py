"""Measures how long the servers were paused, because deadlines of episodes do not count that time."""

from __future__ import annotations

import time


class Clock:
    """Adds up the seconds between ``pause(True)`` and ``pause(False)``."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._since: float | None = None

    def pause(self, paused: bool) -> None:
        """Begin or end a pause; repeating either has no effect."""
        if paused and self._since is None:
            self._since = time.monotonic()
        elif not paused and self._since is not None:
            self._sum += time.monotonic() - self._since
            self._since = None

    def stopped(self) -> float:
        """Seconds of all pauses so far, including the current one."""
        return self._sum + (time.monotonic() - self._since if self._since is not None else 0.0)
