"""The gate: whether a candidate may be published, by its reward on the validation tasks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ajet_online.schema import Stage
from ajet_online.settings import GateSettings
from ajet_online.versions import Version


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gate says of a candidate."""

    publish: bool
    text: str


def decide(
    settings: GateSettings, reward: float | None, known: Collection[Version], error: float = 0.0
) -> Decision:
    """Whether a candidate with this validation reward may be published, given the versions before it. ``error`` is the
    standard error of the reward.

    With few validation tasks, a fixed tolerance of a few hundredths would reject one candidate after the other for a single
    task, and training would stand still."""
    if reward is None:
        return Decision(True, "no validation tasks")
    if settings.threshold is not None and reward < settings.threshold:
        return Decision(
            False, f"validation reward {reward:.3f} is below gate.threshold {settings.threshold:g}"
        )
    published = [v for v in known if v.stage == Stage.PUBLISHED and v.reward is not None]
    best = max(published, key=lambda version: version.reward or 0.0, default=None)
    if best is None or best.reward is None:
        return Decision(True, f"validation reward {reward:.3f}")
    compared = f"validation reward {reward:.3f}, version {best.number} has {best.reward:.3f}"
    allowed = 2 * error if settings.tolerance is None else settings.tolerance
    if reward < best.reward - allowed:
        what = "two standard errors are" if settings.tolerance is None else "gate.tolerance is"
        return Decision(False, f"{compared}, and {what} {allowed:.3g}")
    return Decision(True, compared)
