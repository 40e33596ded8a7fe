"""What the rules of alarms look at: the metrics of a run's steps, at its beginning and now."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from ajet.learning.collapse import CollapseCheck
from ajet.types import Metrics

FIRST, RECENT = 3, 4
"""Steps whose mean is the beginning, and steps whose mean is now. No rule that compares them holds before both have passed."""


class History:
    """What has been recorded of a run."""

    def __init__(self, shuffled: bool, on_policy: bool, corrected: bool) -> None:
        self.shuffled = shuffled
        """Whether the tasks come in a random order. Any other may end in hard ones, so a falling reward is then not a fault."""
        self.on_policy = on_policy
        """Whether tokens are sampled from the weights that learn from them."""
        self.corrected = corrected
        """Whether importance weights correct for those that are not."""
        self.steps: list[Metrics] = []
        self.validations: list[tuple[int, Metrics]] = []
        self.collapse = CollapseCheck()
        self.low, self.high = math.inf, -math.inf
        """The lowest and the highest reward of an episode."""
        self.best: tuple[float, float] | None = None
        """The highest mean reward of some steps in a row, and its squared standard error."""

    def add(self, step: int, metrics: Metrics) -> None:
        """A step has ended."""
        self.collapse.follow(step, metrics)
        self.steps.append(dict(metrics))
        self.low = min(self.low, metrics.get("reward_min", math.inf))
        self.high = max(self.high, metrics.get("reward_max", -math.inf))
        now = self.reward(self.steps[-RECENT:])
        if len(self.steps) >= RECENT and now and (self.best is None or now[0] > self.best[0]):
            self.best = now

    @property
    def compared(self) -> bool:
        """Whether the beginning and now are different steps."""
        return len(self.steps) >= FIRST + RECENT

    def now(self, name: str) -> float | None:
        """The mean of a metric over the last steps; None if one lacks it, or if there are not as many."""
        return _mean(self.steps[-RECENT:], name) if len(self.steps) >= RECENT else None

    def first(self, name: str) -> float | None:
        """Its mean at the beginning."""
        return _mean(self.steps[:FIRST], name) if self.compared else None

    def both(self, name: str) -> tuple[float, float] | None:
        """Its means at the beginning and now."""
        first, now = self.first(name), self.now(name)
        return None if first is None or now is None else (first, now)

    def share(self, name: str, of: Callable[[Metrics], float]) -> float | None:
        """A count over another, of the last steps; None if there are not as many."""
        count = sum(map(of, self.steps[-RECENT:]))
        if len(self.steps) < RECENT or not count:
            return None
        return sum(step.get(name, 0) for step in self.steps[-RECENT:]) / count

    def reward(self, steps: list[Metrics]) -> tuple[float, float] | None:
        """The mean reward of steps, and its squared standard error, in which a group counts as one episode; None without, as in
        the metrics of earlier releases."""
        # Rewards are of whole groups.
        groups = [s.get("groups", 0) - s.get("groups_steered", 0) for s in steps]
        if not steps or any("reward_std" not in s for s in steps) or min(groups) <= 0:
            return None
        errors = [s["reward_std"] ** 2 / count for s, count in zip(steps, groups, strict=True)]
        return statistics.fmean(s["reward"] for s in steps), sum(errors) / len(steps) ** 2

    def rise(self) -> float:
        """How much the reward has risen since the beginning, in standard errors."""
        one, two = self.reward(self.steps[:FIRST]), self.reward(self.steps[-RECENT:])
        if not self.compared or one is None or two is None:
            return 0.0
        return apart(two, one)

    def level(self) -> float:
        """Where the reward of the last steps is between the lowest and the highest of an episode (0 to 1)."""
        now = self.reward(self.steps[-RECENT:])
        if now is None:
            return 0.0
        if self.high <= self.low:
            return float(now[0] >= 0.5)
        return (now[0] - self.low) / (self.high - self.low)

    def learned(self) -> bool:
        """Whether the reward has risen, to more than half of what can be had."""
        return self.rise() >= 2 and self.level() >= 0.5


def apart(one: tuple[float, float], other: tuple[float, float]) -> float:
    """The difference of two means in standard errors."""
    difference, error = one[0] - other[0], math.sqrt(one[1] + other[1])
    return difference / error if error else math.copysign(math.inf, difference) if difference else 0.0


def episodes(step: Metrics) -> float:
    """How many have ended."""
    return step.get("episodes", 0)


def whole(step: Metrics) -> float:
    """How many of them neither are forks nor begin as others did: rewards are of these."""
    return episodes(step) - step.get("forks", 0) - step.get("steered", 0)


def _mean(steps: list[Metrics], name: str) -> float | None:
    values = [step[name] for step in steps if name in step]
    return statistics.fmean(values) if values and len(values) == len(steps) else None
