"""Counts the ended episodes of a phase, for progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

SECONDS = 0.5
"""Minimum seconds between two reports."""


class Tally:
    """Reports how many of a phase's episodes have ended, at most every `SECONDS`. ``report`` gets (phase, done, total)."""

    def __init__(self, phase: str, report: Callable[[str, int, int], None]) -> None:
        self._phase, self._report = phase, report
        self._sizes: dict[str, int] = {}
        """Episodes of each unit."""
        self._done: dict[str, int] = {}
        """Of them, those that have ended."""
        self._pending: asyncio.TimerHandle | None = None

    def start(self, unit: str, size: int) -> None:
        """A unit of ``size`` episodes will run."""
        self._sizes[unit], self._done[unit] = size, 0

    def ended(self, unit: str, count: int) -> None:
        """Further ``count`` episodes of a unit have ended."""
        self._set(unit, self._done.get(unit, 0) + count)

    def again(self, unit: str) -> None:
        """A unit runs again, because its runner died."""
        self._set(unit, 0)

    def end(self, unit: str) -> None:
        """All episodes of a unit have ended."""
        self._set(unit, self._sizes.get(unit, 0))

    def left(self, unit: str) -> int:
        """How many episodes of a unit have not ended."""
        return self._sizes.get(unit, 0) - self._done.get(unit, 0)

    def drop(self, units: Iterable[str]) -> None:
        """These units no longer count."""
        for unit in units:
            self._sizes.pop(unit, None)
            self._done.pop(unit, None)

    def _set(self, unit: str, done: int) -> None:
        if unit in self._sizes:
            self._done[unit] = min(done, self._sizes[unit])
            if self._pending is None:
                self._pending = asyncio.get_running_loop().call_later(SECONDS, self._send)

    def _send(self) -> None:
        self._pending = None
        if self._sizes:
            self._report(self._phase, sum(self._done.values()), sum(self._sizes.values()))
