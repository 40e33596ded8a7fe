"""Training steps to a target: the log-odds of success rise by so much a step.

How much is known from the recorded runs of the examples, as a lognormal distribution. A probe, a few steps that are trained in a
temporary folder, narrows it down by Bayes' rule.
"""

from __future__ import annotations

import math
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

GROWTH, GROWTH_FACTOR = 0.08, 3.2
"""How much the log-odds of success rise in a training step: the geometric mean of the 28 recorded runs of the examples
that learn (`learned.json`), and the factor in both directions within which 9 of 10 of them are."""
NINE_OF_TEN = 1.645
"""Standard deviations of a normal distribution in both directions within which 9 of 10 values are."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Training steps that are thrown away."""

    rates: Sequence[float]
    """The pass rate of each step; the mean reward, if the judge says nothing of success."""
    groups: int
    """In a step."""
    seconds: float
    """Of a step, with its update."""
    ruined: str = ""
    """How they have ruined the model; "" if they have not."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A pass rate, or a mean reward from 0 to 1, after so many training steps."""

    step: int
    share: float
    groups: int
    """From which it is measured."""


def probe(job: Job, steps: int) -> Probe:
    """Train the first steps of a job in a temporary folder. Raises AjetError, also for a backbone that trains only whole jobs."""
    with tempfile.TemporaryDirectory(prefix="ajet-probe-") as folder:
        few_steps = {"steps": steps, "save_every": steps, "schedule": "constant"}  # as a long run begins
        config = job.config.model_copy(
            update={
                "train": job.config.train.model_copy(update=few_steps),
                "rollout": job.config.rollout.model_copy(update={"steer": None}),  # for whole episodes
                "run": job.config.run.model_copy(update={"dir": folder, "stop_on": ()}),
            }
        )
        few = replace(job, config=config, validation=(), loggers=())
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
    return Probe(
        [line.get("accuracy", line["reward"]) for line in trained],
        job.config.train.batch_size,
        statistics.fmean([line["seconds_rollout"] + line["seconds_update"] for line in trained] or [0.0]),
        next((alarm.what for alarm in alarms if alarm.name in RUINS), ruined),
    )


def steps_to(target: float, rates: Sequence[Rate]) -> Interval:
    """Steps until the rate is at the target: the median of what is likely, and what it is within in 9 of 10 cases.

    For each rise b of the log-odds a + b · step, a is the best fit by weighted least squares. A group counts as one episode, because
    episodes of one task are alike: a rate p of g groups has the variance p (1 - p) / g.
    """
    odds = [logit(rate.share) for rate in rates]
    weights = [rate.groups * (p := _bounded(rate.share)) * (1 - p) for rate in rates]
    middle = sum(w * rate.step for w, rate in zip(weights, rates, strict=True)) / sum(weights)
    level = sum(w * y for w, y in zip(weights, odds, strict=True)) / sum(weights)
    outcomes = []
    for number in range(-400, 401):
        deviation = number / 100
        rise = GROWTH * GROWTH_FACTOR ** (deviation / NINE_OF_TEN)
        misfit = sum(
            w * (y - level - rise * (rate.step - middle)) ** 2
            for w, y, rate in zip(weights, odds, rates, strict=True)
        )
        outcomes.append((max(middle + (logit(target) - level) / rise, 0.0), -(misfit + deviation**2) / 2))
    outcomes.sort()
    most = max(likely for _, likely in outcomes)
    sums = list(accumulate(math.exp(likely - most) for _, likely in outcomes))
    low, median, high = (
        next(steps for (steps, _), up_to in zip(outcomes, sums, strict=True) if up_to >= share * sums[-1])
        for share in (0.05, 0.5, 0.95)
    )
    return median, low, high


def logit(share: float) -> float:
    """The log-odds of a share, bounded as in the recorded curves."""
    return math.log(_bounded(share) / (1 - _bounded(share)))


def _bounded(share: float) -> float:
    return min(max(share, 0.02), 0.98)  # beyond, a few episodes decide
