"""Batches and validation figures from rollouts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ajet.algorithm import Algorithm
from ajet.filter import Filter
from ajet.learning.batch import RolloutBatch, Selection, build_batch
from ajet.learning.settings import TrainSettings
from ajet.reader import tasks_of_step
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.recorder import RunRecorder
from ajet.rollout.scheduler import Rollout
from ajet.rollout.summary import describe_failures, summarize
from ajet.types import AjetError, Metrics, Task

OnEpisode = Callable[[str, int, int], None]
"""(phase, done, total)"""


def plan_step(tasks: Sequence[Task], step: int, *, batch_size: int, group_size: int, seed: int) -> list[Plan]:
    """The episodes of a training step, counted from 1; ids say step, place in the batch, task and member."""
    chosen = tasks_of_step(tasks, step - 1, batch_size, seed)
    return [
        Plan(
            f"{step}.{group}/{task.id}/{member}",
            f"{seed}/{step}.{group}/{task.id}/{member}",
            task,
            member,
            group,
        )
        for group, task in enumerate(chosen)
        for member in range(group_size)
    ]


def plan_validation(tasks: Sequence[Task], step: int, kind: str, *, limit: int, seed: int) -> list[Plan]:
    """One episode for each of the first ``limit`` tasks. The seeds do not depend on the step, so that a
    checkpoint's figure can be reproduced by itself."""
    return [
        Plan(f"{kind}@{step}/{t.id}", f"{seed}/{kind}/{t.id}", t, 0, i) for i, t in enumerate(tasks[:limit])
    ]


@dataclass(frozen=True, slots=True)
class RolloutSource:
    """A `BatchSource` that runs groups of episodes. ``reusable`` are finished ones of an interrupted
    step, by id; they are taken instead of being run again if the serving weights sampled them."""

    rollout: Rollout
    tasks: Sequence[Task]
    algorithm: Algorithm
    settings: TrainSettings
    group_size: int
    seed: int
    recorder: RunRecorder
    on_episode: OnEpisode
    filters: Sequence[Filter] = ()
    reusable: Mapping[str, Episode] = field(default_factory=dict)

    async def batch(self, step: int, version: int) -> RolloutBatch:
        """See `BatchSource.batch`. Raises AjetError if nothing of the step can be trained."""
        started = time.monotonic()
        plans = plan_step(
            self.tasks, step, batch_size=self.settings.batch_size, group_size=self.group_size, seed=self.seed
        )
        kept = [e for p in plans if (e := self.reusable.get(p.id)) and sampled_under(e, version)]
        held = {e.plan.id for e in kept}
        todo = [p for p in plans if p.id not in held]
        finished = len(kept)

        def done(episode: Episode) -> None:
            nonlocal finished
            finished += 1
            self.recorder.episode(episode, phase="train", step=step)
            self.on_episode("train", finished, len(plans))

        episodes = sorted(
            [*kept, *await self.rollout.run(todo, done)], key=lambda e: (e.plan.group, e.plan.member)
        )
        batch = build_batch(
            episodes,
            self.algorithm,
            mini_batches=self.settings.mini_batches,
            learning_rate=self.settings.rate_at(step),
            seed=f"{self.seed}:{step}",
            selection=Selection(self.filters, self.settings.max_timelines, str(self.seed)),
        )
        if batch is None:
            reason = (
                f"all {len(episodes)} episodes failed: {describe_failures(episodes)}"
                if all(e.failure for e in episodes)
                else "no call of any episode was answered by a trained target, or filters dropped all of them; check "
                "`targets`, `train.targets` and `train.filters`"
            )
            raise AjetError(f"step {step}: nothing to train on: {reason}")
        batch.metrics.update(summarize(episodes, time.monotonic() - started))
        if kept:
            batch.metrics["episodes_reused"] = len(kept)
        return batch


def sampled_under(episode: Episode, version: int) -> bool:
    """Whether every token of an episode comes from these weights."""
    return all((call.generation.weight_versions == version).all() for call in episode.record.calls)


async def validate(
    rollout: Rollout,
    tasks: Sequence[Task],
    step: int,
    *,
    kind: str,
    limit: int,
    seed: int,
    recorder: RunRecorder,
    on_episode: OnEpisode,
) -> Metrics:
    """Metrics of one validation; every episode is journaled. Raises AjetError if all of them failed."""
    started = time.monotonic()
    plans = plan_validation(tasks, step, kind, limit=limit, seed=seed)
    finished = 0

    def done(episode: Episode) -> None:
        nonlocal finished
        finished += 1
        recorder.episode(episode, phase=kind, step=step)
        on_episode(kind, finished, len(plans))

    episodes = await rollout.run(plans, done)
    if all(e.failure for e in episodes):
        raise AjetError(
            f"{kind} at step {step}: all {len(episodes)} episodes failed: {describe_failures(episodes)}"
        )
    metrics = summarize(episodes, time.monotonic() - started)
    recorder.metrics(kind, step, metrics)
    return metrics
