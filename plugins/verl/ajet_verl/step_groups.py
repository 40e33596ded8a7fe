"""Which groups of a step are run, and which of them it trains on: dynamic sampling and oversampling.

verl asks for so many groups of a step and waits for as many. With oversampling, more are started, and those that are complete
first are taken. With dynamic sampling, a group whose rewards are all equal is replaced by a further one, up to a limit. As on the
local backbone, but a further group starts as soon as one is needed, not in rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ajet.learning.rollouts import rounded_up


@dataclass(slots=True)
class StepGroups:
    """The groups of one step, by their keys in verl's queue. Keep the record, and start what `missing` says."""

    oversample: float
    most: float
    """Maximum number of started groups for each group that verl has asked for."""
    asked: list[str] = field(default_factory=list)
    """The groups that verl has asked for."""
    running: set[str] = field(default_factory=set)
    taken: list[str] = field(default_factory=list)
    """The groups to train on."""
    skipped: list[str] = field(default_factory=list)
    """Groups that have ended with equal rewards."""
    started: int = 0

    def ask(self, uid: str) -> None:
        """verl asks for a group, which is started."""
        self.asked.append(uid)
        self.start(uid)

    def start(self, uid: str) -> None:
        """A group is started."""
        self.running.add(uid)
        self.started += 1

    def end(self, uid: str, *, useful: bool) -> list[str]:
        """A group has ended; it is useful if its rewards differ, or if that does not matter. Returns it if it is taken."""
        self.running.remove(uid)
        (self.taken if useful else self.skipped).append(uid)
        return [uid] if useful else []

    @property
    def missing(self) -> int:
        """How many further groups to start now."""
        needed = len(self.asked) - len(self.taken)
        wanted = rounded_up(needed * self.oversample) - len(self.running)
        return max(0, min(wanted, rounded_up(len(self.asked) * self.most) - self.started))

    @property
    def is_over(self) -> bool:
        """Whether the step has its groups, or can get no others."""
        return len(self.taken) == len(self.asked) or not (self.running or self.missing)

    def fill(self) -> list[str]:
        """Take skipped groups in place of those that are missing; returns them."""
        count = len(self.asked) - len(self.taken)
        found, self.skipped = self.skipped[:count], self.skipped[count:]
        self.taken += found
        return found
