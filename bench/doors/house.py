"""A house in which one answer decides what can be learned: which door is right is the same everywhere; which card wins is luck."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ajet import Task
from ajet.interfaces.reader import DrawnReader

SYSTEM = "Choose a door and say what you see, then draw a card."
DOORS = ("red", "green", "blue", "white")
RIGHT = DOORS[0]
WORDS = ("sun", "moon", "star", "tree")
"""What there is behind doors, and on cards."""
SEEN = 32
"""Words after the door, on which nothing depends: the answer that decides is long, and what comes after it short."""
FOR_DOOR, FOR_CARD = 0.3, 0.9
"""Rewards, which add up. So the true advantage of an answer is its reward less the mean of this under the model."""


def questions(house: int) -> Sequence[str]:
    """What the agent reads before its two answers."""
    return f"House {house}. Which door?", "Which card?"


def wanted(lucky: str) -> Sequence[tuple[str, float]]:
    """The first word for which each answer is rewarded, and the reward."""
    return (RIGHT, FOR_DOOR), (lucky, FOR_CARD)


class Houses(DrawnReader):
    """Houses with numbers, and a lucky card that the agent does not know."""

    name = "houses"

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        house = rng.randrange(10, 10_000)
        return Task(str(house), metadata={"house": house, "lucky": rng.choice(WORDS)})
