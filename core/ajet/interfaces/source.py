"""Episodes that are not in a run folder, such as those in the database of a service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class EpisodeSource(ABC):
    """Episodes that `ajet studio` shows as if they were a run's. Its methods may be called from any thread, and raise AjetError if
    the source cannot be reached."""

    name: str
    """What the page calls it. It must not contain a password."""

    @abstractmethod
    def update(self, folder: Path) -> bool:
        """Write what is new into the files of a run in ``folder``: ``job.yaml``, ``metrics.jsonl``, ``episodes.jsonl`` and
        ``tokenizer/``. Returns whether there is more to write, so that one call takes less than a second. The folder is empty at
        first. A journal only grows: a line ``{"type": "replaced", "ids": […]}`` removes earlier episodes."""

    @abstractmethod
    def ratings(self, episode: str) -> Sequence[Mapping[str, Any]]:
        """The feedback on an episode, oldest first: each has ``rating`` (-1 bad to 1 good, or None), ``comment``, ``correction`` and
        ``time`` (ISO 8601)."""

    @abstractmethod
    def rate(self, episode: str, rating: float | None, comment: str, correction: str) -> None:
        """Store feedback on an episode. Texts may be empty."""

    def tables(self) -> Mapping[str, Sequence[Mapping[str, str | float | None]]]:
        """What the page shows of the source besides episodes: tables by title, each of rows with the same columns. Times are in ISO
        8601."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Close connections."""
