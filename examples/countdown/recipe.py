"""The guesser to begin with: writes proper expressions, with signs as they come."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from puzzle import SYSTEM, TRIES, draw, puzzle_id, question, value, written

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript

SIGNS = [(a, b, c) for a in (1, -1) for b in (1, -1) for c in (1, -1) if a + b + c > -3]


def guesses(rng: random.Random) -> Transcript:
    """Guesses at random, until one is right or the tries are used up."""
    numbers, target = draw(rng)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question(numbers, target)},
    ]
    for tried in range(TRIES):
        expression = written(numbers, rng.choice(SIGNS))
        messages.append({"role": "assistant", "content": expression})
        if value(expression) == target or tried == TRIES - 1:
            break
        messages.append({"role": "user", "content": f"That is {value(expression)}."})
    return Transcript(messages, tasks=(puzzle_id(numbers, target),))


def echo(rng: random.Random) -> Transcript:
    """Copying practice: numbers, or an expression of them."""
    numbers, target = draw(rng)
    text = written(numbers, rng.choice(SIGNS)) if rng.random() < 0.5 else ", ".join(map(str, numbers))
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return Transcript(messages, tasks=(puzzle_id(numbers, target),))


class Guesser(TinyRecipe):
    """A guesser that writes proper expressions, with signs as they come."""

    name = "guesser"

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (make(rng) for make in (guesses, echo) for _ in range(100))

    def phases(self) -> Sequence[Phase]:
        """Copying, then guessing."""
        return (Phase("copy", 400, 2e-3, echo, 2), Phase("guess", 240, 2e-3, echo, 8, guesses))
