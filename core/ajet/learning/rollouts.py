"""Batches and validation figures from rollouts."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ajet.interfaces.algorithm import Algorithm
from ajet.interfaces.filter import Filter
from ajet.interfaces.judge import GroupJudge
from ajet.interfaces.reader import tasks_of_step
from ajet.learning.batch import Learning, RolloutBatch, TokenSelection, build_batch
from ajet.learning.credit import unmatched_names
from ajet.learning.fork_plans import check_judge, plan_forks
from ajet.learning.self_teacher import SelfTeacher
from ajet.learning.settings import TrainSettings
from ajet.learning.steering import PastEpisode, Steering, check_steering
from ajet.learning.task_selector import TaskSelector, pass_rates
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.recorder import RunRecorder
from ajet.rollout.scheduler import Rollout
from ajet.rollout.settings import RolloutSettings
from ajet.rollout.summary import Ended, describe_failures, rewards_differ, summarize, totals
from ajet.types import AjetError, Metrics, Task

log = logging.getLogger("ajet")

OnEpisode = Callable[[str, int, int], None]
"""(phase, done, total)"""


class ValidationFailed(AjetError):
    """All episodes of a validation failed."""


def plan_step(tasks: Sequence[Task], step: int, *, batch_size: int, group_size: int, seed: int) -> list[Plan]:
    """The episodes of a training step, counted from 1, whose tasks are those of `Shuffled`; ids contain step, position in the
    batch, task and member."""
    return plan_groups(tasks_of_step(tasks, step - 1, batch_size, seed), step, group_size, seed)


def plan_groups(tasks: Iterable[Task], step: int, group_size: int, seed: int) -> list[Plan]:
    """The episodes of a step that has a group for each of these tasks."""
    return [
        p for position, task in enumerate(tasks) for p in plan_group(task, step, position, group_size, seed)
    ]


def plan_group(task: Task, step: int, position: int, group_size: int, seed: int) -> list[Plan]:
    """The episodes of the group at a position of the batch."""
    return [
        Plan(f"{name}/{member}", f"{seed}/{name}/{member}", task, member, position)
        for name in [f"{step}.{position}/{task.id}"]
        for member in range(group_size)
    ]


def most_groups(train: TrainSettings, rollout: RolloutSettings) -> int:
    """Maximum number of groups that are started in a step."""
    return rounded_up(train.batch_size * train.dynamic_sampling * rollout.oversample)


def rounded_up(number: float) -> int:
    """The number rounded up, with 10 · 1.1 counting as 11."""
    return math.ceil(round(number, 6))


def plan_validation(
    tasks: Sequence[Task], step: int, kind: str, *, limit: int, repeats: int = 1, seed: int
) -> list[Plan]:
    """``repeats`` episodes for each of the first ``limit`` tasks. The seeds do not depend on the step, so that the result
    of a checkpoint can be reproduced separately."""
    return [
        Plan(f"{kind}@{step}/{name}", f"{seed}/{kind}/{name}", task, member, position)
        for position, task in enumerate(tasks[:limit])
        for member in range(repeats)
        for name in [task.id if repeats == 1 else f"{task.id}/{member}"]
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSource:
    """A `BatchSource` that runs groups of episodes. ``reusable`` are finished episodes, by id, of an interrupted
    step that the serving weights sampled, and those that a run took over from its parent, as the function `reusable` returns them;
    they are not run again.

    A step runs in rounds. The first has `batch_size` groups; with `dynamic_sampling` each further one
    replaces the groups whose rewards are all equal, until the batch is full or the bound is reached. With
    `oversample` a round starts more groups than it needs and takes those that are complete first. A group is
    complete when every member has ended, successfully or not, so rewards have no influence. With `rollout.fork` its
    members are then forked (`plan_forks`).
    """

    rollout: Rollout
    selector: TaskSelector
    algorithm: Algorithm
    settings: TrainSettings
    seed: int
    recorder: RunRecorder
    on_episode: OnEpisode
    filters: Sequence[Filter] = ()
    reusable: Mapping[str, Episode] = field(default_factory=dict)
    adapters: Sequence[str] = ()
    """Names of the targets that have an adapter."""
    teacher: SelfTeacher | None = None
    """Writes the hints of an algorithm that needs them."""
    steering: Steering | None = None
    """Says which groups begin with calls of an earlier episode."""
    told: set[str] = field(default_factory=set)
    """Names in rewards of which a warning was given."""

    def __post_init__(self) -> None:
        if self.rollout.settings.fork:  # some judges know whether they compare only when they are open
            check_judge(self.rollout.judge)
        if self.steering:
            check_steering(self.rollout.judge)

    async def batch(self, step: int, version: int) -> RolloutBatch:
        """See `BatchSource.batch`. Raises AjetError if nothing of the step can be trained."""
        started = time.monotonic()
        running = _Step(self, step)
        await running.run()
        batch, episodes = step_batch(
            running.chosen(),
            step,
            version,
            algorithm=self.algorithm,
            settings=self.settings,
            seed=self.seed,
            filters=self.filters,
            adapters=self.adapters,
            teacher=self.teacher,
        )
        batch.account.episodes.update(running.left_out)
        if names := unmatched_rewards(episodes) - self.told:
            self.told.update(names)
            log.warning("%s", unmatched_rewards_line(names))
        if len(episodes) < running.ended:
            self.recorder.unused(step, [e.plan.id for e in episodes])
        seconds = time.monotonic() - started
        batch.metrics.update(summarize(running.complete(), seconds))
        if self.reusable:  # episodes of the interrupted step took no time now
            new = [e for e in running.complete() if e.plan.id not in self.reusable]
            batch.metrics["tokens_per_second"] = summarize(new, seconds)["tokens_per_second"]
        batch.metrics.update(running.counts)
        batch.metrics.update(self._observe(step, [e for e in running.complete() if not e.plan.fork]))
        if self.steering:
            self.steering.observe(map(PastEpisode.of, running.whole()))
        return batch

    def _observe(self, step: int, episodes: Sequence[Episode]) -> Metrics:
        """Let the selector learn from a step's groups, and record what it learns from."""
        if not self.selector.learns:
            return {}
        rates = pass_rates(episodes)
        self.recorder.pass_rates(step, rates)
        return self.selector.observe(rates)


