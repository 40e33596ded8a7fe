"""Readers: where the tasks of a job come from."""

from __future__ import annotations

from ajet import Reader, hookimpl
from ajet_readers.jsonl import JsonLines
from ajet_readers.random_tasks import RandomTasks

__all__ = ["JsonLines", "RandomTasks"]


@hookimpl
def ajet_readers() -> list[type[Reader]]:
    return [JsonLines, RandomTasks]
