"""What a search may spend, and what it has spent."""

from __future__ import annotations

from dataclasses import dataclass


class SearchEnded(BaseException):
    """The search is over; the text says why. Not an Exception: GEPA catches those, and calls again what raised them."""


@dataclass(slots=True)
class Budget:
    """Limits of a search; None: no limit. What an earlier process of the search has done counts, too."""

    reflections: int
    episodes: int | None
    cost: float | None
    reflected: int = 0
    """Calls of the reflection model."""
    ran: int = 0
    """Episodes."""

    def reflect(self) -> None:
        """One more call of the reflection model. Raises SearchEnded if there is none left."""
        if self.reflected >= self.reflections:
            raise SearchEnded(f"all {self.reflections} reflections are used (backbone.prompts.reflections)")
        self.reflected += 1

    def run(self, episodes: int) -> None:
        """So many more episodes. Raises SearchEnded if there are fewer left."""
        if self.episodes is not None and self.ran + episodes > self.episodes:
            raise SearchEnded(
                f"{self.ran} episodes have run, and the next {episodes} would exceed {self.episodes} (backbone.prompts.episodes)"
            )
        self.ran += episodes

    def pay(self, spent: float) -> None:
        """Something that costs comes next. Raises SearchEnded if ``spent`` is already the limit."""
        if self.cost is not None and spent >= self.cost:
            raise SearchEnded(f"{spent:.4g} of {self.cost:g} are spent (backbone.prompts.cost)")
