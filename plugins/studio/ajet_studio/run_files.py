"""What a run folder tells besides its journal: the tasks, the metrics, and when it ran."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from ajet import AjetError, Task
from ajet.interfaces.base import by_type
from ajet.rollout.recorder import superseded, surviving
from ajet_studio.lines import NotALine, Times, finite, parse_times, parse_whole

MOST_TASKS = 20_000
MOST_BYTES = 64 << 20
"""Of a file of tasks; larger ones are not read."""
_EDGE = 4 << 20
"""Bytes at each end of a journal in which its first and its last episode are looked for."""
Span = tuple[float, float]
_STAMP = re.compile(r"\d{8}-\d{6}")


def read_tasks(run_dir: Path, job: Mapping[str, Any]) -> dict[str, Task]:
    """The tasks of a run, by id, as far as its job names plain files: other readers may run code or ask other hosts. What cannot be
    read is left out."""
    section = job.get("task")
    if not isinstance(section, Mapping):
        return {}
    tasks: dict[str, Task] = {}
    for name in ("reader", "validation"):
        spec = by_type(section.get(name))
        if isinstance(spec, Mapping) and spec.get("type") == "jsonl":
            try:
                tasks |= {task.id: task for task in _tasks(run_dir, job, spec, f"task.{name}")}
            except (AjetError, OSError, ValueError, TypeError):
                continue
    return tasks


def _tasks(run_dir: Path, job: Mapping[str, Any], spec: Mapping[str, Any], where: str) -> list[Task]:
    from ajet.interfaces.reader import Reader
    from ajet.job.config import Layers
    from ajet.job.parts import build_plugin

    layers = Layers()
    layers.add(job, "job.yaml", run_dir)
    reader: Any = build_plugin(layers, Reader, spec, where)
    about = reader.path.stat()
    # A pipe has no end, nor have some files of /dev and /proc, whose size is 0.
    if not stat.S_ISREG(about.st_mode) or not 0 < about.st_size <= MOST_BYTES:
        return []
    return list(islice(reader.tasks(), MOST_TASKS))


@dataclass(frozen=True, slots=True)
class Metrics:
    """The lines of a metrics file that count, and what is wrong with others."""

    lines: Sequence[Mapping[str, Any]]
    problems: Sequence[str]

    def of(self, phase: str) -> list[Mapping[str, Any]]:
        """The lines of a phase, by step; the last one of each step."""
        by_step = {line["step"]: line for line in self.lines if line["type"] == phase}
        return [line for _, line in sorted(by_step.items())]

    def phases(self) -> list[str]:
        """The phases that have metrics, in the order of their first lines."""
        return list(dict.fromkeys(line["type"] for line in self.lines))


def read_metrics(path: Path) -> Metrics:
    """Read a metrics file; empty if there is none. What cannot be read is reported in the problems."""
    problems: list[str] = []
    try:
        lines = surviving(_lines(path, problems), superseded, lambda line: (line["step"], None))
    except FileNotFoundError:
        return Metrics((), ())
    except OSError as error:
        return Metrics((), (f"{path.name}: {error.strerror}",))
    return Metrics(lines, problems)


def _lines(path: Path, problems: list[str]) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.endswith(b"\n"):  # still being written, or cut off by a kill
                return
            try:
                line = finite(parse_whole(raw))
            except NotALine as error:
                problems.append(f"{path.name}: line {number}: {error}; it is left out")
                continue
            if _fits(line):
                yield line
            else:
                problems.append(
                    f"{path.name}: line {number}: not a line of metrics: {json.dumps(line)[:100]}; it is left out"
                )


def _fits(line: Any) -> bool:
    if not isinstance(line, dict) or not isinstance(line.get("type"), str):
        return False
    return isinstance(line.get("from_step" if line["type"] == "superseded" else "step"), int)


def began(run_dir: Path, journal: Span) -> float:
    """When a run began, in seconds since 1970: when its first episode did, else by the name of its folder; 0 if neither says it.
    Times of files are not asked: copies of a run have others."""
    stamp = _STAMP.search(run_dir.resolve().name)
    if stamp and not journal[0]:
        with suppress(ValueError):
            return datetime.strptime(stamp[0], "%Y%m%d-%H%M%S").timestamp()
    return journal[0]


def span_of(journal: Path) -> Span:
    """When the first episode of a journal began, and when the last one ended, in seconds since 1970; zeros if it does not say so."""
    try:
        with journal.open("rb") as file:
            return _times(file, last=False)[0], _times(file, last=True)[1]
    except OSError:
        return 0.0, 0.0


def _times(file: BinaryIO, *, last: bool) -> Span:
    """Begin and end of the first or last whole line that has them, not far from that end of the file; else zeros."""
    size = file.seek(0, os.SEEK_END)
    for reach in (_EDGE >> 6, _EDGE):
        file.seek(max(0, size - reach) if last else 0)
        lines = file.read(reach).splitlines(keepends=True)
        for raw in reversed(lines) if last else lines:
            with suppress(NotALine):
                times = parse_times(raw) if raw.endswith(b"\n") else Times("")
                if times.type == "episode" and times.started:
                    return times.started, times.started + (times.seconds or 0.0)
    return 0.0, 0.0
