"""What a forecast says, and the figures that are counted from its episodes.

Tasks are the independent units of all intervals, because episodes of one task are alike.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ajet.rollout.episode import Episode
from ajet.runs.check import Report
from ajet.utils.statistics import Interval, wilson
from ajet_advice.cost import Cost
from ajet_advice.forecast.attack import Hole
from ajet_advice.forecast.noise import Gradient, JudgeNoise
from ajet_advice.forecast.steps import Probe

# What n episodes of each task say of groups of another size: pass@k, and the share of groups with signal. pass@k is the
# unbiased estimator of Chen et al., "Evaluating Large Language Models Trained on Code", 2021 (arXiv:2107.03374, eq. 1); the
# share of groups with signal is the same count over subsets. Groups larger than n are read off a beta-binomial distribution (J.
# G. Skellam, A probability distribution derived from the binomial distribution, Journal of the Royal Statistical Society B 10,
# 1948), fitted by moments.


def pass_at_k(n: int, passed: int, k: int) -> float:
    """The chance that at least one of ``k`` episodes passes, of which ``passed`` of ``n`` >= ``k`` did."""
    return 1 - math.comb(n - passed, k) / math.comb(n, k)


def signal(rewards: Sequence[Hashable], size: int) -> float:
    """The chance that a group of ``size`` of these episodes has different rewards: the share of all such subsets."""
    equal = sum(math.comb(count, size) for count in Counter(rewards).values())
    return 1 - equal / math.comb(len(rewards), size)


def fitted(passed: Sequence[int], n: int) -> tuple[float, float] | None:
    """The beta distribution (a, b) of the tasks' pass rates, from the passes of each in ``n`` episodes; None if all or none
    passed. Where the rates do not differ by more than chance, it is narrow; where each is 0 or 1, wide."""
    tasks, mean = len(passed), sum(passed) / (len(passed) * n)
    if not 0 < mean < 1 or n < 2:
        return None
    variance = sum((count / n - mean) ** 2 for count in passed) / max(tasks - 1, 1)
    chance = mean * (1 - mean)
    correlation = (n * variance / chance - 1) / (n - 1)  # of two episodes of one task
    concentration = 1 / min(max(correlation, 0.01), 0.99) - 1
    return mean * concentration, (1 - mean) * concentration


def foreseen_signal(beta: tuple[float, float], size: int) -> float:
    """The chance that a group of ``size`` has passed and failed episodes, if pass rates have this beta distribution (a, b)."""
    a, b = beta

    def all_of(one: float) -> float:
        return math.exp(sum(math.log((one + i) / (a + b + i)) for i in range(size)))

    return 1 - all_of(a) - all_of(b)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastFigures:
    """What a few episodes say of a run. Intervals are (estimate, low, high) and hold in 95 % of cases."""

    report: Report
    tasks: int
    group_size: int
    """The job's."""
    signal: Mapping[int, Interval]
    """By group size, the share of groups with different rewards."""
    pass_at: Mapping[int, Interval]
    """pass@k by k; empty if the judge says nothing of success and rewards are not only 0 and 1."""
    reward: Interval | None
    """The mean; None if none was judged. Without an interval for rewards that are not from 0 to 1, (mean, min, max)."""
    always: int
    """Tasks whose episodes all passed."""
    never: int
    judge: JudgeNoise | None
    gradient: Gradient | None
    step_tokens: float
    """Sampled tokens of a training step."""
    step_seconds: float
    """Seconds here, with this machine's engine and load: of the steps that were trained, else of a step's rollout alone."""
    gpus: Mapping[str, float] | None
    """Seconds of a step on the GPUs that were asked about, without agents and judges: middle, low, high."""
    run: Cost
    """Of the job's `train.steps`: on the GPUs that were asked about, else here."""
    probe: Probe | None
    """The steps that were trained to see how fast the job learns."""
    target: float
    steps: Interval | None
    """Training steps to the target; None without an estimate."""
    holes: Sequence[Hole] | None
    """How the judge can be fooled; None if it was not attacked."""
    causes: Sequence[tuple[str, str, str]]
    """(name, what stands in the way, what helps), worst first."""
    suggestions: Sequence[tuple[str, str]]
    """(setting, reason)"""

    @property
    def ok(self) -> bool:
        """Whether nothing was found that keeps the job from learning: the command's exit code 0."""
        return not self.causes and self.reward is not None

    def as_dict(self) -> dict[str, Any]:
        """The forecast as plain data."""
        report = self.report
        calls = [c for e in report.episodes for c in e.record.calls]
        return {
            "run_dir": str(report.run_dir),
            "episodes": len(report.episodes),
            "failed": sum(e.failure is not None for e in report.episodes),
            "tasks": self.tasks,
            "group_size": self.group_size,
            "reward": self.reward,
            "signal": {str(size): share for size, share in self.signal.items()},
            "pass_at": {str(k): rate for k, rate in self.pass_at.items()},
            "tasks_always_solved": self.always,
            "tasks_never_solved": self.never,
            "judge": asdict(self.judge) if self.judge else None,
            "gradient": {k: v if math.isfinite(v) else None for k, v in asdict(self.gradient).items()}
            if self.gradient
            else None,
            "answers": len(calls),
            "answers_cut": report.cut,
            "answer_tokens": statistics.fmean(len(c.generation.token_ids) for c in calls) if calls else None,
            "longest_call": report.longest,
            "context_length": report.context_length,
            "step_tokens": self.step_tokens,
            "step_seconds": self.step_seconds,
            "gpus": self.gpus,
            "run": self.run.as_dict(),
            "probe": asdict(self.probe) if self.probe else None,
            "target": self.target,
            "steps": self.steps,
            "holes": None if self.holes is None else [asdict(hole) for hole in self.holes],
            "causes": [{"name": n, "what": what, "remedy": remedy} for n, what, remedy in self.causes],
            "suggestions": [{"setting": setting, "reason": why} for setting, why in self.suggestions],
        }


