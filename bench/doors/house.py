"""A house with a decisive first step: the sign says which door leads to the treasure, and the words on the way matter little."""

from __future__ import annotations

import random

from ajet import Task
from ajet.interfaces.reader import DrawnReader

SYSTEM = "Choose a door, then walk."
SIGNS = ("sun", "moon", "star", "tree")
DOORS = ("red", "green", "blue", "white")
WAYS = ("north", "east", "south", "west")
ROOMS = 7
FOR_DOOR = 0.8
"""Reward of the right door."""
FOR_WAYS = 0.2
"""Reward of going north in every room; each room has an equal share of it."""


def right_door(sign: str) -> str:
    """Each door is right for one sign."""
    return DOORS[SIGNS.index(sign)]


def worth(sign: str, number: int, answer: str) -> float:
    """What an answer adds to the reward, whatever the others are: so its true advantage is this less its mean under the model."""
    if number == 0:
        return FOR_DOOR * (answer == right_door(sign))
    return FOR_WAYS / ROOMS * (answer == WAYS[0])


def question(sign: str, house: int, number: int) -> str:
    """What the agent reads before an answer."""
    return f"House {house}. The sign says {sign}. Which door?" if number == 0 else f"Room {number}. Where to?"


class Houses(DrawnReader):
    """Houses with a sign."""

    name = "houses"

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        sign, house = rng.choice(SIGNS), rng.randrange(10, 1000)
        return Task(f"{sign}-{house}", question(sign, house, 0), metadata={"sign": sign, "house": house})
