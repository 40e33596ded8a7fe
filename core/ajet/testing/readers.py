"""A conformance check for readers, for plugin authors' tests."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import subprocess
import sys

from ajet.interfaces.reader import Reader, read_all
from ajet.types import Task

_SECONDS = 300
_ELSEWHERE = """
import os, pickle, sys
to = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # what the reader prints
sys.path[:] = pickle.load(sys.stdin.buffer)
reader = pickle.load(sys.stdin.buffer)
pickle.dump(list(reader.tasks()), to)
"""


def check_reader(reader: Reader) -> list[Task]:
    """Assert that a reader fulfils its contract; return its tasks, for checks of your own.

    Ids are unique; a second reading and a copy in another process, where sets and hashes have another order, give
    the same tasks in the same order; and a task can be written as JSON, because journals and subprocesses need that.
    Raises AssertionError naming the task, or what the reader itself raises.
    """
    tasks = read_all(reader, reader.name)
    _check_same(list(reader.tasks()), tasks, f"{reader.name}: a second reading")
    for task in tasks:
        where = f"{reader.name}: task {task.id!r}"
        assert isinstance(task.id, str) and task.id.strip(), f"{where}: its id is not a non-empty text"
        assert task.query or task.messages or task.metadata, f"{where}: it is empty"
        try:
            json.dumps([task.query, task.messages, dict(task.metadata)])
        except (TypeError, ValueError) as error:
            raise AssertionError(f"{where}: cannot be written as JSON: {error}") from None
    _check_same(_read_elsewhere(reader), tasks, f"{reader.name}: a copy in another process")
    return tasks


def _check_same(again: list[Task], tasks: list[Task], what: str) -> None:
    for index, (one, other) in enumerate(zip(again, tasks, strict=False)):
        assert one == other, (
            f"{what} returned another task at index {index}: {one.id!r} instead of {other.id!r}"
        )
    assert len(again) == len(tasks), f"{what} returned {len(again)} tasks instead of {len(tasks)}"


def _read_elsewhere(reader: Reader) -> list[Task]:
    """The tasks that a pickled copy yields in a new process, where texts have other hashes; in this process if the
    reader's module cannot be imported by its name."""
    pickled = pickle.dumps(reader)
    if not _can_be_imported(type(reader).__module__):
        copy: Reader = pickle.loads(pickled)
        return list(copy.tasks())
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE],
        input=pickle.dumps(sys.path) + pickled,
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        timeout=_SECONDS,
    )
    said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    assert done.returncode == 0, f"{reader.name}: it cannot be read in another process: {said}"
    tasks: list[Task] = pickle.loads(done.stdout)
    return tasks


def _can_be_imported(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
