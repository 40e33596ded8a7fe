"""The node ``ajet`` of verl's configuration: the job, and the recorder, by which the processes of verl reach `ajet run`.

The recorder is the only writer of the run folder (journal, metrics, checkpoints). It also collects events (progress, metrics,
episodes, checkpoints, messages) until the process of `ajet run` fetches them.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError

from ajet import Task
from ajet.interfaces.backbone import Metrics
from ajet.rollout.journal import JournalLine
from ajet.rollout.recorder import RunRecorder
from ajet_lora.folders import FOLDER
from ajet_verl.cluster import NAMESPACE
from ajet_verl.spec import JobSpec

LINES = "ajet_lines.pkl"
"""The file of verl's checkpoint with the lines of groups from which no step has learned."""
PULSE_SECONDS = 10.0
"""Minimum seconds between two reports of a process."""


def dumps(value: Any) -> bytes:
    """An object as Ray would send it, also a function or a class of a script or a notebook."""
    return bytes(cloudpickle.dumps(value))


def to_text(value: Any) -> str:
    """An object as text, for verl's queue and configuration, which would turn objects into dictionaries."""
    return base64.b64encode(pickle.dumps(value)).decode()


def from_text(text: str) -> Any:
    """The object of a text from `to_text`. Only for texts of the same run, because it unpickles them."""
    return pickle.loads(base64.b64decode(text))


def read_spec(config: Any) -> JobSpec:
    """The job's spec from verl's configuration."""
    spec = from_text(config.ajet.spec)
    assert isinstance(spec, JobSpec)
    return spec


