"""Tasks: pictures with one mark, whose colour is the answer."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

from ajet import Task
from ajet.interfaces.reader import DrawnReader
from ajet_local.starter.shapes import draw


class Marks(DrawnReader):
    """Distinct pictures: either only held-out ones, or none of them."""

    name = "marks"

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        shape = draw(rng, validation=self.held_out)
        return Task(repr(shape), metadata={"shape": asdict(shape), "answer": shape.colour})


def colour(task: Any, output: Any) -> float:
    """1 for the right colour."""
    return float(output.response == task.metadata["answer"])
