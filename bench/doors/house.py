"""A house in which one answer decides: one door leads to the treasure, and the ways behind it matter little."""

from __future__ import annotations

import random

from pydantic import Field

from ajet import Task
from ajet.interfaces.reader import DrawnReader

SYSTEM = "Choose a door, then walk."
DOORS = ("red", "green", "blue", "white")
"""The first one is right."""
WAYS = ("north", "east", "south", "west")
WORDS = ("sun", "moon", "star", "tree")
NOTE = 12
"""Words of a note."""
FOR_DOOR = 0.8
"""Reward of the right door."""
FOR_WAYS = 0.2
"""Reward of going north in every room; each room has an equal share of it."""


def questions(house: int, rooms: int, notes: bool) -> list[str]:
    """What the agent reads before each of its answers."""
    first = [f"House {house}. Write a note."] if notes else []
    walk = [f"Room {number}. Where to?" for number in range(1, rooms + 1)]
    return [*first, f"House {house}. Which door?", *walk]


def best(question: str) -> tuple[str, float]:
    """The answer to a question that has a reward, and the reward, in rooms that of all of them together; no answer if none has.
    Rewards add up, so the true advantage of an answer is its reward less the mean of this under the model."""
    if question.endswith("note."):
        return "", 0.0
    return (DOORS[0], FOR_DOOR) if question.endswith("door?") else (WAYS[0], FOR_WAYS)


class Houses(DrawnReader):
    """Houses with numbers."""

    name = "houses"
    rooms: int = Field(7, ge=1, description="Rooms behind the door.")
    notes: bool = Field(False, description="Whether a note, which nothing depends on, comes before the door.")

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        house = rng.randrange(10, 10_000)
        return Task(str(house), metadata={"house": house, "rooms": self.rooms, "notes": self.notes})
