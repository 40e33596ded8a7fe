"""Divides `rollout.concurrency` among the runners, and gives each unit of work to a runner with a free slot."""

from __future__ import annotations

import asyncio
from collections import deque

from ajet.types import AjetError


class Slots:
    """Slots of ``places`` runners, numbered from 0, for ``limit`` episodes in total. All places are closed at first. Use it from
    a single event loop.

    A unit of several episodes is given to a place as soon as this has one free slot; then some of its episodes wait in
    the runner, so that no slot stays free until there are enough for the whole unit.
    """

    def __init__(self, limit: int, places: int) -> None:
        self._limit = limit
        self._shares: dict[int, int] = {}
        self._used = dict.fromkeys(range(places), 0)
        """Episodes of each place that have not ended, also those that wait there."""
        self._open: set[int] = set()
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
        """Size and future place of each unit that waits, in order."""
        self._divide()

    def share(self, place: int) -> int:
        """How many episodes may run at a place at once. Grows when another place is removed."""
        return self._shares[place]

    async def take(self, size: int) -> int:
        """The place for a unit of ``size`` episodes, with the most free slots, once there is one. Raises AjetError if no place
        is left."""
        if not self._used:
            raise _none_left()
        taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, taken))
        self._serve()
        try:
            return await taken
        except asyncio.CancelledError:
            if taken.done() and not taken.cancelled():
                self.free(taken.result(), size)
            raise

    def free(self, place: int, count: int) -> None:
        """Report that ``count`` episodes of a place have ended."""
        if place in self._used:
            self._used[place] -= count
            self._serve()

    def open(self, place: int) -> None:
        """Report that the runner of a place has started."""
        self._open.add(place)
        self._serve()

    def close(self, place: int) -> None:
        """Report that the runner of a place has died, and that another one starts there."""
        self._open.discard(place)

    def remove(self, place: int) -> None:
        """Report that no runner can be started at a place; the others get its share."""
        self._open.discard(place)
        self._used.pop(place, None)
        if self._used:
            self._divide()
            self._serve()
            return
        for _, taken in self._waiting:
            if not taken.done():
                taken.set_exception(_none_left())
        self._waiting.clear()

    def _divide(self) -> None:
        each, rest = divmod(self._limit, len(self._used))
        self._shares = {place: each + (number < rest) for number, place in enumerate(self._used)}

    def _serve(self) -> None:
        while self._waiting:
            size, taken = self._waiting[0]
            if taken.done():  # it was cancelled
                self._waiting.popleft()
                continue
            free = {place: self._shares[place] - self._used[place] for place in self._open}
            best = max(free, key=lambda place: free[place], default=None)
            if best is None or free[best] <= 0:
                return
            self._waiting.popleft()
            self._used[best] += size
            taken.set_result(best)


def _none_left() -> AjetError:
    return AjetError(
        "no episode runner is left: all have died, and none could be restarted. See the messages above."
    )
