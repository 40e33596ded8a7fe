"""The gate: whether a candidate may be published, by its reward on the validation tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ajet_online.schema import Stage
from ajet_online.settings import GateSettings
from ajet_online.versions import Version

RECENT = 10
"""How many published versions a candidate is compared with."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gate says of a candidate."""

    publish: bool
    text: str


def decide(
    settings: GateSettings, reward: float | None, known: Sequence[Version], error: float = 0.0
) -> Decision:
    """Whether a candidate with this validation reward may be published, given the versions before it, in their order.
    ``error`` is the standard error of the reward.

    The candidate is compared with version 0 and with the mean of the last published versions. The highest reward of many
    versions would be a matter of luck, and once a lucky version was published, all others would be rejected.
    """
    if reward is None:
        return Decision(True, "no validation tasks")
    if settings.threshold is not None and reward < settings.threshold:
        return Decision(
            False, f"validation reward {reward:.3f} is below gate.threshold {settings.threshold:g}"
        )
    published = [(v.number, v.reward) for v in known if v.stage == Stage.PUBLISHED and v.reward is not None]
    if not published:
        return Decision(True, f"validation reward {reward:.3f}")
    (number, first), recent = published[0], fmean(reward for _, reward in published[-RECENT:])
    compared = f"validation reward {reward:.3f}, version {number} has {first:.3f}, the last published ones {recent:.3f}"
    allowed = 2 * error if settings.tolerance is None else settings.tolerance
    if reward < max(first, recent) - allowed:
        what = "two standard errors are" if settings.tolerance is None else "gate.tolerance is"
        return Decision(False, f"{compared}, and {what} {allowed:.3g}")
    return Decision(True, compared)
