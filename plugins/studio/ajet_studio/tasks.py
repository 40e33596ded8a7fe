"""The tasks of a run, as far as its job names plain files: other readers may run code or ask other hosts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ajet.interfaces.base import by_type
from ajet.types import AjetError, Task

MOST_TASKS = 20_000
MOST_BYTES = 64 << 20
"""Of a file of tasks; larger ones are not read."""


def read_tasks(run_dir: Path, job: Mapping[str, Any]) -> dict[str, Task]:
    """The tasks of the job's files, by id; what cannot be read is left out."""
    section = job.get("task")
    if not isinstance(section, Mapping):
        return {}
    found: dict[str, Task] = {}
    for name in ("reader", "validation"):
        spec = by_type(section.get(name))
        if isinstance(spec, Mapping) and spec.get("type") == "jsonl":
            try:
                found |= {task.id: task for task in _tasks(run_dir, job, spec, f"task.{name}")}
            except (AjetError, OSError, ValueError, TypeError):
                continue
    return found


def _tasks(run_dir: Path, job: Mapping[str, Any], spec: Mapping[str, Any], where: str) -> list[Task]:
    from ajet.interfaces.reader import Reader
    from ajet.job.config import Layers
    from ajet.job.prepare import build_plugin

    layers = Layers()
    layers.add(job, "job.yaml", run_dir)
    reader: Any = build_plugin(layers, Reader, spec, where)
    if reader.path.stat().st_size > MOST_BYTES:
        return []
    return list(islice(reader.tasks(), MOST_TASKS))
