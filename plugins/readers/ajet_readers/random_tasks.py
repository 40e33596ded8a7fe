"""Dummy tasks, for trying a workflow or testing a plugin without any data."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pydantic import Field

from ajet import Reader, Task


class RandomTasks(Reader):
    """Seeded dummy tasks with answers: "Which is larger, 12 or 7?".

    Task ``i`` of a seed does not depend on the count, so a larger count only adds tasks.
    """

    name = "random"

    count: int = Field(default=16, ge=1, description="Number of tasks.")
    seed: int = Field(default=0, description="Random seed; another seed gives other tasks with other ids.")

    def tasks(self) -> Iterator[Task]:
        for index in range(self.count):
            first, second = random.Random(f"{self.seed}:{index}").sample(range(1, 100), 2)
            yield Task(
                id=f"random-{self.seed}-{index}",
                query=f"Which is larger, {first} or {second}?",
                metadata={"answer": str(max(first, second))},
            )
