"""A house in which one answer decides: the sign says which door leads to the treasure, and the words on the way matter little."""

from __future__ import annotations

import random

from pydantic import Field

from ajet import Task
from ajet.interfaces.reader import DrawnReader

SYSTEM = "Choose a door, then walk."
SIGNS = ("sun", "moon", "star", "tree")
DOORS = ("red", "green", "blue", "white")
"""Each is the right one for one sign."""
WAYS = ("north", "east", "south", "west")
NOTE = 12
"""Words of a note."""
FOR_DOOR = 0.8
"""Reward of the right door."""
FOR_WAYS = 0.2
"""Reward of going north in every room; each room has an equal share of it."""


def questions(sign: str, house: int, rooms: int, notes: bool) -> list[str]:
    """What the agent reads before each of its answers."""
    first = [f"House {house}. Write a note."] if notes else []
    walk = [f"Room {number}. Where to?" for number in range(1, rooms + 1)]
    return [*first, f"House {house}. The sign says {sign}. Which door?", *walk]


def best(sign: str, question: str) -> tuple[str, float]:
    """The answer to a question that has a reward, and how much, for a single room; no answer if none has. Rewards add up, so the
    true advantage of an answer is its reward less the mean of this under the model."""
    if question.endswith("note."):
        return "", 0.0
    return (DOORS[SIGNS.index(sign)], FOR_DOOR) if question.endswith("door?") else (WAYS[0], FOR_WAYS)


class Houses(DrawnReader):
    """Houses with a sign."""

    name = "houses"
    rooms: int = Field(7, ge=1, description="Rooms behind the door.")
    notes: bool = Field(False, description="Whether a note, which nothing depends on, comes before the door.")

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        sign, house = rng.choice(SIGNS), rng.randrange(10, 1000)
        given = {"sign": sign, "house": house, "rooms": self.rooms, "notes": self.notes}
        return Task(f"{sign}-{house}", metadata=given)
