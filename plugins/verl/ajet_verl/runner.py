"""A process on one node that runs and judges units of work with the core's runtime and verl's servers: groups to train on, and episodes
of a validation. It builds and puts the rows.

Tokens stay in the runner's process and in verl's queue: the conductor gets numbers, and the recorder gets the episodes' lines
of the journal, which it keeps until the conductor reports that the unit has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import ray
import transfer_queue as tq

from ajet import AjetError, Job, WorkflowOutput
from ajet.capture.sampling import SamplingPolicy
from ajet.interfaces.progress import Silent
from ajet.learning.batch import Learnable, TokenSelection
from ajet.learning.rollouts import why_nothing
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.failures import Failure, FailureKind
from ajet.rollout.journal import JournalLine
from ajet.rollout.scheduler import AttemptRunner as AttemptRunner
from ajet.rollout.summary import Ended
from ajet.rollout.watchdog import Board, watching
from ajet.runs.runtime import Runtime, open_runtime
from ajet.tracker.record import EpisodeRecord
from ajet_verl.dataset import PlannedGroup
from ajet_verl.engine import Servers, VerlEngine
from ajet_verl.lengths import row_limit
from ajet_verl.recorder import PULSE_SECONDS, Pulse, read_spec, recorder_of
from ajet_verl.rows import group_rows, put_rows

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
    """A runner of attempts, of which only so many run at once. Each lets go of its server when it ends."""

    runner: AttemptRunner
    slots: asyncio.Semaphore
    let_go: Callable[[str], None]

    async def run(self, plan: Plan, attempt: int) -> Episode:
        async with self.slots:
            try:
                return await self.runner.run(plan, attempt)
            finally:
                self.let_go(plan.id)


class Units:
    """The units of a runner's process. ``excused`` returns seconds that deadlines of episodes do not count. ``let_go`` is
    `VerlEngine.let_go`, ``hold`` and ``put`` are `ajet_verl.recorder.Recorder.hold` and `ajet_verl.rows.put_rows`."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        row_limit: float,
        excused: Callable[[], float],
        let_go: Callable[[str], None],
        hold: Callable[[str, Sequence[JournalLine]], Any],
        put: Callable[..., Any],
    ) -> None:
        self._runtime = runtime
        self._row_limit, self._excused = row_limit, excused
        self._let_go, self._hold, self._put = let_go, hold, put
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
        with contextlib.suppress(TimeoutError):
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
            runner=_Limited(runner, self._slots, self._let_go),
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
        select = TokenSelection(job.filters, job.config.train.max_timelines, str(job.config.run.seed))
        members = []
        for episode in episodes:
            member = select.learnable(episode)
            if member is None:
                continue
            fitting = [line for line in member.lines if len(line.token_ids) <= limit]
            over = [line for line in member.lines if len(line.token_ids) > limit]
            if over:
                tokens = sum(int(line.mask.sum()) for line in over)
                calls = [span.call for line in over for span in line.spans]
                member = replace(
                    member,
                    dropped={**member.dropped, "over_long_rows": tokens},
                    left_out={**member.left_out, "over_long_rows": calls},
                )
            members.append(replace(member, group=position, lines=fitting))
        return members


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


class RemoteProgress(Silent):
    """Progress that the recorder forwards to the user."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def say(self, text: str) -> None:
        """See `ajet.interfaces.progress.Progress.say`."""
        self._recorder.say.remote(text)

    def episodes(self, phase: str, done: int, total: int) -> None:
        """See `ajet.interfaces.progress.Progress.episodes`."""
        self._recorder.progress.remote(phase, done, total)


def _end_process(recorder: Any, error: AjetError) -> NoReturn:
    """Report the error and end this process: there is no other way to free its blocked event loop, which runs in a thread
    of Ray. The pool starts another runner."""
    with contextlib.suppress(Exception):
        ray.get(recorder.say.remote(f"an episode runner: {error}"), timeout=10.0)
    os._exit(1)


async def _report(board: Board, pulse: Pulse) -> None:
    """Until cancelled, report progress while episodes go from one state to the next."""
    while True:
        seen = board.last_change
        await asyncio.sleep(PULSE_SECONDS)
        if board.last_change != seen:
            pulse.beat()


class UnitRunner:
    """A Ray actor, created by `ajet_verl.pool`. Runs many units at once. Call `open` first."""

    def __init__(self, config: Any, client: Any) -> None:
        self._config = config
        self._client = client
        self._clock = Clock()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._units: asyncio.Future[Units] | None = None

    async def open(self) -> None:
        """Prepare the job again, open its judge and start capture. Raises AjetError if that fails."""
        self._units = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())
        either: list[asyncio.Future[Any]] = [self._task, self._units]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()

    async def _run(self) -> None:
        """Open the runtime, wait until `close` is called, and close it, all in one task."""
        assert self._units
        job: Job = await asyncio.to_thread(lambda: read_spec(self._config).open())
        await asyncio.to_thread(tq.init)
        recorder = recorder_of(self._config)
        job = replace(job, progress=RemoteProgress(recorder))
        servers = Servers(self._client, job.progress.say, recorder.fail.remote)
        engine = await asyncio.to_thread(VerlEngine.of, self._config, servers)
        async with open_runtime(job, engine=engine) as runtime:
            reporter = asyncio.create_task(_report(runtime.board, Pulse(self._config.ajet.recorder)))
            units = Units(
                runtime,
                row_limit=row_limit(self._config),
                excused=self._clock.stopped,
                let_go=engine.let_go,
                hold=recorder.hold.remote,
                put=put_rows,
            )
            self._units.set_result(units)
            rollout = job.config.rollout
            end_process = partial(_end_process, recorder)
            async with watching(
                runtime.board, rollout.stall_warning, rollout.loop_timeout, job.progress.say, end_process
            ):
                await self._closing.wait()
            reporter.cancel()

    async def run(self, unit: Unit, slots: int) -> UnitEnded | None:
        """See `Units.run`."""
        return await (await self._opened()).run(unit, slots)

    async def cancel(self, name: str) -> None:
        """See `Units.cancel`."""
        await (await self._opened()).cancel(name)

    async def news(self, seconds: float) -> dict[str, int]:
        """See `Units.news`."""
        return await (await self._opened()).news(seconds)

    async def pause(self, paused: bool) -> None:
        """Begin or end a pause of the servers; deadlines do not count it."""
        self._clock.pause(paused)

    async def _opened(self) -> Units:
        assert self._units
        return await self._units

    async def close(self) -> None:
        """Stop capture and close the runtime and the judge."""
        self._closing.set()
        if self._task:
            await asyncio.gather(self._task, return_exceptions=True)
