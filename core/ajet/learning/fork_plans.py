"""Where the forks of a group begin: which of its episodes are run again, and from which of their calls.

A group with forks samples about as many tokens as ``group_size`` independent episodes would. A fork from a call is expected to
sample as many tokens as its parent did from there on. All choices are functions of the episodes and the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from statistics import fmean

from ajet.interfaces.judge import GroupJudge, Judge
from ajet.learning.fork_tree import ForkTree
from ajet.rollout.episode import Episode, Fork, Plan
from ajet.rollout.settings import RolloutSettings
from ajet.tracker.record import sampled
from ajet.types import ConfigError

MOST = 2
"""A group has at most this many times ``group_size`` forks, however few tokens they sample: each runs the agent again."""


def check_judge(judge: Judge) -> None:
    """Raise ConfigError if a judge cannot judge forks."""
    if isinstance(judge, GroupJudge):
        raise ConfigError(
            "rollout.fork",
            f"the judge {judge.name!r} compares the episodes of a group when all have ended, and forks begin after the others are "
            "judged. Remove the key, or name a judge of single episodes.",
        )


@dataclass(frozen=True, slots=True)
class _Leaf:
    """An episode from which forks may begin. Places on its path count its calls: at place 2 two calls are behind."""

    id: str
    fork: Fork | None
    calls: Sequence[int]
    reward: float
    costs: Sequence[int]
    """Sampled tokens of each call."""
    surprise: Sequence[float]
    """The mean of -log p over the sampled tokens of each call: an estimate of the entropy of the model there."""
    places: Sequence[int]
    """Where forks may begin: behind at least one call that its parent has not, and before a call that is trained."""
    episode: Episode

    @classmethod
    def of(cls, episode: Episode) -> _Leaf:
        calls, fork = episode.record.path, episode.plan.fork
        first = fork.calls + 1 if fork else 1
        return cls(
            id=episode.id,
            fork=fork,
            calls=[call.number for call in calls],
            reward=episode.reward,
            costs=[len(call.generation.token_ids) for call in calls],
            surprise=[
                -float(c.generation.logprobs.mean()) if len(c.generation.logprobs) else 0.0 for c in calls
            ],
            places=[i for i in range(first, len(calls)) if calls[i].trained and not calls[i].side],
            episode=episode,
        )

    @property
    def first(self) -> int:
        """The place at which it begins."""
        return self.fork.calls if self.fork else 0


_Point = tuple[_Leaf, int]
"""A place on the path of an episode."""


def plan_forks(group: Sequence[Episode], settings: RolloutSettings, number: int, seed: int) -> list[Plan]:
    """The forks of a round, counted from 0, of a group whose episodes so far have ended. Each round gets an equal share of
    what is left of the group's tokens."""
    fork = settings.fork
    assert fork
    members = sorted(group, key=lambda e: e.plan.member)
    leaves = [_Leaf.of(e) for e in members if e.failure is None]
    used = [sampled(c for c in e.record.calls if not c.replayed) for e in members]
    alone = [tokens for e, tokens in zip(members, used, strict=True) if not e.plan.is_fork]
    left = settings.group_size * sum(alone) / len(alone) - sum(used)
    most = MOST * settings.group_size - (len(members) - len(alone))
    name = members[0].id.rpartition("/")[0]
    match fork.where:
        case "uniform":
            order = _points(leaves)
            random.Random(f"{seed}/{name}/forks {number}").shuffle(order)
        case "entropy":
            order = sorted(_points(leaves), key=lambda point: -point[0].surprise[point[1]])
        case "value":
            order = list(_halved(leaves))
    chosen = _within(order, left / (fork.depth - number), most)
    return [
        Plan(
            f"{name}/{member}",
            f"{seed}/{name}/{member}",
            members[0].plan.task,
            member,
            members[0].plan.group,
            Fork(leaf.id, place, leaf.episode.record),
        )
        for member, (leaf, place) in enumerate(chosen, members[-1].plan.member + 1)
    ]


def _points(leaves: Sequence[_Leaf]) -> list[_Point]:
    return [(leaf, place) for leaf in leaves for place in leaf.places]


def _within(order: Sequence[_Point], tokens: float, most: int) -> list[_Point]:
    """The first points for which there are tokens; again from the beginning while there are any left."""
    chosen: list[_Point] = []
    while len(chosen) < most and any(_cost(point) <= tokens for point in order):
        for point in order:
            if len(chosen) < most and _cost(point) <= tokens:
                chosen.append(point)
                tokens -= _cost(point)
    return chosen


def _cost(point: _Point) -> int:
    leaf, place = point
    return max(sum(leaf.costs[place:]), 1)


def _halved(leaves: Sequence[_Leaf]) -> Iterator[_Point]:
    """All points: first the middle of the part of a path along which the value changes most, as in a binary search for the calls
    that decide. The value of a place is the mean reward of the episodes that go through it; that of the beginning, the mean over
    independent episodes of the values after their first calls. It is known where paths begin and end, and where forks have left
    them; a part that is halved counts as half the change."""
    tree = ForkTree(leaves)

    def value(path: int, place: int) -> float:
        if not place:
            return fmean(value(root, 1) for root, leaf in enumerate(leaves) if leaf.fork is None)
        # Where frozen models gave all answers, no other episode goes the same way.
        below = tree.below(path, place - 1) if leaves[path].calls else [path]
        return fmean(leaves[leaf].reward for leaf in below)

    parts = []
    for path, leaf in enumerate(leaves):
        end = len(leaf.calls)
        left = [i for i in leaf.places if len(tree.below(path, i - 1)) > len(tree.below(path, i))]
        known = [leaf.first, *left, end]
        values = [*(value(path, place) for place in known[:-1]), leaf.reward]
        for i in range(len(known) - 1):
            parts.append(_part(abs(values[i + 1] - values[i]), path, known[i], known[i + 1]))
    heapify(parts)
    while parts:
        change, _, path, begin, end = heappop(parts)
        inside = [place for place in leaves[path].places if begin < place < end]
        if inside:
            middle = min(inside, key=lambda place: abs(2 * place - begin - end))
            yield leaves[path], middle
            for one, other in ((begin, middle), (middle, end)):
                heappush(parts, _part(-change / 2, path, one, other))


def _part(change: float, path: int, begin: int, end: int) -> tuple[float, int, int, int, int]:
    """A part of a path, the one with the greatest change first, then the longest."""
    return -change, begin - end, path, begin, end
