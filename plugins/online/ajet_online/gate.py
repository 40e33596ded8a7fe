"""The gate: whether a candidate may be published, by its reward on the validation tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ajet_online.schema import Stage
from ajet_online.settings import GateSettings
from ajet_online.versions import Version

RECENT = 10
"""How many published versions a candidate is compared with."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a validation says of a version. A failed episode counts as 0, or as the lowest reward that a version has got if that is
    lower, so that no version looks better by failing."""

    reward: float
    error: float
    """The reward's standard error."""
    episodes: int
    failed: int
    lowest: float
    """The lowest reward so far; 0 if none was lower."""

    @classmethod
    def of(cls, metrics: Mapping[str, float], known: Sequence[Version]) -> Measured | None:
        """``metrics`` are those of a validation, {} without one; ``known`` the versions that were measured before."""
        if not metrics:
            return None
        before = [version.report.get("validation_lowest", 0.0) for version in known]
        lowest = min(0.0, metrics.get("reward_min", 0.0), *before)
        episodes, failed = int(metrics["episodes"]), int(metrics["episodes_failed"])
        mean, spread = metrics.get("reward", 0.0), metrics.get("reward_std", 0.0)
        share = failed / episodes
        reward = (1 - share) * mean + share * lowest
        variance = (1 - share) * (spread**2 + (mean - reward) ** 2) + share * (lowest - reward) ** 2
        return cls(reward, (variance / episodes) ** 0.5, episodes, failed, lowest)

    def report(self) -> dict[str, float]:
        """What the store keeps."""
        return {
            "validation": self.reward,
            "validation_failed": self.failed,
            "validation_lowest": self.lowest,
        }

    def __str__(self) -> str:
        failed = f" ({self.failed} of {self.episodes} episodes failed)" if self.failed else ""
        return f"validation reward {self.reward:.3f}{failed}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gate says of a candidate."""

    publish: bool
    text: str


def decide(settings: GateSettings, measured: Measured | None, known: Sequence[Version]) -> Decision:
    """Whether a candidate may be published, given what its validation says and the versions before it, in their order.

    The candidate is compared with version 0 and with the mean of the last published versions. The highest reward of many
    versions would be a matter of luck, and once a lucky version was published, all others would be rejected.
    """
    if measured is None:
        return Decision(True, "no validation tasks")
    if measured.failed == measured.episodes:
        return Decision(False, f"all {measured.episodes} validation episodes failed")
    if not (math.isfinite(measured.reward) and math.isfinite(measured.error)):
        return Decision(False, f"{measured} cannot be compared")
    if settings.threshold is not None and measured.reward < settings.threshold:
        return Decision(False, f"{measured} is below gate.threshold {settings.threshold:g}")
    published = [(v.number, v.reward) for v in known if v.stage == Stage.PUBLISHED and v.reward is not None]
    if not published:
        return Decision(True, str(measured))
    (number, first), recent = published[0], fmean(reward for _, reward in published[-RECENT:])
    compared = f"{measured}, version {number} has {first:.3f}, the last published ones {recent:.3f}"
    allowed = 2 * measured.error if settings.tolerance is None else settings.tolerance
    if measured.reward < max(first, recent) - allowed:
        what = "two standard errors are" if settings.tolerance is None else "gate.tolerance is"
        return Decision(False, f"{compared}, and {what} {allowed:.3g}")
    return Decision(True, compared)
