"""The Countdown puzzles of `examples/countdown` with four numbers."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "countdown"))
import puzzle

from ajet import Reader, Task

COUNT = 4


def draw(rng: random.Random) -> tuple[list[int], int]:
    """A solvable puzzle that is not held out."""
    while True:
        numbers = [rng.choice(puzzle.NUMBERS) for _ in range(COUNT)]
        target = sum(n * rng.choice([1, -1]) for n in numbers)
        if target in puzzle.TARGETS and not puzzle.held_out(numbers, target):
            return numbers, target


puzzle.draw = draw
# The agent and the recipe import from it.
import recipe  # noqa: E402
from agent import run as run  # noqa: E402
from puzzle import judge as judge  # noqa: E402

recipe.SIGNS = [signs for signs in itertools.product((1, -1), repeat=COUNT) if sum(signs) > -COUNT]


def _all_plus_first(rng: random.Random, numbers: Any, target: int, tried: int) -> tuple[int, ...]:
    """All plus at first; then signs that reach the target, as the hint shows them."""
    if tried == 0:
        return (1,) * COUNT
    return rng.choice(
        [signs for signs in recipe.SIGNS if sum(s * n for s, n in zip(signs, numbers, strict=True)) == target]
    )


recipe.with_reason = _all_plus_first


class FourNumbers(Reader):
    """Distinct puzzles: either only held-out ones, or none of them."""

    name = "four_numbers"
    count: int
    seed: int = 0
    held_out: bool = False

    def tasks(self) -> Iterator[Task]:
        """See `Reader.tasks`."""
        rng = random.Random(f"four {self.seed}")
        found: dict[str, Task] = {}
        while len(found) < self.count:
            numbers = [rng.choice(puzzle.NUMBERS) for _ in range(COUNT)]
            target = sum(n * rng.choice([1, -1]) for n in numbers)
            name = puzzle.puzzle_id(numbers, target)
            if target in puzzle.TARGETS and puzzle.held_out(numbers, target) == self.held_out:
                plain = {"numbers": numbers, "target": target}
                found[name] = Task(name, puzzle.question(**plain), metadata={"entry": {"metadata": plain}})
        return iter(found.values())


class FourGuesser(recipe.Guesser):
    """A guesser of four signs."""

    name = "four_guesser"
