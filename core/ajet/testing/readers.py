"""A conformance check for readers, for plugin authors' tests."""

from __future__ import annotations

import json
import pickle

from ajet.reader import Reader, read_all
from ajet.types import Task


def check_reader(reader: Reader) -> list[Task]:
    """Assert that a reader keeps to its contract; its tasks, for checks of your own.

    Ids are unique, a second reading and a reader from another process give the same tasks in the same order,
    and a task can be written as JSON, as it travels to journals and subprocesses. Raises AssertionError
    naming the task, or what the reader itself raises.
    """
    tasks = read_all(reader, reader.name)
    assert list(reader.tasks()) == tasks, f"{reader.name}: a second reading gave other tasks"
    again: Reader = pickle.loads(pickle.dumps(reader))
    assert list(again.tasks()) == tasks, f"{reader.name}: a copy of the reader gave other tasks"
    for task in tasks:
        where = f"{reader.name}: task {task.id!r}"
        assert isinstance(task.id, str) and task.id.strip(), f"{where}: its id is no text"
        assert task.query or task.messages or task.metadata, f"{where}: it holds nothing"
        try:
            json.dumps([task.query, task.messages, dict(task.metadata)])
        except (TypeError, ValueError) as error:
            raise AssertionError(f"{where}: cannot be written as JSON: {error}") from None
    return tasks
