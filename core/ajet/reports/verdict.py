"""What a run has learned beyond chance, which alarms it raised, and what to try next."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ajet.learning.alarm_history import RECENT
from ajet.learning.alarm_rules import RUINS
from ajet.learning.alarms import Alarm, describe
from ajet.learning.collapse import saved_before, train_again
from ajet.reports.folder import Entry, RecordedRun
from ajet.runs.alarms import recorded_alarms
from ajet.utils.statistics import first_and_last, holm, mean_and_error, sign_flip, student

Outcome = Literal["learned", "no change shown", "worse", "unknown"]
SIGNIFICANT = 1 / 32
"""A change with at most this p-value shows. It is that of 6 tasks which all get better, and below 0.05 because the tests take steps and
tasks for independent, which those of small sets are not quite."""
POWER = 0.84
"""Standard errors beyond an interval's that a change must have to be found in 80 % of cases."""
LEAST_STEPS = 6
STEPS_THAT_SHOW = 7
"""With fewer, no change has so small a p-value: 6 steps have only 20 different halves."""
SOLVED = 0.95
_CAUSES = frozenset({*RUINS, "failed_episodes", "overfitting"})


@dataclass(frozen=True, slots=True)
class Change:
    """A figure before and after training. The interval holds in 95 % of cases."""

    figure: str
    """accuracy or reward, of validation tasks or of training."""
    before: float
    after: float
    gain: float
    error: float
    """The gain's standard error."""
    p: float
    """The p-value: of `sign_flip` for tasks, of `first_and_last` for training steps."""
    count: int
    """Tasks, or training steps."""
    freedom: int
    """Degrees of freedom of the error."""
    solved: int = 0
    """Tasks that got better."""
    lost: int = 0
    """Tasks that got worse."""
    takes: str = ""
    """What it takes to show a change, where there is too little for that."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the gain; None if all changes are equal, which tell no error."""
        if not self.error:
            return None
        wide = student(self.freedom) * self.error
        return self.gain - wide, self.gain + wide


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """What became of a run."""

    outcome: Outcome
    change: Change | None
    alarms: Sequence[Alarm]
    advice: Sequence[str]

    @property
    def lines(self) -> list[str]:
        """The verdict as lines of text."""
        return [
            f"{self.outcome}: {self._told()}",
            *(f"alarm {line}" for line in describe(self.alarms)),
            *(f"next: {line}" for line in self.advice),
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _told(self) -> str:
        change = self.change
        if change is None:
            return "there are neither two validations nor enough training steps to compare"
        within = " ({:+.3f} to {:+.3f})".format(*change.interval) if change.interval else ""
        chance = f"p {'< 0.001' if change.p < 0.001 else f'= {change.p:.2g}'}"
        moved = f", {change.solved} tasks better, {change.lost} worse" if change.solved or change.lost else ""
        told = (
            f"{change.figure} {change.before:.3f} → {change.after:.3f}, a change of "
            f"{change.gain:+.3f}{within}, {chance}{moved}"
        )
        if self.outcome == "no change shown":
            would = (POWER + student(change.freedom)) * change.error
            told += ". That is within chance: " + (
                change.takes or f"only a change of about {would:.2f} would have shown"
            )
        return told


def verdict_of(run: RecordedRun) -> RunVerdict | None:
    """The verdict on a run folder; None if nothing was trained there."""
    trained = [line for line in run.metrics if line["type"] == "train" and "reward" in line]
    if not trained:
        return None
    alarms = recorded_alarms(run.job, list(run.metrics))
    change = _validated(run) or _trained(trained)
    outcome: Outcome
    if change is None:
        outcome = "unknown"
    elif change.p > SIGNIFICANT:
        outcome = "no change shown"
    else:
        outcome = "learned" if change.gain > 0 else "worse"
    return RunVerdict(outcome, change, alarms, tuple(_advice(run, outcome, change, alarms)))


def validated_steps(metrics: Iterable[Mapping[str, Any]]) -> list[int]:
    """The first and the last step whose validation has come to its end; [] without two of them. Of one that goes on, or that a kill cut
    off, the journal has only the quickest episodes."""
    steps = sorted({line["step"] for line in metrics if line["type"] == "validation"})
    return [steps[0], steps[-1]] if len(steps) > 1 else []


def _validated(run: RecordedRun) -> Change | None:
    """The same tasks in the first and the last validation; None without two of them. A failed episode has not succeeded;
    where only rewards are given, it is left out and counted. Rewards that say more than success are compared, too, with p-values for
    two tests."""
    steps = validated_steps(run.metrics)
    if not steps:
        return None
    episodes = [e for e in run.entries if e.phase == "validation" and e.step in steps]
    judged = [e for e in episodes if e.failure is None]
    by_success = bool(judged) and all(e.is_success is not None for e in judged)
    figures = ["accuracy"] if by_success else ["reward"]
    if by_success and any(e.reward != bool(e.is_success) for e in judged):
        figures.append("reward")
    # As many tasks that all get better have 2 / 2^tasks for each figure.
    needed = math.ceil(math.log2(2 * len(figures) / SIGNIFICANT))
    compared = [
        _of_tasks(name, _by_task(episodes, steps[0], name), _by_task(episodes, steps[-1], name), needed)
        for name in figures
    ]
    changes = [change for change in compared if change]
    changes = [replace(change, p=p) for change, p in zip(changes, holm([c.p for c in changes]), strict=True)]
    failed = [sum(e.step == step and e.failure is not None for e in episodes) for step in steps]
    if not by_success and any(failed):
        without = ", without the failed episodes ({} and {}),".format(*failed)
        changes = [replace(change, figure=change.figure + without) for change in changes]
    return next((change for change in changes if change.p <= SIGNIFICANT), changes[0] if changes else None)


def _of_tasks(
    name: str, before: Mapping[str, float], after: Mapping[str, float], needed: int
) -> Change | None:
    tasks = [task for task in before if task in after]
    if len(tasks) < 2:
        return None
    changes = [after[task] - before[task] for task in tasks]
    gain, error = mean_and_error(changes)
    takes = f"it takes {needed} validation tasks to show any change" if len(tasks) < needed else ""
    if not takes and not any(changes):
        takes = f"no task has changed; {needed} that all get better would have shown"
    return Change(
        figure=f"{name} on {len(tasks)} validation tasks",
        before=statistics.fmean(before[task] for task in tasks),
        after=statistics.fmean(after[task] for task in tasks),
        gain=gain,
        error=error or 0.0,
        p=sign_flip(changes),
        count=len(tasks),
        freedom=len(tasks) - 1,
        solved=sum(change > 0 for change in changes),
        lost=sum(change < 0 for change in changes),
        takes=takes,
    )


def _by_task(episodes: Sequence[Entry], step: int, figure: str) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    by_success = figure == "accuracy"
    for e in episodes:
        if e.step == step and (by_success or e.failure is None):
            values.setdefault(e.task, []).append(float(bool(e.is_success)) if by_success else e.reward)
    return {task: statistics.fmean(of_task) for task, of_task in values.items()}


def _trained(lines: Sequence[Mapping[str, float]]) -> Change | None:
    """The rewards of the first and of the last steps, whose tasks may differ; None if there are too few."""
    rewards = [line["reward"] for line in lines if "reward" in line]  # all groups of a step may be steered
    if len(rewards) < LEAST_STEPS:
        return None
    count = max(LEAST_STEPS // 2, len(rewards) // 5)
    (before, e0), (after, e1) = map(mean_and_error, (rewards[:count], rewards[-count:]))
    takes = f"it takes {STEPS_THAT_SHOW} steps to show any change" if len(lines) < STEPS_THAT_SHOW else ""
    if not takes and not e0 and not e1:
        takes = "these rewards do not vary, so more steps must tell"
    return Change(
        figure=f"reward of the first and the last {count} steps, whose tasks may differ,",
        before=before,
        after=after,
        gain=after - before,
        error=math.hypot(e0 or 0.0, e1 or 0.0),
        p=first_and_last(rewards, count),
        count=count,
        freedom=2 * (count - 1),
        takes=takes,
    )


def _advice(
    run: RecordedRun, outcome: Outcome, change: Change | None, alarms: Sequence[Alarm]
) -> Iterator[str]:
    """What to try next. Where training has not helped, the first alarm that says why comes before those that only follow from it."""
    causes = [alarm for alarm in alarms if outcome == "learned" or alarm.name in _CAUSES]
    first = causes[0] if causes else alarms[0] if alarms and outcome != "worse" else None
    if outcome == "worse" if first is None else outcome != "learned" and first.name in RUINS:
        what = f"Training has ruined the model: {first.what}. " if first else ""
        rate = (run.job.get("train") or {}).get("learning_rate")
        yield what + train_again(saved_before(run.dir, first.step) if first else None, rate)
    elif first:
        yield f"{first.remedy}."
    elif outcome == "no change shown":
        yield "`ajet forecast JOB` says what stands in the way; or train more steps, and validate on more tasks (eval.episodes)."
    elif outcome == "learned" and change and change.after < SOLVED and _has_signal(run):
        more = shlex.join(
            ["ajet", "run", "--resume", str(run.dir), "--steps", str(2 * _steps(run)[-1]["step"])]
        )
        yield f"Train on, as the reward is not near its end: {more} (the steps in all)."
    if change is None or "validation" not in change.figure:
        yield "With validation tasks (task.validation), a verdict compares the same tasks before and after."


def _steps(run: RecordedRun) -> list[Mapping[str, Any]]:
    """The metrics of each step, in order."""
    return [line for line in run.metrics if line["type"] == "train"]


def _has_signal(run: RecordedRun) -> bool:
    """Whether some of the last groups had different rewards."""
    last = _steps(run)[-RECENT:]
    return statistics.fmean(line.get("groups_zero_advantage", 0.0) for line in last) < 0.9
