"""How long-running work reports its progress; the command line displays it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from ajet.types import Metrics

LOG = "run.log"
"""The file of the run folder that has what a run has said, with the times."""


class Progress(Protocol):
    """Calls come from several threads and must return at once."""

    def started(self, run_dir: Path) -> None:
        """The run's folder is this one."""
        ...

    def say(self, text: str) -> None:
        """One line to read."""
        ...

    def stage(self, name: str, fraction: float, metrics: Metrics) -> None:
        """How far some preparation is (0 to 1)."""
        ...

    def episodes(self, phase: str, done: int, total: int) -> None:
        """How many episodes of the current phase have ended."""
        ...

    def step(self, step: int, total: int, metrics: Metrics) -> None:
        """A training step is done."""
        ...


class Silent:
    """Says nothing."""

    def started(self, run_dir: Path) -> None: ...
    def say(self, text: str) -> None: ...
    def stage(self, name: str, fraction: float, metrics: Metrics) -> None: ...
    def episodes(self, phase: str, done: int, total: int) -> None: ...
    def step(self, step: int, total: int, metrics: Metrics) -> None: ...


_current: ContextVar[Progress] = ContextVar("ajet_progress", default=Silent())  # noqa: B039 - no state


def current_progress() -> Progress:
    """Where plugins report: long-running work before a job runs, such as a reader that generates tasks, and what happens
    in loggers and hooks during a run."""
    return _current.get()


@contextmanager
def reporting_to(progress: Progress) -> Iterator[None]:
    """A block whose `current_progress` is this one."""
    token = _current.set(progress)
    try:
        yield
    finally:
        _current.reset(token)
