"""What the loggers of experiment trackers share: sampled episodes, a thread that sends, and the ids by which a resumed run goes on."""

from __future__ import annotations

import importlib.util
import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from pydantic import Field, PrivateAttr, model_validator

from ajet import Logger
from ajet.interfaces.events import CheckpointSaved, EpisodeEnd, RunEnd, RunStart
from ajet.interfaces.helpers import Outbox, write_whole
from ajet.interfaces.logger import Metrics
from ajet.interfaces.progress import current_progress
from ajet_loggers.episodes import EpisodeSample, Row


class Destination(Protocol):
    """A run in a tool. Its methods may wait for the network: one thread calls them, one after the other."""

    def log(self, step: int, metrics: Metrics) -> None:
        """Log the metrics of a step."""
        ...

    def episodes(self, phase: str, step: int, rows: Sequence[Row]) -> None:
        """Log sampled episodes, as rows of `ajet_loggers.episodes.COLUMNS`."""
        ...

    def checkpoint(self, step: int, path: Path) -> None:
        """Log where a checkpoint is, or upload it."""
        ...

    def end(self, failed: bool) -> None:
        """The run has ended: mark how, and flush."""
        ...


class Tool(Logger):
    """Base of loggers that send to an experiment tracker.

    A thread sends, so the run never waits for the tool. What cannot be sent is counted, and the run says so.
    """

    package: ClassVar[str]
    """The module that the tool's extra installs."""

    episodes: int = Field(4, ge=0, description="Episodes of each step and phase that are logged as a table.")
    upload_checkpoints: bool = Field(
        False, description="Upload checkpoints to the tool; otherwise it only learns where they are."
    )
    flush_seconds: float = Field(
        60.0,
        gt=0,
        description="Maximum seconds that the end of a run waits for what is not sent yet; uploads may need more.",
    )
    _outbox: Outbox | None = PrivateAttr(None)
    _connected: Callable[[], Destination] = PrivateAttr()
    _sample: EpisodeSample = PrivateAttr()
    _failed: bool = PrivateAttr(False)

    @model_validator(mode="after")
    def _is_installed(self) -> Self:
        needs(self.package, self.name)
        return self

    @abstractmethod
    def connect(self, event: RunStart) -> Destination:
        """Begin or continue the run in the tool. Called in the thread that sends; called again if it raised."""

    @abstractmethod
    def where(self) -> str:
        """Where the run is logged, as messages name it."""

    @property
    def wants_episodes(self) -> bool:
        """See `Logger.wants_episodes`."""
        return self.episodes > 0

    def run_start(self, event: RunStart) -> None:
        """Begin or continue the run in the tool, with its configuration."""
        self._connected = cache(partial(self.connect, event))
        self._sample, self._failed = EpisodeSample(self.episodes), False
        self._outbox = Outbox(
            f"logger {self.name}", self.where(), current_progress().say, first=self._connected
        )

    def episode_end(self, event: EpisodeEnd) -> None:
        """Keep the episode, if it is one of the sample."""
        if self._outbox is not None and self.wants_episodes:
            self._sample.add(event)

    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        """Hand the metrics, and the episodes that were sampled for them, to the thread that sends."""
        self._put(lambda destination: destination.log(step, dict(metrics)))
        self._put_episodes(step)

    def checkpoint_saved(self, event: CheckpointSaved) -> None:
        """Hand the checkpoint to the thread that sends."""
        self._put(lambda destination: destination.checkpoint(event.step, event.path))

    def run_end(self, event: RunEnd) -> None:
        """Note whether the run failed."""
        self._failed = event.error is not None

    def close(self) -> None:
        """Send what still waits, for ``flush_seconds`` at most, and say how much was not sent."""
        if self._outbox is not None:
            self._put_episodes()
            self._outbox.close(self.flush_seconds, last=lambda: self._connected().end(self._failed))
            self._outbox = None

    def _put_episodes(self, until: int | None = None) -> None:
        for phase, step, rows in self._sample.take(until):
            self._put(partial(_send_episodes, phase, step, rows))

    def _put(self, record: Callable[[Destination], None]) -> None:
        if self._outbox is not None:
            connected = self._connected
            self._outbox.put(lambda: record(connected()))


def _send_episodes(phase: str, step: int, rows: Sequence[Row], destination: Destination) -> None:
    destination.episodes(phase, step, rows)


def needs(package: str, extra: str) -> None:
    """Raises ValueError with the command that installs a package, if it is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # its parent
        spec = None
    if spec is None or spec.origin is None:  # a folder of that name, such as the one that wandb makes
        raise ValueError(
            f"{package} is not installed; it comes with pip install 'ajet-plugin-loggers[{extra}]'"
        )


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of a nested configuration by dotted key."""
    if not isinstance(values, dict) or not values:
        return {prefix: values}
    nested = (flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in values.items())
    return {key: value for part in nested for key, value in part.items()}


RUN_IDS = "loggers.json"
"""The file: an object with the id for each tool."""


def known_id(run_dir: Path, tool: str) -> str | None:
    """The id under which the run folder was logged before, None for a new run."""
    return _read(run_dir).get(tool)


def keep_id(run_dir: Path, tool: str, run_id: str) -> None:
    """Remember the id of the run."""
    write_whole(run_dir / RUN_IDS, json.dumps({**_read(run_dir), tool: run_id}, indent=2))


def _read(run_dir: Path) -> dict[str, str]:
    try:
        ids = json.loads((run_dir / RUN_IDS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return dict(ids)
