"""The deals of roles, as tasks, and the judge of a game: every player has a reward of its own."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping
from typing import Literal

from game import role_list
from pydantic import Field

from ajet import EpisodeView, Judge, JudgeOutput, Task, WorkflowOutput
from ajet.interfaces.reader import DrawnReader

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ida")
PLAYERS = 7


def deal(rng: random.Random, players: int = PLAYERS, *, held_out: bool = False) -> dict[str, str]:
    """Players in the order of their seats, with their roles: a deal either for training or held out."""
    while True:
        roles = role_list(players)
        rng.shuffle(roles)
        found = dict(zip(rng.sample(NAMES, players), roles, strict=True))
        if is_held_out(found) == held_out:
            return found


def task_id(roles: Mapping[str, str]) -> str:
    """A deal in words."""
    return " ".join(f"{name}-{role}" for name, role in roles.items())


def is_held_out(roles: Mapping[str, str]) -> bool:
    """Whether a deal is kept for validation, by a hash of its content: a quarter of all are."""
    return zlib.crc32(task_id(roles).encode()) % 4 == 0


class Deals(DrawnReader):
    """Distinct deals: either only held-out ones, or none of them."""

    name = "deals"
    players: int = Field(PLAYERS, ge=5, le=len(NAMES), description="How many play.")

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        roles = deal(rng, self.players, held_out=self.held_out)
        return Task(task_id(roles), f"A game of {self.players}.", metadata={"roles": roles})


class Winner(Judge):
    """Each player's reward is 1 if its side wins; the episode's is that of one side."""

    name = "winner"
    side: Literal["wolves", "village"] = Field("wolves", description="Whose win is the episode's reward.")

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        """See `Judge.judge`. The players' names are those of the agents, such as `wolf-Ada`."""
        winner: str = output.response["winner"]
        won = {
            f"{role}-{name}": float((role == "wolf") == (winner == "wolves"))
            for name, role in task.metadata["roles"].items()
        }
        return JudgeOutput(float(winner == self.side), winner == self.side, rewards=won)