def recorder_of(config: Any) -> Any:
    """The Ray handle of the run's `ajet_verl.recorder.Recorder`. Raises ValueError if there is none."""
    return ray.get_actor(config.ajet.recorder, namespace=NAMESPACE)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that `launch` forwards to progress and loggers."""

    kind: str
    """``alive``, ``episodes``, ``episode``, ``checkpoint``, ``say`` or ``fail``; or, with metrics, the phase: ``train`` or
    that of a validation."""
    step: int = 0
    metrics: Metrics = field(default_factory=dict)
    text: str = ""
    """The message of ``say`` or ``fail``, the phase of ``episodes``, the journal's line of an ``episode``, or the folder of a
    ``checkpoint``."""
    done: int = 0
    total: int = 0

    @property
    def is_progress(self) -> bool:
        """Whether the run has progressed. A message does not count: some messages report that nothing progresses."""
        return self.kind not in ("say", "fail")


class Recorder:
    """A Ray actor, created by `launch`. Episode runners and verl's trainer call its methods."""

    def __init__(
        self,
        run_dir: str,
        tasks: Sequence[Task],
        validation: Sequence[Task],
        keep_last: int,
        keep_best: bool,
        send_episodes: bool = False,
    ) -> None:
        self._run = RunRecorder(Path(run_dir))
        self._tasks = list(tasks), list(validation)
        self._keep_last, self._keep_best = keep_last, keep_best
        self._send_episodes = send_episodes
        """Whether there is an event for each episode; its line may be large."""
        self._events: list[Event] = []
        self._held: dict[str, Sequence[JournalLine]] = {}
        """Lines of units that have ended in a runner, until they are written."""
        self._reward: tuple[int, float] | None = None
        """Step and reward of the last validation."""

    def tasks(self) -> tuple[list[Task], list[Task]]:
        """The tasks of training and of validation, as the driver read them."""
        return self._tasks

    def hold(self, unit: str, lines: Sequence[JournalLine]) -> None:
        """Keep the lines of a unit until `write` or `drop`. They replace those of an earlier run of the unit."""
        self._held[unit] = lines

    def write(self, units: Iterable[str], step: int) -> None:
        """Append the lines of these units, except episodes that are already in the journal. ``step`` is that which learns from
        them, or that of the validation."""
        for line in [line for unit in units for line in self._held.pop(unit, ())]:
            if self._run.line(line, step) and self._send_episodes:
                self._events.append(Event("episode", step, text=line.at(step)))

    def drop(self, units: Iterable[str]) -> None:
        """Forget the lines of these units."""
        for unit in units:
            self._held.pop(unit, None)

    def keep_lines(self, folder: str, units: Iterable[str]) -> None:
        """Write the lines of these units into verl's checkpoint ``folder``."""
        kept = {unit: self._held[unit] for unit in units if unit in self._held}
        (Path(folder) / LINES).write_bytes(pickle.dumps(kept))

    def restore_lines(self, folder: str) -> None:
        """Hold the lines of a checkpoint again."""
        self._held |= pickle.loads((Path(folder) / LINES).read_bytes())

    def metrics(self, phase: str, step: int, metrics: Metrics) -> None:
        """Append the metrics of a training step (``train``) or a validation."""
        self._run.metrics(phase, step, metrics)
        if phase == "validation" and "reward" in metrics:
            self._reward = step, metrics["reward"]
            self._run.validated(step, metrics["reward"])
        self._events.append(Event(phase, step, metrics))

    def batch(self, step: int, data: bytes) -> None:
        """Write what a step trains, as `ajet.rollout.batch_record.packed` returns it."""
        self._run.packed_batch(step, data)

    def progress(self, phase: str, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` episodes of a phase have ended."""
        self._events.append(Event("episodes", text=phase, done=done, total=total))

    def say(self, text: str) -> None:
        """Report a message for the user."""
        self._events.append(Event("say", text=text))

    def alive(self) -> None:
        """Report progress without a result: a part of an episode or of an update."""
        if not self._events or self._events[-1].kind != "alive":
            self._events.append(Event("alive"))

    def fail(self, text: str) -> None:
        """End the run with this error."""
        self._events.append(Event("fail", text=text))

    def beats_all(self, step: int) -> bool:
        """Whether ``keep_best`` is set and the validation at ``step`` is better than that of every checkpoint."""
        validated_step, reward = self._reward or (-1, None)
        return self._keep_best and validated_step == step and self._run.beats_all(reward)

    def checkpoint(self, step: int, staged: str) -> str:
        """Move verl's folder ``…/global_step_N`` into the run's checkpoints; returns the checkpoint's path."""

        def move(partial: Path) -> None:
            partial.mkdir()
            adapters = Path(staged) / "actor" / FOLDER
            if adapters.is_dir():  # where the local backbone has them, too
                os.rename(adapters, partial / FOLDER)
            os.rename(staged, partial / Path(staged).name)

        validated_step, reward = self._reward or (-1, 0.0)
        state: Metrics = {"version": step} | ({"validation_reward": reward} if validated_step == step else {})
        path = self._run.checkpoint(step, move, state, self._keep_last, keep_best=self._keep_best)
        self._events.append(Event("checkpoint", step, text=str(path)))
        return str(path)

    def supersede(self, step: int) -> None:
        """Mark the records of ``step`` and later steps as superseded."""
        self._run.supersede(step, {})

    def unused(self, step: int, used: Sequence[str]) -> None:
        """Mark the episodes of ``step`` as superseded, except those in ``used``, from which it has learned."""
        self._run.unused(step, used)

    def events(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Close the files."""
        self._run.close()


class Pulse:
    """Sent to each process that reports progress; the recorder is given by its name."""

    def __init__(self, recorder: str) -> None:
        self._recorder = recorder
        self._last = float("-inf")

    def beat(self) -> None:
        """Report progress; returns at once. Never raises: the recorder ends before some processes do."""
        now = time.monotonic()
        if now - self._last < PULSE_SECONDS:
            return
        self._last = now
        with contextlib.suppress(RayError, ValueError):
            ray.get_actor(self._recorder, namespace=NAMESPACE).alive.remote()
