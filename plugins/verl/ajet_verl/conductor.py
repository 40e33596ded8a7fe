"""Runs groups: has their episodes run and judged, and puts their rows into verl's queue."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ajet.capture.sampling import SamplingPolicy
from ajet.interfaces.judge import Judge
from ajet.job.job import Job
from ajet.learning.batch import Learnable, Selection
from ajet.learning.rollouts import plan_group, why_nothing
from ajet.rollout.episode import Episode
from ajet.rollout.journal import episode_to_json
from ajet.rollout.scheduler import Rollout
from ajet.rollout.summary import Ended, totals
from ajet.rollout.watchdog import Board
from ajet.runs.runtime import training_policy
from ajet.runs.train import validation
from ajet.types import AjetError, Metrics
from ajet_verl.dataset import PlannedGroup
from ajet_verl.lengths import row_limit
from ajet_verl.pool import Pool, PoolRunner
from ajet_verl.rows import group_rows
from ajet_verl.runner import RemoteProgress
from ajet_verl.spec import read_spec, recorder_of

log = logging.getLogger("ajet")
PARTITION = "train"
"""The partition of verl's queue with the training data."""
GROUPS = "ajet_groups.pkl"
"""The file of verl's checkpoint with what the queue does not contain."""
ROWLESS_LIMIT = 16
"""A run fails after more than this many groups without rows in turn, or more than two batches if those are larger."""


