"""Distributes units of work over the episode runners of all nodes, and replaces runners that die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ajet.rollout.deadline import DeadlinePassed, within
from ajet_verl.runner import Runner
from ajet_verl.slots import Slots
from ajet_verl.units import ALIVE_SECONDS, Unit, UnitEnded

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


class UnitProgress(Protocol):
    """Who is told how units go on."""

    def ended(self, unit: str, count: int) -> None:
        """Further episodes of a unit have ended."""

    def again(self, unit: str) -> None:
        """A unit runs again, on another runner."""


@dataclass(slots=True, eq=False)
class _RunnerHandle:
    """A runner that is starting or running."""

    place: int
    node: str
    actor: Any
    following: asyncio.Task[None] | None = None
    units: dict[str, tuple[int, UnitProgress]] = field(default_factory=dict)
    """Its units by name: how many of their episodes have not ended, and who is told."""


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

    async def run(self, unit: Unit, progress: UnitProgress) -> UnitEnded | None:
        """Run a unit. If its runner dies, another one runs it again; None if `MAX_LOST` runners have died. If this is cancelled,
        the runner cancels the unit."""
        for lost in range(MAX_LOST):
            if lost:
                progress.again(unit.name)
            place = await self._slots.take(len(unit.plans))
            handle = self._handles[place]
            handle.units[unit.name] = len(unit.plans), progress
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
                    left, progress = handle.units[name]
                    count = min(count, left)
                    handle.units[name] = left - count, progress
                    self._slots.free(handle.place, count)
                    progress.ended(name, count)

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
            ray.remote(Runner)
            .options(num_cpus=0, max_concurrency=100_000, scheduling_strategy=where)
            .remote(self._config, self._client)
        )
        return _RunnerHandle(place, node, actor)


async def _awaited(reference: Any) -> Any:
    return await reference


def _last_line(error: BaseException | None) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
