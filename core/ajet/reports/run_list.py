"""The runs of a folder, a line for each."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ajet.reports.folder import read_job, untrained_kind
from ajet.reports.labels import number
from ajet.reports.run_summary import run_head, step_rows
from ajet.rollout.recorder import METRICS, live_lines
from ajet.types import AjetError, ConfigError
from ajet.utils.terminal import table


@dataclass(frozen=True, slots=True)
class RunLine:
    """What a list says of a run. A figure is that of the first and of the last step that has one."""

    run: str
    """Its folder."""
    name: str | None = None
    tags: tuple[str, ...] = ()
    state: str = "unreadable"
    """live, finished, interrupted, failed or unreadable."""
    why: str = ""
    """Why it failed or cannot be read."""
    steps: int = 0
    """Training steps done."""
    steps_wanted: int = 0
    """0 if none is wanted, or if the number is not known."""
    reward: tuple[float, float] | None = None
    validation: tuple[float, float] | None = None
    """Accuracy, or reward if no verdict says success."""
    model: str = ""
    backbone: str = ""
    algorithm: str = ""
    learning_rate: float | None = None

    @property
    def trains(self) -> bool:
        """Whether it is not a check, a forecast, an evaluation or a run of the backbone debug."""
        return self.backbone != "debug"

    @property
    def kind(self) -> str:
        """What it did in place of training: check, forecast, eval or debug; empty if it trained."""
        return "" if self.trains else untrained_kind(self.run) or self.backbone


def list_runs(
    folder: Path, *, name: str | None = None, tags: Collection[str] = (), everything: bool = False
) -> list[RunLine]:
    """The runs in a folder, the newest first; without ``everything``, only those that train. ``name`` keeps those whose own name, or
    folder's name, contains it, and ``tags`` those that have all of them. Raises ConfigError if ``folder`` is not a folder."""
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: no such folder. `ajet run` makes the folder runs where it is started; change to there, or name another one."
        )
    lines = [
        run_line(path) for path in sorted(folder.iterdir(), reverse=True) if (path / "job.yaml").is_file()
    ]
    return [
        line
        for line in lines
        if (everything or line.trains)
        and {*tags} <= {*line.tags}
        and (name is None or name in Path(line.run).name or name in (line.name or ""))
    ]


def run_line(run_dir: Path) -> RunLine:
    """The line of a run folder in any state."""
    try:
        job, metrics = read_job(run_dir), live_lines(run_dir / METRICS)
        rows, _ = step_rows(metrics)
        told, state = run_head(run_dir, job, metrics)
        return RunLine(
            **told,
            state=state.name,
            why=state.why,
            reward=_first_and_last([row.reward for row in rows]),
            validation=_first_and_last([row.validation for row in rows]),
            learning_rate=(job.get("train") or {}).get("learning_rate"),
        )
    except AjetError as error:
        return RunLine(str(run_dir), why=str(error))


def _first_and_last(values: Sequence[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    return (known[0], known[-1]) if known else None


def run_table(lines: Sequence[RunLine]) -> list[list[str]]:
    """A table of the columns that are not empty, with a head."""
    columns = {
        "run": [line.run for line in lines],
        "state": [line.state for line in lines],
        "steps": [_steps(line) for line in lines],
        "reward": [_both(line.reward) for line in lines],
        "validation": [_both(line.validation) for line in lines],
        "model": [line.model.rstrip("/").rpartition("/")[2] for line in lines],
        "algorithm": [line.algorithm if line.trains else line.kind for line in lines],
        "learning rate": [
            f"{line.learning_rate:g}" if line.learning_rate and line.trains else "" for line in lines
        ],
        "tags": [", ".join(line.tags) for line in lines],
    }
    used = {head: cells for head, cells in columns.items() if any(cells)}
    return [list(used), *map(list, zip(*used.values(), strict=True))]


def describe_runs(lines: Sequence[RunLine]) -> str:
    """The table as text, why runs failed, and what not to conclude from it."""
    return "\n".join([table(run_table(lines), most=sys.maxsize), *_reasons(lines), *_caveat(lines)])


def _caveat(lines: Sequence[RunLine]) -> Iterator[str]:
    if any(line.reward and not line.validation for line in lines):
        yield (
            "A reward is that of the first and of the last step, which have other tasks. With --validation, a run shows whether the "
            "model is better."
        )


def _reasons(lines: Sequence[RunLine]) -> Iterator[str]:
    for line in lines:
        if line.why:
            yield f"{Path(line.run).name} {line.state}: {line.why}"


def _steps(line: RunLine) -> str:
    if not line.trains:
        return ""
    return f"{line.steps} / {line.steps_wanted}" if line.steps_wanted else str(line.steps)


def _both(figures: tuple[float, float] | None) -> str:
    return " → ".join(dict.fromkeys(map(number, figures))) if figures else ""