class Journal:
    """The run's recorder, with the methods that the core's code calls."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def episode(self, episode: Episode, *, phase: str, step: int) -> None:
        """See `ajet.rollout.recorder.Recorder`."""
        self._recorder.episode.remote(episode_to_json(episode, phase=phase, step=step))

    def metrics(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """See `ajet.rollout.recorder.Recorder`."""
        self._recorder.metrics.remote(phase, step, dict(metrics))


@dataclass(frozen=True, slots=True)
class _EndedGroup:
    """A group that has ended, from which no step has learned yet."""

    planned: PlannedGroup
    members: Sequence[Ended]
    began: float
    """Start of the group, by `time.monotonic`."""
    lines: Sequence[dict[str, Any]]
    """Its lines of the journal, if the step that will learn from them is not known yet."""


class Conductor:
    """A Ray actor, created by `ajet_verl.manager`. Call `open` first."""

    def __init__(self, config: Any, client: Any) -> None:
        self._config, self._client = config, client
        self._recorder = recorder_of(config)
        self._progress = RemoteProgress(self._recorder)
        self._journal = Journal(self._recorder)
        self._board = Board()
        self._exits = AsyncExitStack()
        self._groups: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, _EndedGroup] = {}
        """Ended groups with rows in the queue, by the group's key there."""
        self._rowless: list[_EndedGroup] = []
        """Ended groups without rows, since the last step."""
        self._started = self._ended = 0
        """Numbers of started and ended episodes, of groups from which no step has learned yet."""
        self._failed = ""
        """Why the last group without rows has none."""
        self._rowless_in_turn = 0
        """How many groups in turn had no rows."""
        self._job: Job
        self._judge: Judge
        self._pool: Pool

    async def open(self) -> None:
        """Prepare the job again, start the runners and open the judge. Raises the error if one of these fails."""
        import transfer_queue as tq

        job = await asyncio.to_thread(lambda: read_spec(self._config).open())
        _, validation_tasks = await self._recorder.tasks.remote()
        self._job = replace(job, progress=self._progress, validation=validation_tasks)
        tq.init()
        resumed = self._config.trainer.resume_from_path
        if resumed and (Path(resumed) / GROUPS).exists():
            self._waiting, self._rowless = pickle.loads((Path(resumed) / GROUPS).read_bytes())
            self._started = self._ended = sum(
                len(g.members) for g in (*self._waiting.values(), *self._rowless)
            )
        settings = job.config.rollout
        self._pool = Pool(
            self._config,
            self._client,
            concurrency=settings.concurrency,
            timeout=settings.timeout,
            each=self._config.ajet.get("runners", 1),
            say=self._progress.say,
        )
        self._exits.push_async_callback(self._pool.close)
        self._judge = await self._exits.enter_async_context(job.judge.open())
        await self._pool.open()

    def _rollout(self, policy: SamplingPolicy) -> Rollout:
        settings = self._job.config.rollout
        return Rollout(
            runner=PoolRunner(self._pool, policy),
            judge=self._judge,
            settings=settings,
            portal=None,
            batching=None,
            say=self._progress.say,
            board=self._board,
        )

    async def take(self, groups: Sequence[tuple[str, PlannedGroup]]) -> None:
        """Start these groups, each given with its key in the queue; returns at once. Raises AjetError if too many groups in
        turn had no rows."""
        if self._rowless_in_turn > max(ROWLESS_LIMIT, 2 * self._job.config.train.batch_size):
            raise AjetError(
                f"nothing to train on: {self._rowless_in_turn} groups in turn had no rows. The last one: {self._failed}"
            )
        self._started += len(groups) * self._job.config.rollout.group_size
        for uid, planned in groups:
            task = asyncio.create_task(self._group(uid, planned))
            self._groups.add(task)
            task.add_done_callback(self._groups.discard)

    async def _group(self, uid: str, planned: PlannedGroup) -> None:
        """Run a group and set its status in the queue, for which verl waits: ``finished``, or ``failure`` if it has no rows.
        A cancelled group sets none, because the queue may have ended and would never answer."""
        import transfer_queue as tq

        status = "failure"
        try:
            await tq.async_kv_put(key=uid, partition_id=PARTITION, tag={"status": "running"})
            if await self._put_rows(uid, planned):
                status = "finished"
        except Exception as error:
            log.exception("group %s", uid)
            self._failed = f"{type(error).__name__}: {error}"
            self._progress.say(f"group {planned.step}.{planned.index}: {self._failed}")
        self._rowless_in_turn = 0 if status == "finished" else self._rowless_in_turn + 1
        await tq.async_kv_put(key=uid, partition_id=PARTITION, tag={"status": status})

    async def _put_rows(self, uid: str, planned: PlannedGroup) -> bool:
        """Run and judge a group, and put its rows into the queue. Returns whether it has rows."""
        import transfer_queue as tq
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        config, began = self._job.config, time.monotonic()
        size = config.rollout.group_size
        plans = plan_group(planned.task, planned.step, planned.index, size, config.run.seed)
        rollout = self._rollout(training_policy(self._job))
        step_is_known = self._config.trainer.v1.trainer_mode == "sync"

        def ended(episode: Episode) -> None:
            self._ended += 1
            if step_is_known:
                self._journal.episode(episode, phase="train", step=planned.step)
            self._progress.episodes("train", self._ended, self._started)

        episodes = await rollout.run(plans, ended)
        members = self._members(episodes, planned)
        keys, fields, tags = await asyncio.to_thread(
            group_rows, uid, members, config.rollout.sampling.temperature
        )
        lines = (
            [] if step_is_known else [episode_to_json(e, phase="train", step=planned.step) for e in episodes]
        )
        ended_group = _EndedGroup(planned, [Ended.of(e) for e in episodes], began, lines)
        if not keys:
            self._rowless.append(ended_group)
            self._failed = why_nothing(episodes, {})
            return False
        self._waiting[uid] = ended_group
        for tag in tags:
            tag["global_steps"] = planned.step
        await tq.async_kv_batch_put(
            keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id=PARTITION
        )
        return True

    def _members(self, episodes: Sequence[Episode], planned: PlannedGroup) -> list[Learnable]:
        """What can be learned from a group. Timelines that are too long for verl's workers are dropped and
        counted, which `ajet_verl.lengths.check_rows` allows only with ``long_rows: drop``."""
        train, limit = self._job.config.train, row_limit(self._config)
        select = Selection(self._job.filters, train.max_timelines, str(self._job.config.run.seed))
        members = []
        for episode in episodes:
            member = select.learnable(episode)
            if member is None:
                continue
            fitting = [line for line in member.lines if len(line.token_ids) <= limit]
            over = sum(int(line.mask.sum()) for line in member.lines if len(line.token_ids) > limit)
            dropped = {**member.dropped, "over_long_rows": over} if over else member.dropped
            members.append(replace(member, group=planned.position, lines=fitting, dropped=dropped))
        return members

    async def validate(self, step: int) -> Metrics:
        """Validate after a step; returns its metrics. Raises AjetError if all episodes failed."""
        return await validation(self._job, self._rollout, self._journal, step)

    async def learned(self, uids: Sequence[str], step: int) -> Metrics:
        """Report that a step has learned from these groups: writes their lines to the journal, drops the groups, and returns
        the metrics of their episodes."""
        rowless, self._rowless = self._rowless, []
        found = [self._waiting.pop(uid) for uid in uids if uid in self._waiting] + rowless
        bound = self._job.config.train.max_staleness
        stale = [
            u for u, group in self._waiting.items() if bound is not None and group.planned.step < step - bound
        ]
        evicted = [self._waiting.pop(uid) for uid in stale]  # verl evicts their rows
        for line in [line for group in (*found, *evicted) for line in group.lines]:
            self._recorder.episode.remote({**line, "step": step})
        if any(group.lines for group in evicted):
            used = [line["id"] for group in found for line in group.lines]
            self._recorder.unused.remote(step, used)
        members = [member for group in found for member in group.members]
        gone = sum(len(group.members) for group in evicted)
        self._started -= len(members) + gone
        self._ended -= len(members) + gone
        seconds = time.monotonic() - min((group.began for group in found), default=time.monotonic())
        lost, self._pool.lost = self._pool.lost, 0
        further = {"episodes_stale": gone, "runners_lost": lost}
        return {**totals(members, seconds), **{name: float(n) for name, n in further.items() if n}}

    async def keep(self, folder: str) -> None:
        """Write what the conductor knows of the groups in the queue into verl's checkpoint ``folder``."""
        (Path(folder) / GROUPS).write_bytes(pickle.dumps((self._waiting, self._rowless)))

    async def failure(self) -> str:
        """Why the last group without rows has none."""
        return self._failed

    async def pause(self, paused: bool) -> None:
        """Begin or end a pause of the servers; deadlines do not count it."""
        await self._pool.pause(paused)

    async def close(self) -> None:
        """Cancel running groups, and close the judge and the runners."""
        for task in list(self._groups):
            task.cancel()
        await asyncio.gather(*self._groups, return_exceptions=True)
        await self._exits.aclose()
