"""The guesser to begin with: writes proper expressions, but heeds what it is told in one game of five."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from puzzle import SYSTEM, TRIES, draw, puzzle_id, question, told, written

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript

SIGNS = [(a, b, c) for a in (1, -1) for b in (1, -1) for c in (1, -1) if a + b + c > -3]
HEEDLESS = 0.8
"""Share of the games in which the guesser does not heed what it is told."""


def game(rng: random.Random, heedless: float = 0.0) -> Transcript:
    """Guesses until one is right or the tries are used up: at random, or with reason."""
    numbers, target = draw(rng)
    guess = at_random if rng.random() < heedless else with_reason
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question(numbers, target)},
    ]
    for tried in range(TRIES):
        expression = written(numbers, guess(rng, numbers, target, tried))
        messages.append({"role": "assistant", "content": expression})
        reply = told(expression, numbers, target)
        if not reply or tried == TRIES - 1:
            break
        messages.append({"role": "user", "content": reply})
    return Transcript(messages, tasks=(puzzle_id(numbers, target),))


def at_random(rng: random.Random, numbers: Sequence[int], target: int, tried: int) -> tuple[int, ...]:
    """Signs as they come."""
    return rng.choice(SIGNS)


def with_reason(rng: random.Random, numbers: Sequence[int], target: int, tried: int) -> tuple[int, ...]:
    """All are added first; then those are taken off that are half of what it is too much."""
    if tried == 0:
        return (1, 1, 1)
    right = [signs for signs in SIGNS if sum(s * n for s, n in zip(signs, numbers, strict=True)) == target]
    return rng.choice(right)


def reasonable(rng: random.Random) -> Transcript:
    """A game as it should be played."""
    return game(rng)


def heedless(rng: random.Random) -> Transcript:
    """A game as the guesser is used to play it."""
    return game(rng, HEEDLESS)


def echo(rng: random.Random) -> Transcript:
    """Copying practice: numbers, or an expression of them."""
    numbers, target = draw(rng)
    text = written(numbers, rng.choice(SIGNS)) if rng.random() < 0.5 else ", ".join(map(str, numbers))
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return Transcript(messages, tasks=(puzzle_id(numbers, target),))


class Guesser(TinyRecipe):
    """A guesser that writes proper expressions, mostly with signs as they come."""

    name = "guesser"

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (make(rng) for make in (heedless, reasonable, echo) for _ in range(100))

    def phases(self) -> Sequence[Phase]:
        """Copying, games with reason, habits."""
        return (
            Phase("copy", 400, 2e-3, echo, 2),
            Phase("reason", 240, 2e-3, echo, 8, reasonable),
            Phase("habits", 80, 1e-3, reasonable, 8, heedless),
        )
