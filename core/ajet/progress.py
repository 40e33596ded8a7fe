"""What long work tells its user; the command line draws it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ajet.types import Metrics


class Progress(Protocol):
    """Calls come from several threads and must return at once."""

    def started(self, run_dir: Path) -> None:
        """The run is kept in this folder."""
        ...

    def say(self, text: str) -> None:
        """One line to read."""
        ...

    def stage(self, name: str, fraction: float, metrics: Metrics) -> None:
        """Some preparation has come so far (0 to 1)."""
        ...

    def episodes(self, phase: str, done: int, total: int) -> None:
        """So many episodes of the current phase have ended."""
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
