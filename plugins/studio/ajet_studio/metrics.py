"""The metrics of a run, read as far as they can be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.rollout.recorder import superseded, surviving
from ajet_studio.lines import NotALine, finite, parse_whole


@dataclass(frozen=True, slots=True)
class Metrics:
    """The lines of a metrics file that count, and what is wrong with others."""

    lines: Sequence[Mapping[str, Any]]
    problems: Sequence[str]

    def of(self, phase: str) -> list[Mapping[str, Any]]:
        """The lines of a phase, by step; the last one of each step."""
        found = {line["step"]: line for line in self.lines if line["type"] == phase}
        return [line for _, line in sorted(found.items())]

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
