"""A logger sends what happens in a run to another tool, in addition to the run folder."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Self

from ajet.interfaces.base import Plugin
from ajet.interfaces.events import CheckpointSaved, EpisodeEnd, RunEnd, RunStart
from ajet.types import Metrics as Metrics


class Logger(Plugin):
    """Base of loggers. An exception is reported once and never ends a run.

    The run waits for each method, so one that needs the network does its work in the background (`Outbox` in
    `ajet.interfaces.helpers` helps). Only one process at a time writes into a run folder, and only this process calls the loggers.
    """

    kind = "logger"

    @classmethod
    def unnamed(cls) -> Self | None:
        """The logger of a job that does not name it, or None: jobs get it only by naming it."""
        return None

    @property
    def wants_episodes(self) -> bool:
        """Whether `episode_end` does anything. If nothing in a run wants episodes, their timelines are not built."""
        return type(self).episode_end is not Logger.episode_end

    def run_start(self, event: RunStart) -> None:
        """The run begins or is resumed: log its configuration."""

    def episode_end(self, event: EpisodeEnd) -> None:
        """An episode has been recorded: log its reward, messages or tokens."""

    @abstractmethod
    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        """Log the metrics of one step."""

    def checkpoint_saved(self, event: CheckpointSaved) -> None:
        """A checkpoint is complete on the disk: log where it is."""

    def run_end(self, event: RunEnd) -> None:
        """The run has ended: log how. `close` follows."""

    def close(self) -> None:
        """Flush what is buffered. The same logger may be given another run afterwards."""
