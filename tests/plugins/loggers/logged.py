"""What a tool has of a run, beside what the run folder has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ajet.rollout.recorder import JOURNAL, METRICS, live_lines
from ajet.types import Metrics


@dataclass(frozen=True)
class Logged:
    """A run, read back from a tool."""

    config: Mapping[str, Any]
    metrics: Mapping[int, Metrics]
    tables: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]
    """The rows of sampled episodes by phase and step."""
    checkpoints: Mapping[int, str]


def recorded(run_dir: Path) -> dict[int, Metrics]:
    """The figures in ``metrics.jsonl`` by step, under the names that loggers get."""
    steps: dict[int, Metrics] = {}
    for line in live_lines(run_dir / METRICS):
        kind, step = line.pop("type"), line.pop("step")
        prefix = {"train": "", "validation": "validation/"}.get(kind, f"validation/{kind}_")
        steps.setdefault(step, {}).update({f"{prefix}{name}": value for name, value in line.items()})
    return steps


def job_of(run_dir: Path) -> dict[str, Any]:
    """The resolved job in the run folder."""
    job = yaml.safe_load((run_dir / "job.yaml").read_text())
    assert isinstance(job, dict)
    return job


def same_as_the_run_folder(logged: Logged, run_dir: Path) -> None:
    """The tool has each figure, each checkpoint, and of each step as many episodes as there are, up to four."""
    assert logged.config == job_of(run_dir)
    assert logged.metrics == recorded(run_dir)
    assert logged.metrics.keys() == {0, 1, 2} and "reward" in logged.metrics[2]
    episodes = {line["id"]: line for line in live_lines(run_dir / JOURNAL)}
    phases = {(line["phase"], line["step"]) for line in episodes.values()}
    assert (
        logged.tables.keys() == phases == {("train", 1), ("train", 2), *(("validation", s) for s in range(3))}
    )
    for (phase, step), rows in logged.tables.items():
        assert len(rows) == {"train": 4, "validation": 2}[phase]
        for row in rows:
            line = episodes[row["episode"]]
            assert (line["phase"], line["step"], line["task"]) == (phase, step, row["task"])
            assert row["reward"] == line["reward"] == 1.0 and row["failure"] is None
            question = "held out" if phase == "validation" else "?"
            assert row["messages"] == f"[user]\n{question}\n\n[assistant]\n4" and row["response"] == "4"
    folders = sorted((run_dir / "checkpoints").iterdir())
    assert logged.checkpoints == {step: str(path) for step, path in enumerate(folders, start=1)}


def nested(flat: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """A nested object of values by their path."""
    whole: dict[str, Any] = {}
    for (*path, last), value in flat.items():
        at = whole
        for key in path:
            at = at.setdefault(key, {})
        at[last] = value
    return whole


def rows_of(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a table that is stored as ``columns`` and ``data``."""
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def load(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
