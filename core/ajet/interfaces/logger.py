"""A logger sends the metrics of each step to another tool, in addition to the run folder."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from ajet.interfaces.base import Plugin
from ajet.types import Metrics


class Logger(Plugin):
    """Base of loggers. An exception is reported once and never ends a run."""

    @abstractmethod
    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        """Log the metrics of one step."""

    def close(self) -> None:
        """Flush what is buffered."""
