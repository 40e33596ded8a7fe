"""Training steps to a target: the log-odds of success rise by so much a step.

How much is known from the recorded runs of the examples, as a lognormal distribution. A probe, a few steps that are trained in a
temporary folder with the same tasks tried before and after them, narrows it down by Bayes' rule.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from ajet import Job, train_job
from ajet.job.prepare import resolved
from ajet.learning.alarm_rules import RUINS
from ajet.learning.loop import Ruined
from ajet.rollout.recorder import METRICS, live_lines
from ajet.runs.alarms import recorded_alarms
from ajet.runs.runtime import trainer_of
from ajet.utils.statistics import Interval

GROWTH, GROWTH_FACTOR = 0.053, 4.3
"""How much the log-odds of success rise in a training step: the geometric mean of the 39 recorded runs of the examples
that learn (`learned.json`), and the factor in both directions within which 9 of 10 of them are."""
LATER, LATER_FACTOR = 1.2, 1.5
"""How many times as many steps these runs took to their last rewards as their first six tenths suggest: the geometric mean, and the
factor in both directions within which 9 of 10 are of it."""
NINE_OF_TEN = 1.645
"""Standard deviations of a normal distribution in both directions within which 9 of 10 values are."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A pass rate, or a mean reward from 0 to 1, after so many training steps."""

    step: int
    share: float
    groups: int
    """From which it is measured."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Training steps that are thrown away."""

    rates: Sequence[float]
    """The pass rate of each step; the mean reward, if the judge says nothing of success."""
    groups: int
    """In a step."""
    compared: Sequence[Rate]
    """The pass rate of the same tasks before and after the steps. Unlike those of the steps, whose tasks differ, their difference is
    not that of the tasks."""
    seconds: float
    """Of a step, with its update."""
    ruined: str = ""
    """How they have ruined the model; "" if they have not."""


def probe(job: Job, steps: int, episodes: int) -> Probe:
    """Train the first steps of a job in a temporary folder; before and after, about ``episodes`` on the same tasks. Raises AjetError,
    also for a backbone that trains only whole jobs."""
    tried = random.Random(job.config.run.seed).sample(job.tasks, min(episodes, len(job.tasks)))
    with tempfile.TemporaryDirectory(prefix="ajet-probe-") as folder:
        few_steps = {"steps": steps, "save_every": steps, "schedule": "constant"}  # as a long run begins
        config = job.config.model_copy(
            update={
                "train": job.config.train.model_copy(update=few_steps),
                "rollout": job.config.rollout.model_copy(update={"steer": None}),  # for whole episodes
                "eval": job.config.eval.model_copy(
                    update={
                        "every": 0,
                        "episodes": len(tried),
                        "repeats": episodes // len(tried),
                        "greedy": False,
                    }
                ),
                "run": job.config.run.model_copy(update={"dir": folder, "stop_on": ()}),
            }
        )
        few = replace(job, config=config, validation=tried, loggers=())
        ruined = ""
        try:
            train_job(few, trainer_of(few))
        except Ruined as error:
            ruined = str(error).partition(". ")[0]
        lines: list[Mapping[str, Any]] = [
            line for path in Path(folder).glob(f"*/{METRICS}") for line in live_lines(path)
        ]
        alarms = recorded_alarms(resolved(few), lines)
        trained = [line for line in lines if line["type"] == "train"]
        compared = [line for line in lines if line["type"] == "validation"]
    return Probe(
        [_share(line) for line in trained],
        job.config.train.batch_size,
        [Rate(line["step"], _share(line), len(tried)) for line in compared],
        statistics.fmean([line["seconds_rollout"] + line["seconds_update"] for line in trained] or [0.0]),
        next((alarm.what for alarm in alarms if alarm.name in RUINS), ruined),
    )


def _share(line: Mapping[str, Any]) -> float:
    return float(line.get("accuracy", line["reward"]))


def steps_to(target: float, rates: Sequence[Rate], compared: Sequence[Rate] = ()) -> Interval:
    """Steps until the rate is at the target: the median of what is likely, and what it is within in 9 of 10 cases.

    For each rise b of the log-odds a + b · step, a is the best fit to ``rates`` by weighted least squares. ``compared`` have an a of
    their own, as their tasks, and maybe the temperature, are others. A group counts as one episode, because episodes of one task are
    alike: a rate p of g groups has the variance p (1 - p) / g. With ``compared``, the rise is mostly that of the first steps, which
    later ones do not keep up (`LATER`).
    """
    fit, beside = _Fit.of(rates), _Fit.of(compared)
    later = [(0.0, 1.0)]
    if compared:
        deviations = [number / 4 for number in range(-12, 13)]
        later = [(off, LATER * LATER_FACTOR ** (off / NINE_OF_TEN)) for off in deviations]
    outcomes = []
    for number in range(-400, 401):
        deviation = number / 100
        rise = GROWTH * GROWTH_FACTOR ** (deviation / NINE_OF_TEN)
        misfit = fit.misfit(rise) + beside.misfit(rise)
        steps = fit.middle + (logit(target) - fit.level) / rise
        outcomes += [(max(steps, 0.0) * times, -(misfit + deviation**2 + off**2) / 2) for off, times in later]
    outcomes.sort()
    most = max(likely for _, likely in outcomes)
    sums = list(accumulate(math.exp(likely - most) for _, likely in outcomes))
    low, median, high = (
        next(steps for (steps, _), up_to in zip(outcomes, sums, strict=True) if up_to >= share * sums[-1])
        for share in (0.05, 0.5, 0.95)
    )
    return median, low, high


@dataclass(frozen=True, slots=True)
class _Fit:
    """Lines through the log-odds of rates: the best one of each rise."""

    points: Sequence[tuple[float, float, int]]
    """Weight, log-odds and step of each rate."""
    middle: float
    """The weighted mean step, at which the best line of every rise has the same log-odds."""
    level: float
    """Those log-odds."""

    @classmethod
    def of(cls, rates: Sequence[Rate]) -> _Fit:
        points = [(r.groups * (p := _bounded(r.share)) * (1 - p), logit(p), r.step) for r in rates]
        total = sum(w for w, _, _ in points) or 1.0
        return cls(points, sum(w * x for w, _, x in points) / total, sum(w * y for w, y, _ in points) / total)

    def misfit(self, rise: float) -> float:
        """The weighted sum of squares."""
        return sum(w * (y - self.level - rise * (x - self.middle)) ** 2 for w, y, x in self.points)


def logit(share: float) -> float:
    """The log-odds of a share, bounded as in the recorded curves."""
    return math.log(_bounded(share) / (1 - _bounded(share)))


def _bounded(share: float) -> float:
    return min(max(share, 0.02), 0.98)  # beyond, a few episodes decide
