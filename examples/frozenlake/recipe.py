"""The untrained walker: it heads for the goal and ignores holes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from lake import MAX_STEPS, MOVES, SIZE, STEPS, SYSTEM, beside, description, make_map, to_task

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript

STRAYS = 0.2
"""Share of the steps in a random direction."""


def walk(rng: random.Random) -> Transcript:
    """A walk towards the goal that ignores holes."""
    rows = make_map(rng)
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    row = column = 0
    for _ in range(MAX_STEPS):
        move = _move(rng, row, column)
        messages += [
            {"role": "user", "content": description(rows, row * SIZE + column)},
            {"role": "assistant", "content": move},
        ]
        met = beside(rows, row, column, move)
        if met in ("hole", "goal"):
            break
        if met == "ice":
            row, column = row + STEPS[move][0], column + STEPS[move][1]
    return Transcript(messages, tasks=(to_task(rows).id,))


def _move(rng: random.Random, row: int, column: int) -> str:
    towards = [move for move, open_ in (("down", row < SIZE - 1), ("right", column < SIZE - 1)) if open_]
    return rng.choice(list(MOVES) if rng.random() < STRAYS else towards)


def look(rng: random.Random) -> Transcript:
    """Practice in reading descriptions: which directions have ice, a hole or an edge."""
    rows = make_map(rng)
    position = rng.randrange(SIZE * SIZE)
    row, column = divmod(position, SIZE)
    thing = rng.choice(["ice", "hole", "edge"])
    found = [move for move in MOVES if beside(rows, row, column, move) == thing]
    question = f"{description(rows, position)}. Where is {thing}?"
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": ", ".join(found) or "nowhere"},
    ]
    return Transcript(messages, tasks=(to_task(rows).id,))


class Walker(TinyRecipe):
    """A walker that heads for the goal and ignores holes."""

    name = "walker"

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (make(rng) for make in (walk, look) for _ in range(100))

    def phases(self) -> Sequence[Phase]:
        """Looking, then walking."""
        return (Phase("look", 240, 2e-3, look, 1), Phase("walk", 120, 1e-3, look, 4, walk))
