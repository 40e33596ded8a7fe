"""How long a whole run takes, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ajet_advice.speed import Range


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a run without its validations, and without what is left out of a step's seconds."""

    steps: int
    seconds: Range
    """Of all steps."""
    gpus: int
    """That are paid for."""
    price: float | None
    """Of one GPU for an hour; None: not asked for."""

    @classmethod
    def of(cls, steps: int, low: float, high: float, gpus: int, price: float | None) -> Cost:
        """The cost of steps that take ``low`` to ``high`` seconds each."""
        return cls(steps, Range(steps * low, steps * high), gpus, price)

    @property
    def money(self) -> Range | None:
        """In the currency of the price."""
        if self.price is None:
            return None
        each = self.gpus * self.price / 3600
        return Range(self.seconds.low * each, self.seconds.high * each)

    def __str__(self) -> str:
        unit, seconds = ("minutes", 60) if self.seconds.middle < 2 * 3600 else ("hours", 3600)
        time = f"{_range(Range(self.seconds.low / seconds, self.seconds.high / seconds))} {unit}"
        return f"{time}, {_range(self.money)} at {self.price:g} a GPU hour" if self.money else time

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        money = self.money
        return {
            "steps": self.steps,
            "hours": {"low": self.seconds.low / 3600, "high": self.seconds.high / 3600},
            "cost": money and {"low": money.low, "high": money.high},
        }


def _range(bounds: Range) -> str:
    text = str(bounds)
    low, _, high = text.partition("–")
    return low if low == high else text
