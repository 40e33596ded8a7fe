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


def decide(settings: GateSettings, reward: float | None, known: Collection[Version]) -> Decision:
    """Whether a candidate with this validation reward may be published, given the versions before it."""
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
    if reward < best.reward - settings.tolerance:
        return Decision(False, f"{compared}, and gate.tolerance is {settings.tolerance:g}")
    return Decision(True, compared)
