"""The walker to begin with: heads for the goal, whatever lies in between."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from lake import MOST_STEPS, MOVES, SIZE, STEPS, SYSTEM, beside, make_map, to_task, told

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript

STRAYS = 0.2
"""Share of the steps that go anywhere."""


def walk(rng: random.Random) -> Transcript:
    """A walk towards the goal that does not mind holes."""
    rows = make_map(rng)
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    row = column = 0
    for _ in range(MOST_STEPS):
        move = _move(rng, row, column)
        messages += [
            {"role": "user", "content": told(rows, row * SIZE + column)},
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
    """Practice in looking: which direction has what."""
    rows = make_map(rng)
    place = rng.randrange(SIZE * SIZE)
    row, column = divmod(place, SIZE)
    thing = rng.choice(["ice", "hole", "edge"])
    found = [move for move in MOVES if beside(rows, row, column, move) == thing]
    question = f"{told(rows, place)}. Where is {thing}?"
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": ", ".join(found) or "nowhere"},
    ]
    return Transcript(messages, tasks=(to_task(rows).id,))


class Walker(TinyRecipe):
    """A walker that heads for the goal, whatever lies in between."""

    name = "walker"

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (make(rng) for make in (walk, look) for _ in range(100))

    def phases(self) -> Sequence[Phase]:
        """Looking, then walking."""
        return (Phase("look", 240, 2e-3, look, 1), Phase("walk", 120, 1e-3, look, 4, walk))