class _Step:
    """The groups of one step: which were started, which are complete, and which have different rewards."""

    def __init__(self, source: RolloutSource, step: int) -> None:
        self.source = source
        self.step = step
        self.ended = 0
        self.counts: Metrics = {}
        self.left_out: dict[str, list[str]] = {}
        """By rule, the ids of the episodes that have ended and are not in the batch."""
        self._groups: dict[int, list[Episode]] = {}
        """The groups that count, by number, in the order in which they were completed."""
        self._late: dict[int, list[Episode]] = {}
        """Those that were completed when there were enough."""

    async def run(self) -> None:
        """Run rounds until the batch is full or no further group may be started."""
        source, settings, rollout = self.source, self.source.settings, self.source.rollout.settings
        limit = most_groups(settings, rollout)
        tasks = islice(source.selector.order(self.step), limit)
        plans = plan_groups(tasks, self.step, rollout.roots, source.seed)
        if source.steering:
            plans = source.steering.steered(self.step, plans)
        started, needed = 0, settings.batch_size
        while needed and started < limit:
            count = min(rounded_up(needed * rollout.oversample), limit - started)
            await self._round([p for p in plans if started <= p.group < started + count], min(needed, count))
            started += count
            if settings.dynamic_sampling == 1:
                break
            needed = settings.batch_size - sum(map(self._differ, self._groups.values()))
        if started > settings.batch_size:
            self.counts["groups_started"] = started

    def chosen(self) -> list[Episode]:
        """The episodes of the batch, by group and member. With dynamic sampling groups of equal rewards are
        left out and counted, unless there are no others."""
        groups = self._groups
        if self.source.settings.dynamic_sampling > 1:
            differing = {n: group for n, group in groups.items() if self._differ(group)}
            skipped = [e for n, group in groups.items() if n not in differing for e in group]
            self._leave_out("equal_rewards", skipped if differing else ())
            self.counts["groups_skipped"] = len(groups) - len(differing)
            self.counts["tokens_skipped"] = sum(e.record.sampled_tokens for e in skipped)
            groups = differing or groups
        return _in_order(groups)

    def complete(self) -> list[Episode]:
        """The episodes of all groups that count, including those with equal rewards."""
        return _in_order(self._groups)

    def whole(self) -> list[Episode]:
        """The episodes of all groups that were completed, as a journal knows them too."""
        return _in_order(self._groups | self._late)

    async def _round(self, plans: Sequence[Plan], needed: int) -> None:
        """Run the groups of these plans until ``needed`` of them are complete."""
        source = self.source
        size = source.rollout.settings.roots
        reused = [e for p in plans if (e := source.reusable.get(p.id))]
        held = {e.plan.id for e in reused}
        groups: dict[int, list[Episode]] = {}
        complete: list[int] = []
        enough = asyncio.Event()

        def take(episode: Episode) -> None:
            self.ended += 1
            group = groups.setdefault(episode.plan.group, [])
            group.append(episode)
            if len(group) == size and len(complete) < needed:
                complete.append(episode.plan.group)
                if len(complete) == needed:
                    enough.set()

        def done(episode: Episode) -> None:
            take(episode)
            source.recorder.episode(episode, phase="train", step=self.step)
            source.on_episode("train", self.ended, self.ended + len(plans) - sum(map(len, groups.values())))

        for episode in reused:
            take(episode)
        todo = [p for p in plans if p.id not in held]
        if source.steering:
            todo = source.steering.loaded(todo)
        started = {p.group for p in plans}
        spare = len(started) > needed
        if not enough.is_set():
            await source.rollout.run(todo, done, enough if spare else None)
        ended = sum(map(len, groups.values()))
        fork = source.rollout.settings.fork
        for number in range(fork.depth if fork else 0):
            await self._fork({n: groups[n] for n in sorted(complete)}, number)
        self._groups |= {number: groups[number] for number in complete}
        if reused:
            self._count("episodes_reused", len(reused))
        if spare:
            others = {n: group for n, group in groups.items() if n not in complete}
            self._late |= {n: group for n, group in others.items() if len(group) == size}
            unused = [e for group in others.values() for e in group]
            self._count("groups_unused", len(started) - len(complete))
            self._count("episodes_cancelled", len(plans) - ended)
            self._count("tokens_unused", sum(e.record.sampled_tokens for e in unused))
            self._leave_out("oversampled", unused)

    async def _fork(self, groups: Mapping[int, list[Episode]], number: int) -> None:
        """Run a round of forks of complete groups, and add them to these."""
        source = self.source
        settings, seed = source.rollout.settings, source.seed
        plans = [plan for group in groups.values() for plan in plan_forks(group, settings, number, seed)]
        total = self.ended + len(plans)

        def done(episode: Episode) -> None:
            self.ended += 1
            groups[episode.plan.group].append(episode)
            source.recorder.episode(episode, phase="train", step=self.step)
            source.on_episode("train", self.ended, total)

        await source.rollout.run(plans, done)

    def _differ(self, group: Sequence[Episode]) -> bool:
        return rewards_differ([Ended.of(e) for e in group], self.source.settings.call_discount)

    def _count(self, name: str, number: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def _leave_out(self, rule: str, episodes: Iterable[Episode]) -> None:
        self.left_out.setdefault(rule, []).extend(e.plan.id for e in episodes)


def unmatched_rewards(episodes: Sequence[Episode]) -> set[str]:
    """Names in `Episode.rewards` that are neither an agent nor a target of any call."""
    return unmatched_names(
        (e.rewards for e in episodes), ((x.agent, x.target) for e in episodes for x in e.record.asked)
    )


def unmatched_rewards_line(names: Iterable[str]) -> str:
    """What is wrong with such names."""
    return f"the judge rewards {', '.join(map(repr, sorted(names)))}, but no call is of an agent or target with this name"


def _in_order(groups: Mapping[int, Sequence[Episode]]) -> list[Episode]:
    return [e for n in sorted(groups) for e in sorted(groups[n], key=lambda e: e.plan.member)]


def step_batch(
    episodes: Sequence[Episode],
    step: int,
    version: int,
    *,
    algorithm: Algorithm,
    settings: TrainSettings,
    seed: int,
    filters: Sequence[Filter] = (),
    adapters: Sequence[str] = (),
    teacher: SelfTeacher | None = None,
    learning_rate: float | None = None,
) -> tuple[RolloutBatch, list[Episode]]:
    """The batch of a step, for weights of a version, and the episodes in it: those that are `fresh`. ``learning_rate`` is by
    default that of the settings. Raises AjetError if nothing can be trained."""
    kept, counts = fresh(episodes, version, settings.max_staleness)
    batch = build_batch(
        kept,
        Learning.of(algorithm, settings, adapters),
        mini_batches=settings.mini_batches,
        learning_rate=settings.rate_at(step) if learning_rate is None else learning_rate,
        seed=f"{seed}:{step}",
        epochs=settings.epochs,
        selection=TokenSelection(filters, settings.max_timelines, str(seed)),
        teacher=teacher,
    )
    if batch is None:
        raise AjetError(f"step {step}: nothing to train on: {why_nothing(kept, counts)}")
    batch.metrics.update(counts)
    if teacher and step == 1 and not any(sample.hint for sample in batch.batch.samples):
        log.warning(
            "%s: no episode of the first step has feedback that a teacher can read (%.0f have none), so it teaches nothing. Let the "
            "judge return JudgeOutput(feedback=...), or set train.algorithm.solution.",
            algorithm.name,
            batch.metrics["episodes_without_feedback"],
        )
    used = {e.plan.id for e in kept}
    batch.account.episodes["stale"] = [e.plan.id for e in episodes if e.plan.id not in used]
    return batch, kept


def fresh(
    episodes: Sequence[Episode], version: int, max_staleness: int | None
) -> tuple[list[Episode], Metrics]:
    """The episodes without a trained token that was sampled more than ``max_staleness`` versions before ``version``;
    and how many episodes were dropped, with how many tokens. ``staleness`` is that of the oldest token that is left."""
    if max_staleness is None:
        oldest_of_all = max((version - oldest(e, version) for e in episodes), default=0)
        return list(episodes), {"staleness": oldest_of_all} if oldest_of_all else {}
    kept = [e for e in episodes if version - oldest(e, version) <= max_staleness]
    stale = [e for e in episodes if version - oldest(e, version) > max_staleness]
    return kept, {
        "episodes_stale": len(stale),
        "tokens_stale": sum(e.record.sampled_tokens for e in stale),
        "staleness": max((version - oldest(e, version) for e in kept), default=0),
    }


def oldest(episode: Episode, version: int) -> int:
    """The oldest weight version that sampled a trained token; ``version`` if there is none."""
    versions = [
        int(c.generation.weight_versions.min())
        for c in episode.record.trained_calls
        if len(c.generation.token_ids)
    ]
    return min(versions, default=version)


def why_nothing(episodes: Sequence[Episode | Ended], counts: Metrics) -> str:
    """Why nothing can be learned from these episodes, with the remedy; ``counts`` are those of `fresh`."""
    if not episodes and counts.get("episodes_stale"):
        return f"all {counts['episodes_stale']:.0f} episodes were sampled more than train.max_staleness versions ago; raise it"
    if not episodes:
        return "no episodes were given"
    if all(e.failure for e in episodes):
        return f"all {len(episodes)} episodes failed: {describe_failures(episodes)}"
    return (
        "no call of any episode was answered by a trained target, or filters dropped all of them; check "
        "`targets`, `train.targets` and `train.filters`"
    )


def reusable(rollout: Rollout, finished: Mapping[str, Episode]) -> dict[str, Episode]:
    """The finished episodes, by id, that need not run again: all, or with a group judge only those of complete
    groups."""
    if not isinstance(rollout.judge, GroupJudge):
        return dict(finished)
    members = Counter(name.rpartition("/")[0] for name in finished)
    return {n: e for n, e in finished.items() if members[n.rpartition("/")[0]] == rollout.settings.group_size}


def sampled_under(episode: Episode, version: int, staleness: int = 0) -> bool:
    """Whether every token of an episode comes from these weights, or from those of at most ``staleness`` versions before."""
    versions = [call.generation.weight_versions for call in episode.record.calls]
    return all(((version - staleness <= v) & (v <= version)).all() for v in versions)


async def validate(
    run: Callable[[Sequence[Plan]], Awaitable[Sequence[Ended]]],
    tasks: Sequence[Task],
    step: int,
    *,
    kind: str,
    limit: int,
    repeats: int = 1,
    seed: int,
    record: Callable[[str, int, Metrics], object],
) -> Metrics:
    """Metrics of one validation, whose episodes ``run`` runs and journals; ``record`` stores the metrics. Raises
    ValidationFailed if all episodes failed; then the metrics have no rewards."""
    started = time.monotonic()
    episodes = await run(plan_validation(tasks, step, kind, limit=limit, repeats=repeats, seed=seed))
    metrics = totals(episodes, time.monotonic() - started)
    record(kind, step, metrics)
    if "reward" not in metrics:
        raise ValidationFailed(
            f"{kind} at step {step}: all {len(episodes)} episodes failed: {describe_failures(episodes)}"
        )
    return metrics
