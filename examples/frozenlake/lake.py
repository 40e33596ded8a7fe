"""Gymnasium's frozen lakes, described in words."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Any

from ajet import Task
from ajet.interfaces.reader import DrawnReader

SYSTEM = "Cross the ice. Answer left, down, right or up."
MAX_STEPS = 10
SIZE = 4
MOVES = ("left", "down", "right", "up")
"""The index of a move is Gymnasium's number of the action."""
STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
CELLS = {"S": "ice", "F": "ice", "H": "hole", "G": "goal"}


def held_out(rows: Sequence[str]) -> bool:
    """Whether a map is kept for validation, by a hash of its content: a quarter of all are."""
    return zlib.crc32("".join(rows).encode()) % 4 == 0


def make_map(rng: random.Random, *, validation: bool = False) -> list[str]:
    """A map with a path to the goal, either for training or held out."""
    from gymnasium.envs.toy_text.frozen_lake import generate_random_map

    while True:
        rows = generate_random_map(size=SIZE, p=0.75, seed=rng.randrange(2**31))
        if held_out(rows) == validation:
            return [str(row) for row in rows]


def to_task(rows: Sequence[str]) -> Task:
    """The map as a task."""
    return Task("/".join(rows), metadata={"map": list(rows)})


def beside(rows: Sequence[str], row: int, column: int, move: str) -> str:
    """What is in a direction: ice, hole, goal, or edge."""
    r, c = row + STEPS[move][0], column + STEPS[move][1]
    return CELLS[rows[r][c]] if 0 <= r < len(rows) and 0 <= c < len(rows) else "edge"


def description(rows: Sequence[str], position: int) -> str:
    """The surroundings of a position (Gymnasium's observation), and the way to the goal."""
    row, column = divmod(position, len(rows))
    around = ", ".join(f"{move} {beside(rows, row, column, move)}" for move in MOVES)
    last = len(rows) - 1
    return f"{around}; goal {last - row} down {last - column} right"


class Lake:
    """A FrozenLake-v1 world of Gymnasium."""

    def __init__(self, rows: Sequence[str], *, slippery: bool = False) -> None:
        import gymnasium

        self.rows = list(rows)
        self.world: Any = gymnasium.make("FrozenLake-v1", desc=self.rows, is_slippery=slippery)

    def reset(self, seed: int) -> str:
        """Start a game; returns the description of the first position."""
        position, _ = self.world.reset(seed=seed)
        return description(self.rows, int(position))

    def step(self, move: str) -> tuple[str, float, bool]:
        """(description after a move, reward: 1 at the goal, whether the game is over)."""
        position, reward, terminated, truncated, _ = self.world.step(MOVES.index(move))
        return description(self.rows, int(position)), float(reward), bool(terminated or truncated)


class Lakes(DrawnReader):
    """Distinct maps: either only held-out ones, or none of them."""

    name = "lakes"

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        return to_task(make_map(rng, validation=self.held_out))
