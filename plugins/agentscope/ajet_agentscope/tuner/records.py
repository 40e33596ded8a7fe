"""The records of a data set, as workflow and judge functions get them."""

from __future__ import annotations

from typing import Any, NoReturn

from ajet import ContractBroken, Task


class NoSuchColumn(ContractBroken, KeyError):
    """A function asks for a column that the data set does not have. As every record lacks it, this ends the run."""


class Record(dict[str, Any]):
    """A record of a data set. A column that it does not have is an error that names those that it has."""

    def __missing__(self, column: str) -> NoReturn:
        raise NoSuchColumn(
            f"task[{column!r}]: the data set has no such column; it has {', '.join(map(repr, self)) or 'none'}. "
            "Name one of these in the workflow or the judge, or rename the column."
        )


def record_of(task: Task) -> Record:
    """The record that a task was read from. Of tasks that were not read by `DatasetConfig` it has what the reader has made of
    it, too: ``id``, ``query`` and ``messages``."""
    known: dict[str, Any] = {"query": task.query, "messages": list(task.messages)}
    named = {name: value for name, value in known.items() if value}
    return Record({**({"id": task.id, **named} if named else {}), **task.metadata})
