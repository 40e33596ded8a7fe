"""What a run has learned beyond chance, which alarms it raised, and what to try next."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ajet.learning.alarms import Alarm, describe
from ajet.reports.folder import Entry, Run
from ajet.runs.alarms import recorded_alarms
from ajet.utils.paired import mean_and_error, sign_flip
from ajet.utils.pass_at_k import Z

SIGNIFICANT = 0.05
POWER = 2.8
"""Standard errors of a change that a test at 5 % finds in 80 % of cases: 1.96 + 0.84."""
LEAST_STEPS = 6
SOLVED = 0.95


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
    """The p-value: of `sign_flip` for tasks, of a normal distribution for training steps."""
    count: int
    """Tasks, or training steps."""
    solved: int = 0
    """Tasks that got better."""
    lost: int = 0
    """Tasks that got worse."""

    @property
    def interval(self) -> tuple[float, float]:
        """Of the gain."""
        return self.gain - Z * self.error, self.gain + Z * self.error


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a run."""

    outcome: Literal["learned", "unlearned", "worse", "unknown"]
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
        found = self.change
        if found is None:
            return "there are neither two validations nor enough training steps to compare"
        low, high = found.interval
        chance = f"p {'< 0.001' if found.p < 0.001 else f'= {found.p:.2g}'}"
        moved = f", {found.solved} tasks better, {found.lost} worse" if found.solved or found.lost else ""
        told = (
            f"{found.figure} {found.before:.3f} → {found.after:.3f}, a change of {found.gain:+.3f} "
            f"({low:+.3f} to {high:+.3f}), {chance}{moved}"
        )
        if self.outcome == "unlearned":
            told += (
                f". That is within chance: only a change of about {POWER * found.error:.2f} would have shown"
            )
        return told


def verdict_of(run: Run) -> Verdict | None:
    """The verdict on a run folder; None if nothing was trained there."""
    trained = [line for line in run.metrics if line["type"] == "train" and "reward" in line]
    if not trained:
        return None
    alarms = recorded_alarms(run.job, list(run.metrics))
    change = _validated(run.entries) or _trained(trained)
    if change is None:
        outcome: Literal["learned", "unlearned", "worse", "unknown"] = "unknown"
    elif change.p >= SIGNIFICANT:
        outcome = "unlearned"
    else:
        outcome = "learned" if change.gain > 0 else "worse"
    return Verdict(outcome, change, alarms, tuple(_advice(run.dir, outcome, change, alarms)))


def _validated(entries: Sequence[Entry]) -> Change | None:
    """The same tasks in the first and the last validation; None without two of them. A failed episode has not succeeded;
    where only rewards are given, it is left out."""
    episodes = [e for e in entries if e.phase == "validation"]
    steps = sorted({e.step for e in episodes})
    if len(steps) < 2:
        return None
    judged = [e.is_success for e in episodes if e.failure is None]
    by_success = bool(judged) and all(success is not None for success in judged)
    before, after = (_by_task(episodes, step, by_success) for step in (steps[0], steps[-1]))
    tasks = [task for task in before if task in after]
    if len(tasks) < 2:
        return None
    changes = [after[task] - before[task] for task in tasks]
    gain, error = mean_and_error(changes)
    return Change(
        f"{'accuracy' if by_success else 'reward'} on {len(tasks)} validation tasks",
        statistics.fmean(before[task] for task in tasks),
        statistics.fmean(after[task] for task in tasks),
        gain,
        error or 0.0,
        sign_flip(changes),
        len(tasks),
        sum(change > 0 for change in changes),
        sum(change < 0 for change in changes),
    )


def _by_task(episodes: Sequence[Entry], step: int, by_success: bool) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for e in episodes:
        if e.step == step and (by_success or e.failure is None):
            values.setdefault(e.task, []).append(float(bool(e.is_success)) if by_success else e.reward)
    return {task: statistics.fmean(found) for task, found in values.items()}


def _trained(lines: Sequence[Mapping[str, float]]) -> Change | None:
    """The rewards of the first and of the last steps, whose tasks may differ; None if there are too few."""
    if len(lines) < LEAST_STEPS:
        return None
    count = max(LEAST_STEPS // 2, len(lines) // 5)
    parts = [[line["reward"] for line in part] for part in (lines[:count], lines[-count:])]
    (before, e0), (after, e1) = map(mean_and_error, parts)
    error = math.hypot(e0 or 0.0, e1 or 0.0)
    p = math.erfc(abs(after - before) / error / math.sqrt(2)) if error else float(after == before)
    figure = f"reward of the first and the last {count} steps, whose tasks may differ,"
    return Change(figure, before, after, after - before, error, p, count)


def _advice(run_dir: Path, outcome: str, change: Change | None, alarms: Sequence[Alarm]) -> Iterator[str]:
    if alarms:
        yield f"{alarms[0].remedy}."
    elif outcome == "worse":
        yield "Lower train.learning_rate, or set train.kl, and keep the best checkpoint (train.keep_best)."
    elif outcome == "unlearned":
        yield "`ajet forecast JOB` says what stands in the way; or train more steps, and validate on more tasks (eval.episodes)."
    elif outcome == "learned" and change and change.after < SOLVED:
        yield f"Train on, as the reward is not near its end: ajet run --resume {run_dir} --steps N."
    if change is None or "validation" not in change.figure:
        yield "With validation tasks (task.validation), a verdict compares the same tasks before and after."
