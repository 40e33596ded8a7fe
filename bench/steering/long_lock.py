"""Locks of ten dials, each with its own code, whose dials say how to turn them. An untrained burglar mostly does not mind it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import lock

from ajet_local.starter.transcripts import Transcript

lock.DIALS = 10
OBEYS = 0.2
"""The share of the dials that the untrained burglar turns as they say; the others he turns at random."""


def code(number: int) -> Sequence[str]:
    """What opens a lock."""
    return random.Random(number).choices(lock.TURNS, k=lock.DIALS)


def question(number: int, dial: int) -> str:
    """What the agent reads before it turns a dial."""
    return f"Lock {number}, dial {dial} says {code(number)[dial]}."


def guess(rng: random.Random, number: int, dial: int) -> str:
    """How the untrained burglar turns a dial."""
    return code(number)[dial] if rng.random() < OBEYS else rng.choice(lock.TURNS)


def reading(rng: random.Random) -> Transcript:
    """Practice in reading dials."""
    number, dial = rng.randrange(10, 100), rng.randrange(lock.DIALS)
    asked = f"{question(number, dial)} Which way?"
    return Transcript(
        [{"role": "user", "content": asked}, {"role": "assistant", "content": code(number)[dial]}]
    )


lock.code, lock.question, lock.guess, lock.reading = code, question, guess, reading
Locks, run = lock.Locks, lock.run


class LongBurglar(lock.Burglar):
    """A burglar who can read what dials say, and mostly turns them at random."""

    name = "long_burglar"
