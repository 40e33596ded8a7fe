"""The only writer of the run folder, as a Ray actor on the node of `ajet run`: journal, metrics, checkpoints.

What the driver shall know of (progress, metrics, lines to read) waits here until it asks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ajet.rollout.recorder import RunRecorder
from ajet.types import Metrics, Task

NAMESPACE = "ajet"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the driver passes on to its progress and loggers."""

    kind: str
    """``train`` for the metrics of a step, another phase for those of a validation, else ``episodes`` or ``say``."""
    step: int = 0
    metrics: Metrics = field(default_factory=dict)
    text: str = ""
    """A line to read, or the phase of ``episodes``."""
    done: int = 0
    total: int = 0


class Recorder:
    """Made a Ray actor by `launch`. Its methods are called from episode runners and from verl's trainer."""

    def __init__(
        self,
        run_dir: str,
        tasks: Sequence[Task],
        validation: Sequence[Task],
        keep_last: int,
        keep_best: bool,
    ) -> None:
        self._run = RunRecorder(Path(run_dir))
        self._tasks = list(tasks), list(validation)
        self._keep_last, self._keep_best = keep_last, keep_best
        self._events: list[Event] = []
        self._reward: tuple[int, float] | None = None
        """Step and reward of the last validation."""

    def tasks(self) -> tuple[list[Task], list[Task]]:
        """The tasks of training and of validation, as the driver read them."""
        return self._tasks

    def episode(self, line: Mapping[str, Any]) -> None:
        """Append a finished episode's line of `episode_to_json`, unless it is there."""
        self._run.line(line)

    def metrics(self, phase: str, step: int, metrics: Metrics) -> None:
        """Append the metrics of a training step (``train``) or a validation."""
        self._run.metrics(phase, step, metrics)
        if phase == "validation":
            self._reward = step, metrics["reward"]
            self._run.validated(step, metrics["reward"])
        self._events.append(Event(phase, step, metrics))

    def progress(self, phase: str, done: int, total: int) -> None:
        """So many episodes of a phase have ended."""
        self._events.append(Event("episodes", text=phase, done=done, total=total))

    def say(self, text: str) -> None:
        """A line to read."""
        self._events.append(Event("say", text=text))

    def beats_all(self, step: int) -> bool:
        """Whether the validation at ``step`` is better than that of every checkpoint."""
        at, reward = self._reward or (-1, None)
        return self._keep_best and at == step and self._run.beats_all(reward)

    def checkpoint(self, step: int, staged: str) -> str:
        """Take the folder that verl wrote, ``…/global_step_N``, into the run's checkpoints; returns its new place."""

        def move(partial: Path) -> None:
            partial.mkdir()
            os.rename(staged, partial / Path(staged).name)

        at, reward = self._reward or (-1, 0.0)
        state: Metrics = {"version": step} | ({"validation_reward": reward} if at == step else {})
        return str(self._run.checkpoint(step, move, state, self._keep_last, keep_best=self._keep_best))

    def supersede(self, step: int) -> None:
        """Mark what was recorded of ``step`` and later ones as superseded."""
        self._run.supersede(step, {})

    def unused(self, step: int, used: Sequence[str]) -> None:
        """Mark the episodes of ``step`` as superseded, but for those that it has learned from."""
        self._run.unused(step, used)

    def events(self) -> list[Event]:
        """What has happened since this was last asked."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Close the files."""
        self._run.close()
