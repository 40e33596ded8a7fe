"""Puzzles of reasoning-gym's family `chain_sum`, and its own score as the judge."""

from __future__ import annotations

import random
import zlib
from typing import Any

from pydantic import Field

from ajet import Task
from ajet.interfaces.reader import DrawnReader

FAMILY = "chain_sum"


class Puzzles(DrawnReader):
    """Distinct puzzles for training, or held-out ones: a quarter of all, chosen by a checksum of the expression."""

    name = "chain_sum"
    terms: tuple[int, int] = Field((2, 2), description="The least and the most numbers of a sum.")
    digits: tuple[int, int] = Field((1, 2), description="Their least and most digits.")

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        import reasoning_gym

        options = dict(
            zip(("min_terms", "max_terms", "min_digits", "max_digits"), self.terms + self.digits, strict=True)
        )
        while True:
            entry = reasoning_gym.create_dataset(FAMILY, size=1, seed=rng.randrange(2**31), **options)[0]
            expression = entry["metadata"]["expression"]
            if (zlib.crc32(expression.encode()) % 4 == 0) == self.held_out:
                return Task(expression, entry["question"], metadata={"answer": entry["answer"]})


def judge(task: Any, output: Any) -> float:
    """1 if reasoning-gym gives the answer its full score, else 0; it gives a part for a right number among words."""
    from reasoning_gym import get_score_answer_fn

    return float(get_score_answer_fn(FAMILY)(output.response, task.metadata) == 1)
