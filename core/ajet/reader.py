"""A reader yields the tasks of a job."""

from __future__ import annotations

import hashlib
import json
import random
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ajet.base import Plugin
from ajet.types import ConfigError, Task


class Reader(Plugin):
    """Base of readers: the same configuration always yields the same tasks in the same order."""

    @abstractmethod
    def tasks(self) -> Iterable[Task]:
        """Yield tasks. Raise ConfigError with file and line where the data is bad."""


def content_id(record: Mapping[str, Any]) -> str:
    """A stable id for a record that has none: 12 hex digits over its canonical JSON."""
    text = json.dumps(record, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_all(reader: Reader, where: str) -> list[Task]:
    """All tasks of a reader. Raises ConfigError on a duplicate id or when there is no task."""
    tasks: list[Task] = []
    seen: set[str] = set()
    for task in reader.tasks():
        if task.id in seen:
            raise ConfigError(
                f"{where}: duplicate task id {task.id!r}. Ids must be unique: rename one or drop the repeat."
            )
        seen.add(task.id)
        tasks.append(task)
    if not tasks:
        raise ConfigError(f"{where}: the reader {reader.name!r} yielded no task. Check its path and filters.")
    return tasks


def tasks_of_step(tasks: Sequence[Task], step: int, batch_size: int, seed: int) -> list[Task]:
    """The tasks of a step, a pure function of its number, so that resuming needs no other state.

    Every epoch is a permutation of its own, seeded by (seed, epoch).
    """
    first = step * batch_size
    chosen = []
    for position in range(first, first + batch_size):
        epoch, offset = divmod(position, len(tasks))
        order = list(range(len(tasks)))
        random.Random(f"{seed}:{epoch}").shuffle(order)
        chosen.append(tasks[order[offset]])
    return chosen
