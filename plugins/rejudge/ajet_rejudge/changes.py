"""What changes if the episodes of a run are judged anew: rewards, tasks, the credit of each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ajet_rejudge.credit import StepCredit
from ajet_rejudge.judging import Judged

MOST_TAUGHT = 10
"""Episodes that are named."""


@dataclass(frozen=True, slots=True)
class StepChange:
    """The episodes of a phase and step."""

    phase: str
    step: int
    episodes: int
    changed: int
    recorded: float | None
    """The mean of the recorded rewards; None if nothing was judged."""
    true: float | None
    """The mean of the new ones."""
    credit: StepCredit | None
    """None if no training learned from the step, or if its advantages are not known."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        line = {
            name: getattr(self, name) for name in ("phase", "step", "episodes", "changed", "recorded", "true")
        }
        if self.credit is None:
            return line
        credit = {k: v for k, v in asdict(self.credit).items() if k != "push"}
        return {**line, **credit, "wrong_share": round(self.credit.share, 6)}


@dataclass(frozen=True, slots=True)
class Taught:
    """An episode, and what its tokens were pushed by."""

    id: str
    recorded: float | None
    true: float | None
    push: tuple[float, float]
    response: Any

    @property
    def change(self) -> float:
        """By how much the push is another one."""
        return abs(self.push[1] - self.push[0])


@dataclass(slots=True)
class Changes:
    """All of a run."""

    run: Path
    steps: list[StepChange] = field(default_factory=list)
    taught: list[Taught] = field(default_factory=list)
    """The episodes whose push changes most, the first one most."""
    tasks: dict[str, list[int]] = field(default_factory=dict)
    """For each task, how many verdicts change, and of how many."""
    differences: list[float] = field(default_factory=list)
    """New reward less recorded one, where both are there and differ."""
    gained: int = 0
    """Episodes whose recorded judge failed, and which have a verdict now."""
    failing: Counter[str] = field(default_factory=Counter)
    """Episodes on which the new judge fails, by cause."""
    unknown: dict[str, list[str]] = field(default_factory=dict)
    """Why episodes cannot be judged again, with their ids."""
    failed: int = 0
    """Episodes that failed before there was anything to judge."""
    notes: list[str] = field(default_factory=list)
    clean: tuple[Path, int] | None = None
    """The new run folder, and the step after which it goes on."""

    def add(self, step: Sequence[Judged], credit: StepCredit | None) -> None:
        """Count the episodes of a phase and step."""
        judged = [each for each in step if each.has_output]
        self.failed += len(step) - len(judged)
        for each in judged:
            counted = self.tasks.setdefault(each.entry.task, [0, 0])
            counted[0] += each.changed
            counted[1] += not each.unknown
            if each.unknown:
                self.unknown.setdefault(each.unknown, []).append(each.entry.id)
            elif each.new is None:
                self.failing[each.episode.failure or ""] += 1
            elif each.recorded is None:
                self.gained += 1
            elif each.new.reward != each.recorded.reward:
                self.differences.append(each.new.reward - each.recorded.reward)
        known = [each for each in judged if not each.unknown]
        recorded = [each.recorded.reward for each in known if each.recorded]
        true = [each.new.reward for each in known if each.new]
        first = step[0].entry
        self.steps.append(
            StepChange(
                first.phase,
                first.step,
                len(step),
                sum(each.changed for each in step),
                fmean(recorded) if recorded else None,
                fmean(true) if true else None,
                credit,
            )
        )
        if credit:
            new = [
                Taught(
                    each.entry.id,
                    each.recorded.reward if each.recorded else None,
                    each.new.reward if each.new else None,
                    credit.push[each.entry.id],
                    each.episode.output.response,
                )
                for each in known
                if each.entry.id in credit.push
            ]
            both = [each for each in (*self.taught, *new) if each.change > 0]
            self.taught = sorted(both, key=lambda each: -each.change)[:MOST_TAUGHT]

    @property
    def episodes(self) -> int:
        """All that were judged again."""
        return sum(total for _, total in self.tasks.values())

    @property
    def changed(self) -> int:
        """How many verdicts are others, for what training learns."""
        return sum(changed for changed, _ in self.tasks.values())

    @property
    def first_wrong(self) -> StepChange | None:
        """The first training step in which a trained token's advantage had the wrong sign."""
        return next((each for each in self.steps if each.credit and each.credit.wrong), None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        first = self.first_wrong
        return {
            "episodes": self.episodes,
            "changed": self.changed,
            "mean_change": fmean(self.differences) if self.differences else 0.0,
            "gained": self.gained,
            "failing": dict(self.failing),
            "unknown": {why: len(ids) for why, ids in self.unknown.items()},
            "failed": self.failed,
            "tasks": {task: counts for task, counts in self.tasks.items() if counts[0]},
            "first_wrong_step": first.step if first else None,
            "steps": [each.as_dict() for each in self.steps],
            "taught": [asdict(each) for each in self.taught],
            "notes": self.notes,
        }
