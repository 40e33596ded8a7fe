"""The untrained guesser: it writes valid expressions, but uses the hints in only one game of five."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from puzzle import SYSTEM, TRIES, draw, hint, puzzle_id, question, written

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript

SIGNS = [(a, b, c) for a in (1, -1) for b in (1, -1) for c in (1, -1) if a + b + c > -3]
HEEDLESS = 0.8
"""Share of the games in which the guesser ignores the hints."""


def game(rng: random.Random, heedless: float = 0.0) -> Transcript:
    """Guesses until one is right or no try is left, either at random or by the hints."""
    numbers, target = draw(rng)
    guess = at_random if rng.random() < heedless else with_reason
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question(numbers, target)},
    ]
    for tried in range(TRIES):
        expression = written(numbers, guess(rng, numbers, target, tried))
        messages.append({"role": "assistant", "content": expression})
        reply = hint(expression, numbers, target)
        if not reply or tried == TRIES - 1:
            break
        messages.append({"role": "user", "content": reply})
    return Transcript(messages, tasks=(puzzle_id(numbers, target),))


def at_random(rng: random.Random, numbers: Sequence[int], target: int, tried: int) -> tuple[int, ...]:
    """Random signs."""
    return rng.choice(SIGNS)


def with_reason(rng: random.Random, numbers: Sequence[int], target: int, tried: int) -> tuple[int, ...]:
    """All plus at first; then signs that reach the target, as the hint shows them."""
    if tried == 0:
        return (1, 1, 1)
    right = [signs for signs in SIGNS if sum(s * n for s, n in zip(signs, numbers, strict=True)) == target]
    return rng.choice(right)


def reasonable(rng: random.Random) -> Transcript:
    """A game that uses the hints."""
    return game(rng)


def heedless(rng: random.Random) -> Transcript:
    """A game as the untrained guesser plays it."""
    return game(rng, HEEDLESS)


def echo(rng: random.Random) -> Transcript:
    """Practice in copying numbers, or an expression of them."""
    numbers, target = draw(rng)
    text = written(numbers, rng.choice(SIGNS)) if rng.random() < 0.5 else ", ".join(map(str, numbers))
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return Transcript(messages, tasks=(puzzle_id(numbers, target),))


class Guesser(TinyRecipe):
    """A guesser that writes valid expressions, mostly with random signs."""

    name = "guesser"

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (make(rng) for make in (heedless, reasonable, echo) for _ in range(100))

    def phases(self) -> Sequence[Phase]:
        """Copying, games that use the hints, habits."""
        return (
            Phase("copy", 400, 2e-3, echo, 2),
            Phase("reason", 240, 2e-3, echo, 8, reasonable),
            Phase("habits", 80, 1e-3, reasonable, 8, heedless),
        )