def passed(episode: Episode) -> bool | None:
    """Whether an episode has passed, by the judge's word or by a reward of 0 or 1; None if neither says so."""
    if episode.is_success is not None:
        return episode.is_success
    return bool(episode.reward) if episode.reward in (0, 1) else None


def signal_by_size(
    rewards: Sequence[Sequence[float]], passes: Sequence[Sequence[bool]], size: int
) -> dict[int, Interval]:
    """The share of groups with different rewards, by size: measured up to the groups that were run, above them foreseen."""
    by_size = {}
    most = max(map(len, rewards), default=0)
    beta = fitted([sum(p) for p in passes if len(p) == most], most) if passes and most > 1 else None
    binary = all(reward in (0, 1) for group in rewards for reward in group)
    for wanted in sorted({2, 4, 8, size, 2 * size}):
        able = [group for group in rewards if len(group) >= wanted > 1]
        if able and len(able) >= len(rewards) / 2:
            by_size[wanted] = wilson(statistics.fmean(signal(group, wanted) for group in able), len(able))
        elif wanted > most and beta and binary:
            least = max((share[0] for share in by_size.values()), default=0.0)  # more episodes differ no less
            by_size[wanted] = wilson(max(foreseen_signal(beta, wanted), least), len(rewards))
    return by_size


def passes_by_k(passes: Sequence[Sequence[bool]]) -> dict[int, Interval]:
    by_k = {}
    for k in (1, 2, 4, 8, 16, 32):
        able = [group for group in passes if len(group) >= k]
        if able and len(able) >= len(passes) / 2:
            by_k[k] = wilson(statistics.fmean(pass_at_k(len(g), sum(g), k) for g in able), len(able))
    return by_k


def mean_reward(rewards: Sequence[Sequence[float]]) -> Interval | None:
    every = [r for group in rewards for r in group]
    if not every:
        return None
    mean = statistics.fmean(statistics.fmean(group) for group in rewards)
    if min(every) >= 0 and max(every) <= 1:
        return wilson(mean, len(rewards))
    return mean, min(every), max(every)
