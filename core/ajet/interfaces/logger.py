"""A logger sends the metrics of each step to another tool, in addition to the run folder."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from ajet.interfaces.base import Plugin
from ajet.interfaces.events import EpisodeEnd, RunStart
from ajet.types import Metrics


class Logger(Plugin):
    """Base of loggers. An exception is reported once and never ends a run."""

    def run_start(self, event: RunStart) -> None:
        """The run begins or is resumed: log its configuration."""

    def episode_end(self, event: EpisodeEnd) -> None:
        """An episode has been recorded: log its reward, messages or tokens."""

    @abstractmethod
    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        """Log the metrics of one step."""

    def close(self) -> None:
        """Flush what is buffered."""
