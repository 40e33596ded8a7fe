"""Countdown puzzles of reasoning-gym: combine three numbers by plus and minus to reach a target."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from ajet import Reader, Task

NUMBERS = range(1, 31)
TARGETS = range(1, 91)
PER_SEED = 100_000
"""Puzzles per seed. reasoning-gym draws puzzle i of seed s from s + i, so our seeds are multiplied by this number."""
SYSTEM = "Use each number once, with + and -."
TRIES = 3
EXPRESSION = re.compile(r"-?\d+( [+-] \d+)*")


def held_out(numbers: Sequence[int], target: int) -> bool:
    """Whether a puzzle is kept for validation, by a hash of its content: a quarter of all are."""
    return zlib.crc32(puzzle_id(numbers, target).encode()) % 4 == 0


def puzzle_id(numbers: Sequence[int], target: int) -> str:
    """An id that does not depend on the order of the numbers."""
    return f"{target}={'_'.join(map(str, sorted(numbers)))}"


def question(numbers: Sequence[int], target: int) -> str:
    """The puzzle in words."""
    return f"Make {target} from {', '.join(map(str, numbers))}."


def value(expression: str) -> int | None:
    """The value of a chain of sums and differences; None for anything else."""
    if not EXPRESSION.fullmatch(expression.strip()):
        return None
    return sum(int(term) for term in re.findall(r"-?\d+", expression.replace(" ", "")))


def uses(expression: str, numbers: Sequence[int]) -> bool:
    """Whether an expression uses each number once."""
    return sorted(map(int, re.findall(r"\d+", expression))) == sorted(numbers)


def hint(expression: str, numbers: Sequence[int], target: int) -> str:
    """The reply to an expression; empty if it is right. With the right numbers, the error is always even, so the hint
    gives its half, which shows the signs to change: ``That is 68, twice 14 too much.``"""
    found = value(expression)
    if found is None or not uses(expression, numbers):
        return "Use each number once."
    if found == target:
        return ""
    return f"That is {found}, twice {abs(found - target) // 2} too {'much' if found > target else 'little'}."


def written(numbers: Sequence[int], signs: Sequence[int]) -> str:
    """``12 + 3 - 5``: the numbers with these signs, positive ones first, else in the given order."""
    terms = sorted(zip(numbers, signs, strict=True), key=lambda term: term[1] < 0)
    first = f"{'-' if terms[0][1] < 0 else ''}{terms[0][0]}"
    return first + "".join(f" {'-' if sign < 0 else '+'} {number}" for number, sign in terms[1:])


def draw(rng: random.Random) -> tuple[list[int], int]:
    """A solvable puzzle that is not held out."""
    while True:
        numbers = [rng.choice(NUMBERS) for _ in range(3)]
        target = sum(n * rng.choice([1, -1]) for n in numbers)
        if target in TARGETS and not held_out(numbers, target):
            return numbers, target


def judge(task: Any, output: Any) -> bool:
    """Whether reasoning-gym accepts the last expression."""
    from reasoning_gym import get_score_answer_fn

    return float(get_score_answer_fn("countdown")(str(output.response), task.metadata["entry"])) == 1.0


class Puzzles(Reader):
    """Distinct puzzles of reasoning-gym's `countdown`: either only held-out ones, or none of them."""

    name = "puzzles"
    count: int
    seed: int = 0
    held_out: bool = False

    def tasks(self) -> Iterator[Task]:
        """See `Reader.tasks`."""
        import reasoning_gym

        source = reasoning_gym.create_dataset(
            "countdown",
            min_numbers=3,
            max_numbers=3,
            min_value=NUMBERS[0],
            max_value=NUMBERS[-1],
            min_target=TARGETS[0],
            max_target=TARGETS[-1],
            operators=("+", "-"),
            seed=self.seed * PER_SEED,
            size=PER_SEED,
        )
        found: dict[str, Task] = {}
        for index in range(PER_SEED):
            entry = source[index]
            puzzle = entry["metadata"]
            name = puzzle_id(puzzle["numbers"], puzzle["target"])
            if held_out(puzzle["numbers"], puzzle["target"]) == self.held_out and name not in found:
                plain = {"numbers": list(puzzle["numbers"]), "target": int(puzzle["target"])}
                found[name] = Task(name, question(**plain), metadata={"entry": {"metadata": plain}})
            if len(found) == self.count:
                break
        return iter(found.values())
