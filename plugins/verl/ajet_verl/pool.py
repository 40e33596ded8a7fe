"""Distributes units of work over the episode runners of all nodes, replaces runners that die, and counts ended episodes for
progress.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ajet import AjetError
from ajet.rollout.deadline import DeadlinePassed, within
from ajet_verl.runner import ALIVE_SECONDS, Unit, UnitEnded, UnitRunner

MAX_LOST = 2
"""After this many runners have died during a unit, the unit counts as the cause and fails."""
GRACE = 60.0
"""Seconds without a report of a runner, beyond those for which its event loop may be blocked, until it counts as lost."""
NEWS_SECONDS = 0.2
"""Minimum seconds between two reports of a runner."""
NEWS_A_SECOND = 500
"""Maximum number of reports of all runners in a second, which the conductor's process has to take."""
OPENING = 600.0
"""Maximum seconds for a runner to start."""
CANCELLING = 10.0
"""Maximum seconds for a runner to cancel a unit."""
REPORT_SECONDS = 0.5
"""Minimum seconds between two reports of progress."""


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


class Tally:
    """Reports how many of a phase's episodes have ended, at most every `REPORT_SECONDS`. ``report`` gets (phase, done, total)."""

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
                self._pending = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._send)

    def _send(self) -> None:
        self._pending = None
        if self._sizes:
            self._report(self._phase, sum(self._done.values()), sum(self._sizes.values()))


@dataclass(slots=True, eq=False)
class _RunnerHandle:
    """A runner that is starting or running."""

    place: int
    node: str
    actor: Any
    following: asyncio.Task[None] | None = None
    units: dict[str, tuple[int, Tally]] = field(default_factory=dict)
    """Its units by name: how many of their episodes have not ended, and the tally that counts them."""


class Pool:
    """Runs each unit on the runner with the most free slots. Use it from a single event loop."""

    def __init__(
        self,
        config: Any,
        client: Any,
        *,
        concurrency: int,
        blocked: float,
        each: int,
        say: Callable[[str], None],
    ) -> None:
        """``each`` runners on every node run ``concurrency`` episodes at once, all together. ``blocked`` is the maximum number
        of seconds for which an episode may block its runner's event loop."""
        self.lost = 0
        """How many runners have died since the conductor last reset it."""
        self._config, self._client, self._say = config, client, say
        self._silence = blocked + ALIVE_SECONDS + GRACE
        self._paused = False
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] for _ in range(each)]
        self._slots = Slots(concurrency, len(nodes))
        self._pace = max(NEWS_SECONDS, len(nodes) / NEWS_A_SECOND)
        self._handles = {place: self._start(place, node) for place, node in enumerate(nodes)}

    async def open(self) -> None:
        """Wait until all runners have started. Raises the error of one that cannot start."""
        await asyncio.gather(*(self._ready(handle) for handle in self._handles.values()))
        for handle in self._handles.values():
            handle.following = asyncio.create_task(self._follow(handle))

    async def run(self, unit: Unit, tally: Tally) -> UnitEnded | None:
        """Run a unit. If its runner dies, another one runs it again; None if `MAX_LOST` runners have died. If this is cancelled,
        the runner cancels the unit."""
        for lost in range(MAX_LOST):
            if lost:
                tally.again(unit.name)
            place = await self._slots.take(len(unit.plans))
            handle = self._handles[place]
            handle.units[unit.name] = len(unit.plans), tally
            try:
                ended: UnitEnded | None = await handle.actor.run.remote(unit, self._slots.share(place))
                assert ended is not None, f"unit {unit.name} was cancelled, but not by its pool"
                return replace(ended, lost=lost)
            except RayActorError as error:
                if isinstance(error, RayTaskError):  # another actor, which the runner has called, is dead
                    raise
                self._replace(handle, _last_line(error))
            except asyncio.CancelledError:
                with suppress(RayActorError, DeadlinePassed):
                    await within(CANCELLING, _awaited(handle.actor.cancel.remote(unit.name)))
                raise
            finally:
                self._slots.free(place, handle.units.pop(unit.name)[0])
        return None

    async def pause(self, paused: bool) -> None:
        """Begin or end a pause of the servers; deadlines do not count it."""
        self._paused = paused
        asked = [handle.actor.pause.remote(paused) for handle in self._handles.values()]
        await asyncio.gather(*map(_awaited, asked), return_exceptions=True)

    async def close(self) -> None:
        """Close and end the runners."""
        handles = list(self._handles.values())
        for handle in handles:
            if handle.following:
                handle.following.cancel()
        asked = [handle.actor.close.remote() for handle in handles]
        if asked:
            await asyncio.wait([asyncio.ensure_future(_awaited(one)) for one in asked], timeout=20.0)
        for handle in handles:
            ray.kill(handle.actor)

    async def _ready(self, handle: _RunnerHandle) -> None:
        """Wait until a runner has started; then it gets units."""
        await within(OPENING, _awaited(handle.actor.open.remote()))
        if self._paused:
            await handle.actor.pause.remote(True)
        self._slots.open(handle.place)

    async def _follow(self, handle: _RunnerHandle) -> None:
        """Take a runner's reports until it is lost."""
        while True:
            try:
                news = await within(self._silence, _awaited(handle.actor.news.remote(self._pace)))
            except RayActorError as error:
                return self._replace(handle, _last_line(error))
            except DeadlinePassed:
                return self._replace(handle, f"it did not report for {self._silence:g} s")
            for name, count in news.items():
                if name in handle.units:
                    left, tally = handle.units[name]
                    count = min(count, left)
                    handle.units[name] = left - count, tally
                    self._slots.free(handle.place, count)
                    tally.ended(name, count)

    def _replace(self, handle: _RunnerHandle, why: str) -> None:
        """Replace a lost runner. Does nothing if it is already replaced, because all of its units call this."""
        if self._handles.get(handle.place) is not handle:
            return
        self.lost += 1
        self._say(f"an episode runner was lost; its groups run again on another one: {why}")
        self._slots.close(handle.place)
        ray.kill(handle.actor)
        new = self._handles[handle.place] = self._start(handle.place, handle.node)
        new.following = asyncio.create_task(self._restart(new))

    async def _restart(self, handle: _RunnerHandle) -> None:
        try:
            await self._ready(handle)
        except Exception as error:
            self._say(f"an episode runner did not start: {_last_line(error)}")
            del self._handles[handle.place]
            self._slots.remove(handle.place)
        else:
            await self._follow(handle)

    def _start(self, place: int, node: str) -> _RunnerHandle:
        where = NodeAffinitySchedulingStrategy(node, soft=True)
        actor = (
            ray.remote(UnitRunner)
            .options(num_cpus=0, max_concurrency=100_000, scheduling_strategy=where)
            .remote(self._config, self._client)
        )
        return _RunnerHandle(place, node, actor)


async def _awaited(reference: Any) -> Any:
    return await reference


def _last_line(error: BaseException | None) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
