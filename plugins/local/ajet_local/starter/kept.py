"""What an interrupted build of a small model has left, from which the next one continues to the same weights."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ajet import AjetError
from ajet.rollout.checkpoints import CHECKPOINTS, restore, write_checkpoint

if TYPE_CHECKING:
    from ajet.interfaces.progress import Progress
    from ajet_local.trainer import LocalTrainer

KEEP_EVERY = 20.0
"""Seconds of training that an interruption costs at most, for models whose checkpoint is written within a second."""
TASKS_FILE = "tasks.txt"
"""File in the model's folder with all tasks that training has seen, one per line, sorted."""


class KeptBuild:
    """The checkpoint from which an interrupted build is continued, with the tasks that training has seen."""

    def __init__(self, folder: Path, trainer: LocalTrainer) -> None:
        self.tasks: set[str] = set()
        self._folder, self._trainer = folder, trainer
        self._written, self._took = time.monotonic(), 0.0

    def restore(self, progress: Progress) -> int:
        """Load what is there; returns its position, else 0."""
        try:
            return restore(self._folder, self._load, progress.say)
        except AjetError as error:
            progress.say(f"an interrupted build cannot be continued and begins anew: {error}")
            self.remove()
            return 0

    def keep(self, position: int) -> None:
        """Write a checkpoint if the last one is `KEEP_EVERY` old, or as many times as old as the seconds that it took to write."""
        begun = time.monotonic()
        if begun - self._written >= KEEP_EVERY * max(1.0, self._took):
            write_checkpoint(self._folder, position, self._save, {}, keep_last=1)
            self._written = time.monotonic()
            self._took = self._written - begun

    def write_tasks(self, folder: Path) -> None:
        """Write `TASKS_FILE`."""
        (folder / TASKS_FILE).write_text("".join(f"{task}\n" for task in sorted(self.tasks)))

    def remove(self) -> None:
        """Remove the checkpoint."""
        shutil.rmtree(self._folder / CHECKPOINTS, ignore_errors=True)

    def _save(self, path: Path) -> None:
        self._trainer.save(path)
        self.write_tasks(path)

    def _load(self, path: Path) -> None:
        self._trainer.load(path)
        self.tasks.update((path / TASKS_FILE).read_text().splitlines())
