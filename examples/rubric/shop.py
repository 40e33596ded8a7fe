"""A shop's letters: customers' complaints, and the sentences of replies."""

from __future__ import annotations

import random
import zlib

from ajet import Task
from ajet.interfaces.reader import DrawnReader

SYSTEM = "You answer the letters of customers."
THINGS = (
    "lamp", "chair", "clock", "kettle", "radio", "teapot", "mirror", "blanket",
    "bottle", "drill", "fan", "globe", "harp", "iron", "jug", "kite",
)  # fmt: skip
FAULTS = ("broken", "late", "dirty", "scratched", "the wrong colour", "too small")
NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ida", "Jon",
    "Kim", "Lea", "Max", "Nora", "Otis", "Pia", "Quinn", "Rosa", "Sam", "Tess",
)  # fmt: skip

GOOD = (
    "Dear {name},",
    "we are sorry about the {thing}.",
    "We will send a new {thing} today.",
    "Please keep the old one.",
    "Kind regards, your shop",
)
"""The sentences of a good reply, in order."""
BAD = ("It was your own fault.", "Buy more now!")
"""Sentences that a good reply does not contain."""


def letter(name: str, thing: str, fault: str) -> str:
    """The customer's letter."""
    return f"My {thing} is {fault}. {name}"


def held_out(text: str) -> bool:
    """Whether a letter is kept for validation, by a hash of its text: a quarter of all are."""
    return zlib.crc32(text.encode()) % 4 == 0


def draw(rng: random.Random, *, validation: bool = False) -> tuple[str, str, str]:
    """(name, thing, fault) of a random letter, either for training or held out."""
    while True:
        found = rng.choice(NAMES), rng.choice(THINGS), rng.choice(FAULTS)
        if held_out(letter(*found)) == validation:
            return found


class Letters(DrawnReader):
    """Distinct letters of customers: either only held-out ones, or none of them."""

    name = "letters"

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        text = letter(*draw(rng, validation=self.held_out))
        return Task(text, text)
