"""Groups that begin with the first calls of an earlier episode of their task: the job's `rollout.steer`.

A group whose episodes all fail, or all succeed, teaches nothing. So a group of a task that nearly always fails begins as a successful
episode did, and one of a task that nearly always succeeds as a failed one did (Prefix Sampling: arXiv:2605.05112), with as few of its
calls as bring the pass rate back to the edge of the band. The calls are answered from the journal (`ajet.capture.fork_replay`) and are
not trained.

What a batch estimates: for each group the gradient of the expected return *from its start*, under the weights that sampled it. All
episodes of a group have one start, and are compared only with each other. Which starts there are, this module decides by earlier
episodes, so the sum over groups is not the gradient of the pass rate of whole tasks. Groups that begin at the beginning estimate that
one; they alone tell the pass rate, and all figures of the run are theirs.

What is known of a task follows from the journal alone, in the order of its groups, so that a resumed run knows the same.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from ajet.capture.demonstrated import Demonstration
from ajet.interfaces.judge import GroupJudge, Judge
from ajet.learning.task_selector import passed
from ajet.rollout.episode import Episode, Fork, Plan
from ajet.rollout.failures import FailureKind
from ajet.rollout.journal import episode_from_json
from ajet.rollout.recorder import JOURNAL, RunRecorder, live
from ajet.rollout.settings import SteerSettings
from ajet.tracker.record import EpisodeRecord
from ajet.types import ConfigError, Task

KEY = "rollout.steer"
FADES = 0.97
"""What a group counts when another one has ended: as much as a half after 23."""


def check_steering(judge: Judge) -> None:
    """Raise ConfigError if a judge does not say which episodes succeed."""
    if isinstance(judge, GroupJudge):
        raise ConfigError(
            KEY,
            f"the judge {judge.name!r} compares the episodes of a group, so its rewards do not say which episodes of earlier groups "
            "succeeded. Remove the key, or name a judge of single episodes.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEpisode:
    """An episode that has ended, as far as steering remembers it."""

    id: str
    task: str
    group: int
    """The place of its group in the batch."""
    member: int
    failure: str | None
    reward: float
    is_success: bool | None
    fork: Fork | None
    calls: int
    """Those that an engine answered, also of those that it replayed."""
    places: Sequence[int]
    """Where it can be left, counted in calls: before one that was sampled to be trained, by it or by the episode that it replays."""

    @classmethod
    def of(cls, episode: Episode) -> PastEpisode:
        """An episode of this process."""
        plan, path = episode.plan, episode.record.path
        return cls(
            id=plan.id,
            task=plan.task.id,
            group=plan.group,
            member=plan.member,
            failure=episode.failure,
            reward=episode.reward,
            is_success=episode.is_success,
            fork=plan.fork,
            calls=len(path),
            places=[i for i, c in enumerate(path) if i and (c.trained or c.replayed) and not c.side],
        )

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> PastEpisode:
        """The episode of a line of the journal."""
        tokens = [(c["tokens"], c["number"]) for c in line["calls"] if "tokens" in c]
        # The order of `EpisodeRecord.path`.
        path = sorted(tokens, key=lambda c: (not c[0].get("replayed"), c[0].get("place", 0), c[1]))
        return cls(
            id=line["id"],
            task=line["task"],
            group=int(line["id"].partition("/")[0].partition(".")[2]),
            member=line["member"],
            failure=line["failure"],
            reward=line["reward"],
            is_success=line["is_success"],
            fork=Fork(**line["fork"]) if "fork" in line else None,
            calls=len(path),
            places=[
                i
                for i, (t, _) in enumerate(path)
                if i and (t["trained"] or t.get("replayed")) and not t.get("side")
            ],
        )

    @classmethod
    def demonstrated(cls, demonstration: Demonstration) -> PastEpisode:
        """An episode of another model, or of a person."""
        count = len(demonstration.answers)
        return cls(
            id=demonstration.id,
            task=demonstration.task,
            group=-1,
            member=0,
            failure=None,
            reward=1.0,
            is_success=True,
            fork=None,
            calls=count,
            places=range(1, count),
        )

    @property
    def passed(self) -> float:
        """From 0 to 1. Raises AjetError if the reward does not say it."""
        return passed(self, KEY)

    @property
    def has_passed(self) -> bool:
        return self.passed >= 0.5


@dataclass(slots=True)
class _Known:
    """What is known of a task."""

    passed: float = 0.0
    """Of its whole groups, the episodes that passed; earlier groups count half as much as the one after them."""
    episodes: float = 0.0
    successes: list[PastEpisode] = field(default_factory=list)
    """The newest ones."""
    failures: list[PastEpisode] = field(default_factory=list)
    """Those with the highest rewards, and of these the newest."""
    demonstrations: Sequence[PastEpisode] = ()
    lowest: float = math.inf
    """The lowest reward."""
    left: dict[bool, float] = field(default_factory=dict)
    """How many calls are left to the model if the task is too hard (True), and if it is too easy."""
    diverges: bool = False
    """Whether all episodes of a group asked something else than the episode with which they began."""

    def keep(self, episode: PastEpisode, most: int) -> None:
        """Note an episode that was judged."""
        self.lowest = min(self.lowest, episode.reward)
        if episode.has_passed:
            self.successes = [episode, *self.successes][:most]
        else:
            best_first = sorted([episode, *self.failures], key=lambda e: -e.reward)
            self.failures = best_first[:most]

    def whole_group(self, group: Sequence[PastEpisode]) -> None:
        """Note a group that began at the beginning."""
        self.passed = self.passed / 2 + sum(e.passed for e in group)
        self.episodes = self.episodes / 2 + len(group)

    def is_hard(self, band: tuple[float, float]) -> bool | None:
        """Whether the task is too hard (True) or too easy; None if neither is known."""
        rate = self.passed / self.episodes if self.episodes else None
        if rate is None or band[0] <= rate <= band[1]:
            return None
        return rate < band[0]

    def starts(self, is_hard: bool) -> Sequence[PastEpisode]:
        """The episodes with which groups may begin."""
        if not is_hard:
            some: Sequence[PastEpisode] = self.failures
        else:
            some = self.successes or self.demonstrations
            some = some or [e for e in self.failures if e.reward > self.lowest]
        return [e for e in some if e.places]

    def left_of(self, start: PastEpisode, is_hard: bool, aim: float) -> float:
        """How many calls of a start are to be left to the model, so that the share ``aim`` of a group does as the start did."""
        if is_hard in self.left:
            return self.left[is_hard]
        alike = self.passed if is_hard else self.episodes - self.passed
        # As if each call decided alike, and never 0 or 1.
        return start.calls * math.log(aim) / math.log((alike + 0.5) / (self.episodes + 1))

    def adjust(
        self, start: PastEpisode, calls: int, group: Sequence[PastEpisode], is_hard: bool, aim: float
    ) -> bool:
        """Learn from the judged episodes of a group that began with so many calls of a start. Returns whether it told them apart."""
        if not is_hard:
            alike = sum(not e.has_passed for e in group)
        elif start.has_passed:
            alike = sum(e.has_passed for e in group)
        else:
            alike = sum(e.has_passed or e.reward >= start.reward for e in group)
        # Stochastic approximation (Robbins and Monro, 1951): on average it stays where the share is the aim.
        apart = (alike / len(group) - aim) / math.sqrt(aim * (1 - aim))
        used = start.calls - calls
        wanted = self.left_of(start, is_hard, aim)
        wanted = (wanted if abs(wanted - used) < 1 else used) * math.exp(apart / 2)
        self.left[is_hard] = max(wanted, 0.5)
        if wanted >= start.calls:  # it can do without: its next group is whole and says whether it can
            del self.left[is_hard]
            self.passed = self.episodes = 0.0
        return 0 < alike < len(group)


@dataclass(slots=True)
class _Told:
    """How often groups of tasks that are too hard, or of those that are too easy, told their episodes apart.

    All tasks share it, as they share the agent: where one call decides, groups behind it tell nothing, whatever their task.
    """

    groups: dict[int | None, tuple[float, float]] = field(default_factory=dict)
    """For so many calls that are left to the model, or None for whole groups: those that told, of how many."""

    def note(self, left: int | None, told: bool) -> None:
        """Note a group. What is known fades, so that each number of calls is tried again."""
        self.groups = {key: (t * FADES, n * FADES) for key, (t, n) in self.groups.items()}
        t, n = self.groups.get(left, (0.0, 0.0))
        self.groups[left] = (t + told, n + 1)

    def more(self, left: int) -> bool:
        """Whether groups with so many calls left may tell at least as often as whole ones."""
        told, count = self.groups.get(left, (0.0, 0.0))
        whole, of = self.groups.get(None, (0.0, 1.0))
        return (told + 1) / (count + 1) >= whole / of


class Steering:
    """Plans the starts of groups, and learns from the groups of each step."""

    def __init__(
        self,
        settings: SteerSettings,
        recorder: RunRecorder,
        *,
        batch_size: int,
        group_size: int,
        seed: int,
        demonstrations: Iterable[Demonstration] = (),
    ) -> None:
        """A batch has ``batch_size`` groups of ``group_size`` independent episodes."""
        self._settings = settings
        self._recorder = recorder
        self._batch_size = batch_size
        self._group_size = group_size
        self._seed = seed
        self._tasks: dict[str, _Known] = {}
        self._told = {True: _Told(), False: _Told()}
        self._demonstrations = {one.id: one for one in demonstrations}
        for one in self._demonstrations.values():
            known = self._tasks.setdefault(one.task, _Known())
            known.demonstrations = [*known.demonstrations, PastEpisode.demonstrated(one)]

    def steered(self, step: int, plans: Sequence[Plan]) -> list[Plan]:
        """The plans of a step's groups, each with where its group begins."""
        starts = {p.group: self._start(step, p.group, p.task) for p in plans if not p.member}
        return [replace(p, fork=start) if (start := starts[p.group]) else p for p in plans]

    def loaded(self, plans: Iterable[Plan]) -> list[Plan]:
        """The plans, with the records of the episodes with which they begin."""
        loaded: list[Plan] = []
        records: dict[str, EpisodeRecord | Demonstration] = {}
        for plan in plans:
            if plan.fork and plan.fork.steered:
                parent = plan.fork.parent
                if parent not in records:
                    records[parent] = self._demonstrations.get(parent) or self._recorded(parent, plan)
                plan = replace(plan, fork=replace(plan.fork, record=records[parent]))
            loaded.append(plan)
        return loaded

    def _recorded(self, id: str, plan: Plan) -> EpisodeRecord:
        return episode_from_json(self._recorder.recorded(id), plan).record

    def observe(self, episodes: Iterable[PastEpisode]) -> None:
        """Learn from the complete groups of a step."""
        ordered = sorted(episodes, key=lambda e: (e.group, e.member))
        groups = [list(group) for _, group in groupby(ordered, key=lambda e: e.group)]
        roots = [[e for e in group if not (e.fork and not e.fork.steered)] for group in groups]
        for group in roots:  # they were planned by what was known before any of them ended
            if group[0].fork:
                self._adjust(group, group[0].fork)
        for group, own in zip(groups, roots, strict=True):
            known = self._tasks.setdefault(group[0].task, _Known())
            if not own[0].fork:
                if (is_hard := known.is_hard(self._settings.band)) is not None:
                    self._told[is_hard].note(None, 0 < sum(e.has_passed for e in own) < len(own))
                known.whole_group(own)
            for episode in group:
                if episode.failure is None:
                    known.keep(episode, self._settings.keep)

    def read(self, step: int) -> None:
        """Learn again what the run knew after a step."""

        def past(place: object, line: Mapping[str, Any]) -> tuple[int, PastEpisode] | None:
            counts = line["phase"] == "train" and line["step"] <= step
            return (line["step"], PastEpisode.read(line)) if counts else None

        known = live(self._recorder.dir / JOURNAL, past, with_unused=True)
        for _, of_step in groupby(sorted(known, key=itemgetter(0)), key=itemgetter(0)):
            episodes = [episode for _, episode in of_step]
            independent = Counter(e.group for e in episodes if not (e.fork and not e.fork.steered))
            self.observe(e for e in episodes if independent[e.group] == self._group_size)

    def _start(self, step: int, place: int, task: Task) -> Fork | None:
        """Where the group at a place of the batch begins; None for a whole group."""
        known = self._tasks.get(task.id)
        is_hard = known.is_hard(self._settings.band) if known else None
        if known is None or is_hard is None or known.diverges or self._is_whole(step, place):
            return None
        starts = known.starts(is_hard)
        if not starts:
            return None
        draw = random.Random(f"{self._seed}/{step}.{place}/{task.id}/start")
        start = draw.choice(starts)
        left = known.left_of(start, is_hard, self._settings.aim(is_hard))
        if left >= start.calls:
            return None
        calls = min(start.places, key=lambda behind: abs(start.calls - behind - left))
        may_tell = self._told[is_hard].more(start.calls - calls)
        return Fork(start.id, calls, steered=True) if may_tell else None

    def _is_whole(self, step: int, place: int) -> bool:
        """Whether a group is whole by lot. Each is with the same probability, and as many of each batch as there can be."""
        batch, place = divmod(place, self._batch_size)
        lot = random.Random(f"{self._seed}/{step}/{batch}/whole")
        order = lot.sample(range(self._batch_size), self._batch_size)
        return (order[place] + lot.random()) / self._batch_size < self._settings.whole

    def _adjust(self, group: Sequence[PastEpisode], fork: Fork) -> None:
        known = self._tasks.setdefault(group[0].task, _Known())
        is_hard = known.is_hard(self._settings.band)
        kept = (*known.successes, *known.failures, *known.demonstrations)
        start = next((e for e in kept if e.id == fork.parent), None)
        judged = [e for e in group if e.failure is None]
        if all(e.failure == FailureKind.DIVERGED for e in group):
            known.diverges = True
        elif start and judged and is_hard is not None:
            told = known.adjust(start, fork.calls, judged, is_hard, self._settings.aim(is_hard))
            self._told[is_hard].note(start.calls - fork.calls, told)
