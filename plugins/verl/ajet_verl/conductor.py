"""Has groups run, decides which of them a step trains on, and keeps their numbers until a step has learned from them.

Tokens never come here: runners judge groups and put their rows into verl's queue (`ajet_verl.runner`).
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import transfer_queue as tq

from ajet import AjetError, ContractBroken, Job, Task
from ajet.capture.sampling import SamplingPolicy
from ajet.interfaces.backbone import Metrics
from ajet.learning.rollouts import plan_group, rounded_up
from ajet.learning.task_selector import further_tasks
from ajet.rollout.episode import Plan
from ajet.rollout.journal import JournalLine
from ajet.rollout.summary import Ended, rewards_differ, totals
from ajet.runs.runtime import training_policy
from ajet.runs.train import validation
from ajet_verl.dataset import STEPS, PlannedGroup
from ajet_verl.failures import cause_of, why
from ajet_verl.pool import MAX_LOST, Pool, Tally
from ajet_verl.recorder import read_spec, recorder_of
from ajet_verl.rows import Status, add_group, remove_groups, remove_rows, set_status
from ajet_verl.runner import RemoteProgress, Unit, UnitEnded, died

log = logging.getLogger("ajet")
GROUPS = "ajet_groups.pkl"
"""The file of verl's checkpoint with what the queue does not contain."""
ROWLESS_LIMIT = 16
"""A run fails after more than this many groups without rows in turn, or more than two batches if those are larger."""


@dataclass(slots=True)
class StepGroups:
    """The groups of one step, by their keys in verl's queue. Keep the record, and start what `missing` says.

    verl asks for so many groups of a step and waits for as many. With oversampling, more are started, and those that are complete
    first are taken. With dynamic sampling, a group whose rewards are all equal is replaced by a further one, up to a limit. As on
    the local backbone, but a further group starts as soon as one is needed, not in rounds.
    """

    oversample: float
    most: float
    """Maximum number of started groups for each group that verl has asked for."""
    asked: list[str] = field(default_factory=list)
    """The groups that verl has asked for."""
    running: set[str] = field(default_factory=set)
    taken: list[str] = field(default_factory=list)
    """The groups to train on."""
    skipped: list[str] = field(default_factory=list)
    """Groups that have ended with equal rewards."""
    started: int = 0

    def ask(self, uid: str) -> None:
        """verl asks for a group, which is started."""
        self.asked.append(uid)
        self.start(uid)

    def start(self, uid: str) -> None:
        """A group is started."""
        self.running.add(uid)
        self.started += 1

    def end(self, uid: str, *, useful: bool) -> list[str]:
        """A group has ended; it is useful if its rewards differ, or if that does not matter. Returns it if it is taken."""
        self.running.remove(uid)
        (self.taken if useful else self.skipped).append(uid)
        return [uid] if useful else []

    @property
    def missing(self) -> int:
        """How many further groups to start now."""
        needed = len(self.asked) - len(self.taken)
        wanted = rounded_up(needed * self.oversample) - len(self.running)
        return max(0, min(wanted, rounded_up(len(self.asked) * self.most) - self.started))

    @property
    def is_over(self) -> bool:
        """Whether the step has its groups, or can get no others."""
        return len(self.taken) == len(self.asked) or not (self.running or self.missing)

    def fill(self) -> list[str]:
        """Take skipped groups in place of those that are missing; returns them."""
        count = len(self.asked) - len(self.taken)
        spare, self.skipped = self.skipped[:count], self.skipped[count:]
        self.taken += spare
        return spare


@dataclass(frozen=True, slots=True)
class EndedGroup:
    """A group that has ended, from which no step has learned yet."""

    planned: PlannedGroup
    members: Sequence[Ended]
    has_rows: bool
    """Whether the queue has rows of it."""
    began: float
    """Start of the group, by `time.monotonic`."""
    is_skipped: bool = False
    """Whether its rewards are all equal and others were trained instead."""


