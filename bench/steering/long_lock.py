"""Locks of ten dials, each with its own code, whose dials say how to turn them. An untrained burglar was shown some that
mind it, and does not: one guess in 1024 is right.

    python bench/steering/long_lock.py > demonstrations.jsonl      # of all locks to train with, for rollout.steer.demonstrations
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import lock

from ajet_local.starter.transcripts import Transcript

lock.DIALS = 10
OBEYS = 0.2
"""The share of the dials that they turn as the dials say; the others at random."""


def code(number: int) -> Sequence[str]:
    """What opens a lock."""
    return random.Random(number).choices(lock.TURNS, k=lock.DIALS)


def question(number: int, dial: int) -> str:
    """What the agent reads before it turns a dial."""
    return f"Lock {number}, dial {dial} says {code(number)[dial]}."


def guess(rng: random.Random, number: int, dial: int) -> str:
    """How the burglars turn a dial that the untrained one is shown."""
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
    """A burglar who can read what dials say, and turns them at random."""

    name = "long_burglar"


def main() -> None:
    for number in range(10, 70):
        messages = [{"role": "system", "content": lock.SYSTEM}]
        for dial, turn in enumerate(code(number)):
            messages += [
                {"role": "user", "content": question(number, dial)},
                {"role": "assistant", "content": turn},
            ]
        print(json.dumps({"task": str(number), "messages": messages}))


if __name__ == "__main__":
    main()
