"""Units of work, each of which one runner does as a whole: it runs the episodes, judges them, and builds and puts the rows.

Tokens stay in the runner's process and in verl's queue: the conductor gets numbers, and the recorder gets the episodes' lines
of the journal, which it keeps until the conductor reports that the unit has ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ajet.capture.sampling import SamplingPolicy
from ajet.job.job import Job
from ajet.learning.batch import Learnable, Selection
from ajet.learning.rollouts import why_nothing
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.failures import Failure, FailureKind
from ajet.rollout.journal import JournalLine
from ajet.rollout.scheduler import Runner
from ajet.rollout.summary import Ended
from ajet.runs.runtime import Runtime
from ajet.tracker.record import EpisodeRecord
from ajet.types import WorkflowOutput
from ajet_verl.dataset import PlannedGroup
from ajet_verl.rows import group_rows

ALIVE_SECONDS = 20.0
"""Maximum seconds between two reports of a runner."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A group to train on, or an episode of a validation."""

    name: str
    """The group's key in verl's queue, or the episode's id."""
    plans: tuple[Plan, ...]
    policy: SamplingPolicy
    phase: str
    group: PlannedGroup | None = None
    """The group whose rows are put into the queue."""


@dataclass(frozen=True, slots=True)
class UnitEnded:
    """The numbers of a unit that has ended."""

    members: tuple[Ended, ...]
    """In the order of the plans."""
    rows: tuple[str, ...] = ()
    """Keys of its rows in the queue."""
    why: str = ""
    """Why a group has no rows."""
    lost: int = field(default=0, kw_only=True)
    """How many runners died while they ran it."""


def died(unit: Unit, runners: int) -> list[Episode]:
    """The failed episodes of a unit during which so many runners died."""
    failure = Failure(FailureKind.RUNNER_DIED, text=f"{runners} runners died while they ran its group")
    return [Episode(plan, 0, WorkflowOutput(), EpisodeRecord(), failed=failure) for plan in unit.plans]


@dataclass(frozen=True, slots=True)
class _Limited:
    """A runner of attempts, of which only so many run at once."""

    runner: Runner
    slots: asyncio.Semaphore

    async def run(self, plan: Plan, attempt: int) -> Episode:
        async with self.slots:
            return await self.runner.run(plan, attempt)


class Units:
    """The units of a runner's process. ``excused`` returns seconds that deadlines of episodes do not count. ``hold`` and ``put``
    are `ajet_verl.recorder.Recorder.hold` and `ajet_verl.queue.put`."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        row_limit: float,
        excused: Callable[[], float],
        hold: Callable[[str, Sequence[JournalLine]], Any],
        put: Callable[..., Any],
    ) -> None:
        self._runtime = runtime
        self._row_limit, self._excused = row_limit, excused
        self._hold, self._put = hold, put
        self._slots = asyncio.Semaphore(0)
        self._limit = 0
        self._running: dict[str, asyncio.Task[UnitEnded]] = {}
        self._attempted: Counter[str] = Counter()
        self._has_news = asyncio.Event()

    @property
    def job(self) -> Job:
        return self._runtime.job

    async def run(self, unit: Unit, slots: int) -> UnitEnded | None:
        """Run a unit to its end; None if `cancel` ended it. ``slots`` is how many attempts of all units may run at once; it may
        only grow."""
        for _ in range(slots - self._limit):
            self._slots.release()
        self._limit = max(slots, self._limit)
        task = self._running[unit.name] = asyncio.create_task(self._run(unit), name=f"unit {unit.name}")
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            self._running.pop(unit.name, None)
        return None if task.cancelled() else task.result()

    async def cancel(self, name: str) -> None:
        """Cancel a unit and wait for its end; does nothing if it has ended."""
        if task := self._running.get(name):
            task.cancel()
            await asyncio.wait({task})

    async def news(self, seconds: float) -> dict[str, int]:
        """How many episodes of each unit have left their slots since the last call. Waits for the first one and ``seconds``
        more, but not longer than `ALIVE_SECONDS`, because the answer also shows that this process is alive."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_SECONDS):
                await self._has_news.wait()
                await asyncio.sleep(seconds)
        news, self._attempted = self._attempted, Counter()
        self._has_news.clear()
        return dict(news)

    async def _run(self, unit: Unit) -> UnitEnded:
        def attempted(plan: Plan) -> None:
            self._attempted[unit.name] += 1
            self._has_news.set()

        runner = self._runtime.runner(unit.policy, excused=lambda _: self._excused())
        rollout = replace(
            self._runtime.rollout(unit.policy),
            runner=_Limited(runner, self._slots),
            is_watched=True,
            attempted=attempted,
        )
        episodes = await rollout.run(unit.plans, lambda episode: None)
        members = tuple(Ended.of(episode) for episode in episodes)
        rows, why = await self._put_rows(unit, episodes)
        lines = await asyncio.to_thread(lambda: [JournalLine.of(e, unit.phase) for e in episodes])
        await self._hold(unit.name, lines)
        return UnitEnded(members, rows, why)

    async def _put_rows(self, unit: Unit, episodes: Sequence[Episode]) -> tuple[tuple[str, ...], str]:
        """Put a group's rows into the queue. Returns their keys, and why there are none."""
        if unit.group is None:
            return (), ""
        members = self._learnable(episodes, unit.group.position)
        temperature = self.job.config.rollout.sampling.temperature
        vision = self._runtime.chat.vision if self._runtime.chat else None
        rows = await asyncio.to_thread(group_rows, unit.name, members, temperature, vision)
        if not rows.keys:
            return (), why_nothing(episodes, {})
        await self._put(rows, unit.group.step)
        return tuple(rows.keys), ""

    def _learnable(self, episodes: Sequence[Episode], position: int) -> list[Learnable]:
        """What can be learned from a group. Timelines that are too long for verl's workers are dropped and
        counted, which `ajet_verl.lengths.check_rows` allows only with ``long_rows: drop``."""
        job, limit = self.job, self._row_limit
        select = Selection(job.filters, job.config.train.max_timelines, str(job.config.run.seed))
        members = []
        for episode in episodes:
            member = select.learnable(episode)
            if member is None:
                continue
            fitting = [line for line in member.lines if len(line.token_ids) <= limit]
            over = sum(int(line.mask.sum()) for line in member.lines if len(line.token_ids) > limit)
            dropped = {**member.dropped, "over_long_rows": over} if over else member.dropped
            members.append(replace(member, group=position, lines=fitting, dropped=dropped))
        return members
