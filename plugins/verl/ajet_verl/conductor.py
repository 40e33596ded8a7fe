"""The place where groups meet: it has their episodes run and judged, and puts what can be learned into verl's queue."""

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
from ajet.job.prepare import Job
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
from ajet_verl.dataset import Place
from ajet_verl.pool import OfPool, Pool
from ajet_verl.rows import group_rows
from ajet_verl.runner import Told
from ajet_verl.spec import read_spec, recorder_of

log = logging.getLogger("ajet")
PARTITION = "train"
GROUPS = "ajet_groups.pkl"
"""The file in a checkpoint of verl's that holds what the queue does not."""
BARREN = 16
"""Fewest groups without a row, in turn, after which a run gives up."""


class Journal:
    """The run's recorder, as the core's code writes to it."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def episode(self, episode: Episode, *, phase: str, step: int) -> None:
        """See `ajet.rollout.recorder.Recorder`."""
        self._recorder.episode.remote(episode_to_json(episode, phase=phase, step=step))

    def metrics(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """See `ajet.rollout.recorder.Recorder`."""
        self._recorder.metrics.remote(phase, step, dict(metrics))


@dataclass(frozen=True, slots=True)
class _Done:
    """A group that has ended and waits to be learned from."""

    place: Place
    members: Sequence[Ended]
    began: float
    lines: Sequence[dict[str, Any]]
    """Of the journal, where it is not known yet which step will learn from them."""


class Conductor:
    """Made a Ray actor by `ajet_verl.manager`. `open` comes first."""

    def __init__(self, config: Any, client: Any) -> None:
        self._config, self._client = config, client
        self._recorder = recorder_of(config)
        self._told = Told(self._recorder)
        self._journal = Journal(self._recorder)
        self._board = Board()
        self._open = AsyncExitStack()
        self._groups: set[asyncio.Task[None]] = set()
        self._done: dict[str, _Done] = {}
        """With rows in the queue, by key."""
        self._fruitless: list[_Done] = []
        """Without, since a step has last learned."""
        self._begun = self._ended = 0
        """Episodes, of groups from which no step has learned."""
        self._failed = ""
        self._barren = 0
        """Groups one after the other of which nothing could be learned."""
        self._job: Job
        self._judge: Judge
        self._pool: Pool

    async def open(self) -> None:
        """Rebuild the job, start the runners, open the judge. Raises what keeps one from it."""
        import transfer_queue as tq

        job = await asyncio.to_thread(lambda: read_spec(self._config).open())
        _, validation_tasks = await self._recorder.tasks.remote()
        self._job = replace(job, progress=self._told, validation=validation_tasks)
        tq.init()
        resumed = self._config.trainer.resume_from_path
        if resumed and (Path(resumed) / GROUPS).exists():
            self._done, self._fruitless = pickle.loads((Path(resumed) / GROUPS).read_bytes())
            self._begun = self._ended = sum(len(g.members) for g in (*self._done.values(), *self._fruitless))
        settings = job.config.rollout
        self._pool = Pool(
            self._config,
            self._client,
            concurrency=settings.concurrency,
            timeout=settings.timeout,
            each=self._config.ajet.get("runners", 1),
            say=self._told.say,
        )
        self._open.push_async_callback(self._pool.close)
        self._judge = await self._open.enter_async_context(job.judge.open())
        await self._pool.open()

    def _rollout(self, policy: SamplingPolicy) -> Rollout:
        settings = self._job.config.rollout
        return Rollout(
            OfPool(self._pool, policy), self._judge, settings, None, None, self._told.say, self._board
        )

    async def take(self, groups: Sequence[tuple[str, Place]]) -> None:
        """Begin these groups, each with its key in the queue; returns at once. Raises AjetError when nothing could be
        learned for so long that beginning more would be in vain."""
        if self._barren > max(BARREN, 2 * self._job.config.train.batch_size):
            raise AjetError(
                f"nothing to train on: {self._barren} groups in turn had no row. The last: {self._failed}"
            )
        self._begun += len(groups) * self._job.config.rollout.group_size
        for uid, place in groups:
            task = asyncio.create_task(self._group(uid, place))
            self._groups.add(task)
            task.add_done_callback(self._groups.discard)

    async def _group(self, uid: str, place: Place) -> None:
        """A group from its plan to the queue, where verl waits for ``finished``, or ``failure``: nothing to learn from.
        A cancelled group tells the queue nothing: the queue may have ended before, and would never answer."""
        import transfer_queue as tq

        status = "failure"
        try:
            await tq.async_kv_put(key=uid, partition_id=PARTITION, tag={"status": "running"})
            if await self._learned(uid, place):
                status = "finished"
        except Exception as error:
            log.exception("group %s", uid)
            self._failed = f"{type(error).__name__}: {error}"
            self._told.say(f"group {place.step}.{place.place}: {self._failed}")
        self._barren = 0 if status == "finished" else self._barren + 1
        await tq.async_kv_put(key=uid, partition_id=PARTITION, tag={"status": status})

    async def _learned(self, uid: str, place: Place) -> bool:
        """Run and judge a group and put its rows into the queue; whether there are any."""
        import transfer_queue as tq
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        config, began = self._job.config, time.monotonic()
        size = config.rollout.group_size
        plans = plan_group(place.task, place.step, place.place, size, config.run.seed)
        rollout = self._rollout(training_policy(self._job))
        at_once = self._config.trainer.v1.trainer_mode == "sync"

        def ended(episode: Episode) -> None:
            self._ended += 1
            if at_once:
                self._journal.episode(episode, phase="train", step=place.step)
            self._told.episodes("train", self._ended, self._begun)

        episodes = await rollout.run(plans, ended)
        members = self._members(episodes, place)
        keys, fields, tags = await asyncio.to_thread(
            group_rows, uid, members, config.rollout.sampling.temperature
        )
        lines = [] if at_once else [episode_to_json(e, phase="train", step=place.step) for e in episodes]
        done = _Done(place, [Ended.of(e) for e in episodes], began, lines)
        if not keys:
            self._fruitless.append(done)
            self._failed = why_nothing(episodes, {})
            return False
        self._done[uid] = done
        for tag in tags:
            tag["global_steps"] = place.step
        await tq.async_kv_batch_put(
            keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id=PARTITION
        )
        return True

    def _members(self, episodes: Sequence[Episode], place: Place) -> list[Learnable]:
        """What is learned from a group: timelines longer than verl's workers take are left out and counted."""
        train, limit = self._job.config.train, self._longest()
        select = Selection(self._job.filters, train.max_timelines, str(self._job.config.run.seed))
        members = []
        for episode in episodes:
            member = select.learnable(episode)
            if member is None:
                continue
            fitting = [line for line in member.lines if len(line.token_ids) <= limit]
            over = sum(int(line.mask.sum()) for line in member.lines if len(line.token_ids) > limit)
            dropped = {**member.dropped, "over_long_rows": over} if over else member.dropped
            members.append(replace(member, group=place.position, lines=fitting, dropped=dropped))
        return members

    def _longest(self) -> float:
        """Most tokens of a row that verl's workers can compute."""
        actor, rollout = self._config.actor_rollout_ref.actor, self._config.actor_rollout_ref.rollout
        if not actor.use_dynamic_bsz:
            return float("inf")
        return min(actor.ppo_max_token_len_per_gpu, rollout.log_prob_max_token_len_per_gpu)

    async def validate(self, step: int) -> Metrics:
        """Validation after a step. Raises AjetError if all of its episodes failed."""
        return await validation(self._job, self._rollout, self._journal, step)

    async def learned(self, uids: Sequence[str], step: int) -> Metrics:
        """A step has learned from these groups: metrics of their episodes, which are then forgotten, and their lines in
        the journal."""
        fruitless, self._fruitless = self._fruitless, []
        found = [self._done.pop(uid) for uid in uids if uid in self._done] + fruitless
        bound = self._job.config.train.max_staleness
        stale = [
            u for u, group in self._done.items() if bound is not None and group.place.step < step - bound
        ]
        evicted = [self._done.pop(uid) for uid in stale]  # by verl
        for line in [line for group in (*found, *evicted) for line in group.lines]:
            self._recorder.episode.remote({**line, "step": step})
        if any(group.lines for group in evicted):
            used = [line["id"] for group in found for line in group.lines]
            self._recorder.unused.remote(step, used)
        members = [member for group in found for member in group.members]
        gone = sum(len(group.members) for group in evicted)
        self._begun -= len(members) + gone
        self._ended -= len(members) + gone
        seconds = time.monotonic() - min((group.began for group in found), default=time.monotonic())
        lost, self._pool.lost = self._pool.lost, 0
        further = {"episodes_stale": gone, "runners_lost": lost}
        return {**totals(members, seconds), **{name: float(n) for name, n in further.items() if n}}

    async def keep(self, folder: str) -> None:
        """Write what is known of the groups that wait in the queue into a checkpoint of verl's."""
        (Path(folder) / GROUPS).write_bytes(pickle.dumps((self._done, self._fruitless)))

    async def failure(self) -> str:
        """Why the last group without rows has none."""
        return self._failed

    async def pause(self, paused: bool) -> None:
        """While the servers are paused, no deadline runs."""
        await self._pool.pause(paused)

    async def close(self) -> None:
        """Cancel what runs, end the judge and the runners."""
        for task in list(self._groups):
            task.cancel()
        await asyncio.gather(*self._groups, return_exceptions=True)
        await self._open.aclose()
