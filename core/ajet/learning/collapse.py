"""Whether rewards have collapsed: they have fallen to one value, and no group differs in them any more.

While a model learns, each group has equal rewards with some probability. A fall is not a collapse as long as this
probability explains it, as it does with tasks that are seldom solved.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path

from ajet.rollout.checkpoints import checkpoints, step_of
from ajet.types import Metrics

RARE = 0.01
"""Equal groups in a row that are less probable than this are suspect, and over the square of the steps so far a collapse: as they may
begin at any step, all steps together then find one in a healthy run with a probability below this."""


class CollapseCheck:
    """Follows the steps of a run."""

    def __init__(self) -> None:
        self.since = 0
        """The first step of the rewards that are all equal and lower than before; 0 if there is none."""
        self.reward = 0.0
        """Their value."""
        self._equal = 0.0
        """Groups since then."""
        self._steps = 0
        self._before = self._equal_before = self._rewards_before = 0.0
        """Earlier groups, those of them with equal rewards, and the sum of their mean rewards."""

    def found(self) -> str:
        """The collapse in words; "" if there is none."""
        if not self.since or self._probability() >= RARE / self._steps**2:
            return ""
        before = self._rewards_before / self._before
        return (
            f"the reward has collapsed: since step {self.since} all episodes of {self._equal:.0f} groups have the reward "
            f"{self.reward:g}, after a mean of {before:.3g}, so nothing is learned"
        )

    def is_suspected(self) -> bool:
        """Whether the rewards may have collapsed, so that no checkpoint should take the place of an earlier one."""
        return bool(self.since) and self._probability() < RARE

    def _probability(self) -> float:
        """Of so many groups with equal rewards in a row at the share of such groups before, by Laplace's rule of succession, which
        allows for how little a few groups say of that share."""
        equal, before = self._equal_before + 1, self._before + 2
        lgamma = math.lgamma
        return math.exp(
            lgamma(equal + self._equal) - lgamma(equal) - lgamma(before + self._equal) + lgamma(before)
        )

    def ruined(self, after: Metrics, run_dir: Path, learning_rate: float) -> str:
        """How training has ruined the model, as far as rewards show, and the remedy; "" if it has not. ``after`` are the metrics
        of the last validation, {} without one."""
        fault = self.found()
        if not fault or after.get("reward", self.reward) > self.reward:
            return ""
        return f"{fault}. {train_again(saved_before(run_dir, self.since), learning_rate)}"

    def follow(self, step: int, metrics: Metrics) -> None:
        """A step with these metrics has ended."""
        reward, share, groups = (metrics.get(name) for name in ("reward", "groups_zero_advantage", "groups"))
        if reward is None or share is None or groups is None:
            return
        self._steps += 1
        one_value = share == 1 and metrics.get("reward_std", 0.0) < 1e-9
        if self.since and not (one_value and math.isclose(reward, self.reward)):
            self._count(self._equal, self._equal, self.reward)
            self.since, self._equal = 0, 0.0
        if self.since or (one_value and reward * self._before < self._rewards_before):
            self.since, self.reward = self.since or step, reward
            self._equal += groups
        else:
            skipped = metrics.get("groups_skipped", 0.0) if share < 1 else 0.0
            self._count(groups + skipped, groups * share + skipped, reward)

    def _count(self, groups: float, equal: float, reward: float) -> None:
        self._before += groups
        self._equal_before += equal
        self._rewards_before += groups * reward


def saved_before(run_dir: Path, step: float = math.inf) -> Path | None:
    """The newest checkpoint of a run from before a step; by default the newest of all. Does not look whether it is intact."""
    return next((path for path in reversed(checkpoints(run_dir)) if step_of(path) < step), None)


def train_again(checkpoint: Path | None, learning_rate: float | None) -> str:
    """The remedy for a model that training has ruined; ``checkpoint`` is the last from before."""
    start = (
        f"from its last checkpoint before that, if it is still good (--model {shlex.quote(str(checkpoint))}),"
        if checkpoint
        else "from the beginning"
    )
    now = "" if learning_rate is None else f" (now {learning_rate:g})"
    return f"Train again {start} with a lower train.learning_rate{now}."