class Conductor:
    """A Ray actor, created by `ajet_verl.manager`. Call `open` first."""

    def __init__(self, config: Any, client: Any) -> None:
        self._config, self._client = config, client
        self._recorder = recorder_of(config)
        self._progress = RemoteProgress(self._recorder)
        self._tally = Tally("train", self._progress.episodes)
        self._exits = AsyncExitStack()
        self._running: dict[str, asyncio.Task[None]] = {}
        """Groups that have not ended, by their keys in the queue."""
        self._ended: dict[str, EndedGroup] = {}
        """Those that have."""
        self._steps: dict[int, StepGroups] = {}
        """The groups of each step that does not have all of its groups yet."""
        self._further: dict[int, Iterator[tuple[int, Task]]] = {}
        """The indices and tasks of each step's further groups, from the next one on."""
        self._counts: Counter[str] = Counter()
        """Of further groups, since the last step has learned."""
        self._failed = ""
        """Why the last group without rows has none."""
        self._broken: ContractBroken | None = None
        """What ends the run."""
        self._rowless_in_turn = 0
        """How many groups in turn had no rows."""
        self._step_is_known = config.trainer.v1.trainer_mode == "sync"
        """Whether a group's own step learns from it; else the lines of its episodes wait for that step."""
        self._job: Job
        self._pool: Pool

    async def open(self) -> None:
        """Prepare the job again and start the runners. Raises the error if one of these fails."""
        job = await asyncio.to_thread(lambda: read_spec(self._config).open())
        self._tasks, validation_tasks = await self._recorder.tasks.remote()
        self._job = replace(job, progress=self._progress, validation=validation_tasks)
        await asyncio.to_thread(tq.init)
        resumed = self._config.trainer.resume_from_path
        if resumed and (Path(resumed) / GROUPS).exists():
            await self._restore(Path(resumed))
        settings = job.config.rollout
        self._pool = Pool(
            self._config,
            self._client,
            concurrency=settings.concurrency,
            blocked=settings.loop_timeout,
            each=self._config.ajet.get("runners", 1),
            say=self._progress.say,
        )
        self._exits.push_async_callback(self._pool.close)
        await self._pool.open()

    async def take(self, groups: Sequence[tuple[str, PlannedGroup]]) -> None:
        """Start these groups, each given with its key in the queue; returns at once. Raises AjetError if too many groups in
        turn had no rows, and ContractBroken if a group has raised it."""
        if self._broken:
            raise self._broken
        if self._rowless_in_turn > max(ROWLESS_LIMIT, 2 * self._job.config.train.batch_size):
            raise AjetError(
                f"nothing to train on: {self._rowless_in_turn} groups in turn had no rows. The last one: {self._failed}"
            )
        train, rollout = self._job.config.train, self._job.config.rollout
        for uid, planned in groups:
            if planned.step not in self._steps:
                most = train.dynamic_sampling * rollout.oversample
                self._steps[planned.step] = StepGroups(rollout.oversample, most)
            self._steps[planned.step].ask(uid)
            self._start(uid, planned)
        for step in {planned.step for _, planned in groups}:
            self._start_further(step)

    def _start(self, uid: str, planned: PlannedGroup) -> None:
        self._tally.start(uid, self._job.config.rollout.group_size)
        task = self._running[uid] = asyncio.create_task(self._group(uid, planned))
        task.add_done_callback(lambda _: self._running.pop(uid, None))

    def _start_further(self, step: int) -> None:
        """Start the groups that are missing in a step. Their tasks are those that the local backbone would take."""
        groups, config = self._steps[step], self._job.config
        size, seed = config.train.batch_size, config.run.seed
        for _ in range(groups.missing):
            if step not in self._further:
                tasks = further_tasks(self._tasks, step, batch_size=size, seed=seed)
                self._further[step] = enumerate(tasks, start=size)
            index, task = next(self._further[step])
            position = STEPS * (size + step) + index  # not that of a planned group
            uid = uuid4().hex
            groups.start(uid)
            self._start(uid, PlannedGroup(step, index, position, task))

    async def cancel(self, uids: Sequence[str]) -> None:
        """Cancel those of these groups that run, and forget all of them. The queue then has neither rows nor a status of them;
        lines that are in the journal stay there."""
        tasks = [self._running[uid] for uid in uids if uid in self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._forget(uids)
        self._recorder.drop.remote(list(uids))
        await remove_groups(uids)

    async def ended(self) -> dict[str, EndedGroup]:
        """The groups that have ended and from which no step has learned, by their keys."""
        return dict(self._ended)

    async def _group(self, uid: str, planned: PlannedGroup) -> None:
        """Run a group to its end, and decide what its step does with it. A cancelled group sets no status in the queue, because
        the queue may have ended and would never answer."""
        has_rows, useful = False, self._job.config.train.dynamic_sampling == 1
        groups = self._steps[planned.step]
        try:
            if uid in groups.asked:
                await set_status(uid, "running")
            group = await self._run_group(uid, planned)
            has_rows = group.has_rows
            useful = useful or rewards_differ(group.members, self._job.config.train.call_discount)
        except Exception as error:
            log.exception("group %s", uid)
            self._failed, self._broken = why(error), self._broken or cause_of(error, ContractBroken)
            self._tally.drop([uid])
            self._progress.say(f"group {planned.step}.{planned.index}: {self._failed}")
        self._rowless_in_turn = 0 if has_rows else self._rowless_in_turn + 1
        if uid not in groups.running:  # the step has got its groups meanwhile
            return
        taken = groups.end(uid, useful=useful)
        self._start_further(planned.step)
        if groups.is_over:
            del self._steps[planned.step]
            taken += groups.fill()
            await self._give_up(groups)
        for one in taken:
            await self._deliver(one, planned.step, is_new=one not in groups.asked)

    async def _deliver(self, uid: str, step: int, *, is_new: bool) -> None:
        """Give verl a group that has ended; ``is_new``: instead of one that it has asked for."""
        group = self._ended.get(uid)
        status: Status = "finished" if group and group.has_rows else "failure"
        if is_new:
            await add_group(uid, step, status)
        else:
            await set_status(uid, status)

    async def _give_up(self, groups: StepGroups) -> None:
        """Cancel and remove what the step does not train on, before verl gets its last group and may pause the servers."""
        unused, groups.running = sorted(groups.running), set()
        self._counts["episodes_cancelled"] += sum(map(self._tally.left, unused))
        await self.cancel(unused)
        skipped = [uid for uid in groups.skipped if uid in self._ended]
        for uid in skipped:
            self._ended[uid] = replace(self._ended[uid], has_rows=False, is_skipped=True)
        await remove_groups([*groups.skipped, *(uid for uid in groups.asked if uid not in groups.taken)])
        sampled = sum(member.to_train for uid in skipped for member in self._ended[uid].members)
        self._counts["groups_unused"] += len(unused)
        self._counts["groups_skipped"] += len(groups.skipped)
        self._counts["tokens_skipped"] += sampled
        if groups.started > len(groups.asked):
            self._counts["groups_started"] += groups.started

    async def _run_group(self, uid: str, planned: PlannedGroup) -> EndedGroup:
        """Run a group to its end. After that the queue has its rows, and no others of it."""
        config, began = self._job.config, time.monotonic()
        plans = plan_group(
            planned.task, planned.step, planned.index, config.rollout.group_size, config.run.seed
        )
        unit = Unit(uid, tuple(plans), training_policy(self._job), "train", planned)
        ended = await self._run(unit, self._tally, planned.step if self._step_is_known else None)
        if ended.lost:
            await remove_rows(uid, but=ended.rows)
        if not ended.rows:
            self._failed = ended.why
        group = self._ended[uid] = EndedGroup(planned, ended.members, bool(ended.rows), began)
        return group

    async def _run(self, unit: Unit, tally: Tally, step: int | None) -> UnitEnded:
        """Run a unit to its end, and write its lines into the journal if the step is given."""
        ended = await self._pool.run(unit, tally)
        if ended is None:
            episodes = died(unit, MAX_LOST)
            await self._recorder.hold.remote(unit.name, [JournalLine.of(e, unit.phase) for e in episodes])
            members = tuple(Ended.of(episode) for episode in episodes)
            ended = UnitEnded(members, why=f"all episodes failed: {members[0].error}", lost=MAX_LOST)
        if step is not None:
            self._recorder.write.remote([unit.name], step)
        tally.end(unit.name)
        return ended

    async def validate(self, step: int) -> Metrics:
        """Validate after a step; returns its metrics. Raises AjetError if all episodes failed."""

        async def run(policy: SamplingPolicy, phase: str, plans: Sequence[Plan]) -> list[Ended]:
            tally = Tally(phase, self._progress.episodes)
            for plan in plans:
                tally.start(plan.id, 1)
            units = [Unit(plan.id, (plan,), policy, phase) for plan in plans]
            ended = await asyncio.gather(*(self._run(unit, tally, step) for unit in units))
            return [member for unit in ended for member in unit.members]

        def record(phase: str, step: int, metrics: Metrics) -> None:
            self._recorder.metrics.remote(phase, step, metrics)

        return await validation(self._job, run, record, step)

    async def learned(self, uids: Sequence[str], step: int) -> Metrics:
        """Report that a step has learned from these groups: writes their lines to the journal, drops the groups, and returns
        the metrics of their episodes. Groups without rows that have ended since the last step count in this one."""
        rowless = [uid for uid, group in self._ended.items() if not group.has_rows]
        groups = self._forget([*uids, *rowless])
        bound = self._job.config.train.max_staleness
        stale = [
            u for u, group in self._ended.items() if bound is not None and group.planned.step < step - bound
        ]
        evicted = self._forget(stale)  # verl evicts their rows
        self._recorder.write.remote([*uids, *rowless, *stale], step)
        members = [member for group in groups for member in group.members]
        if (evicted and not self._step_is_known) or any(group.is_skipped for group in groups):
            used = [member.id for group in groups if not group.is_skipped for member in group.members]
            self._recorder.unused.remote(step, used)
        seconds = time.monotonic() - min((group.began for group in groups), default=time.monotonic())
        lost, self._pool.lost = self._pool.lost, 0
        further = {
            "episodes_stale": sum(len(group.members) for group in evicted),
            "runners_lost": lost,
            **self._counts,
        }
        self._counts = Counter()
        self._further = {number: left for number, left in self._further.items() if number > step}
        return {**totals(members, seconds), **{name: float(n) for name, n in further.items() if n}}

    def _forget(self, uids: Sequence[str]) -> list[EndedGroup]:
        """Drop ended groups; returns them."""
        self._tally.drop(uids)
        return [self._ended.pop(uid) for uid in uids if uid in self._ended]

    async def keep(self, folder: str) -> None:
        """Write what is known of the groups in the queue into verl's checkpoint ``folder``."""
        (Path(folder) / GROUPS).write_bytes(pickle.dumps(self._ended))
        await self._recorder.keep_lines.remote(folder, list(self._ended))

    async def _restore(self, folder: Path) -> None:
        self._ended = pickle.loads((folder / GROUPS).read_bytes())
        for uid, group in self._ended.items():
            self._tally.start(uid, len(group.members))
            self._tally.end(uid)
        await self._recorder.restore_lines.remote(str(folder))

    async def failure(self) -> str:
        """Why the last group without rows has none."""
        return self._failed

    async def pause(self, paused: bool) -> None:
        """Begin or end a pause of the servers; deadlines do not count it."""
        await self._pool.pause(paused)

    async def close(self) -> None:
        """Cancel running groups, and close the runners."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._exits.aclose()
