"""A logger takes the metrics of each step to some tool, besides the run folder."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from ajet.interfaces.base import Plugin
from ajet.types import Metrics


class Logger(Plugin):
    """Base of loggers. An exception is reported once and never ends a run."""

    @abstractmethod
    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        """Take the metrics of one step."""

    def close(self) -> None:
        """Flush what is buffered."""
