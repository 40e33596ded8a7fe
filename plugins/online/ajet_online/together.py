"""``ajet online JOB.yaml``: the explorer and the trainer as processes, and a line that says what they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet import AjetError, ConfigError
from ajet.interfaces.algorithm import Algorithm
from ajet.job.config import Layers
from ajet.job.layers import job_layers, lay_sets
from ajet.job.parts import build_plugin
from ajet.runs.serve import checked_key
from ajet_online.episodes import compares_runs, ratings_needed
from ajet_online.lifeline import lifeline, start
from ajet_online.processes import lay_defaults
from ajet_online.schema import Stage
from ajet_online.settings import online_settings
from ajet_online.store import TraceStore
from ajet_online.versions import Versions

EVERY = 2.0
"""Seconds between two looks at the store."""
RATE_SECONDS = 120.0
"""The time over which the rate of feedback is measured."""
SECONDS_TO_END = 60.0
"""How long the trainer may take to finish its update when the command ends, beside the time in which the explorer ends its calls."""


@dataclass(frozen=True, slots=True)
class Now:
    """What the store says at one time."""

    traces: int
    rated: int
    """Tasks, or runs of tasks, that wait for the next update; while the served version has too few ratings, these."""
    wanted: int
    """How many of them an update needs."""
    served: int
    versions: int
    rejected: int
    withdrawn: int
    ratings: float | None
    """Mean rating of the served version."""
    reward: float | None
    """Its reward on the validation tasks."""
    staleness: float | None

    def line(self, seconds_left: float | None) -> str:
        """The line to show."""
        parts = [f"{self.traces:,} traces", f"{min(self.rated, self.wanted)} of {self.wanted} rated"]
        if self.rated >= self.wanted:
            parts[-1] += ", updating"
        elif seconds_left is not None:
            parts[-1] += f", next update in about {_duration(seconds_left)}"
        served = f"version {self.served}"
        about = [f"validation {self.reward:.3f}"] if self.reward is not None else []
        about += [f"ratings {self.ratings:.3f}"] if self.ratings is not None else []
        parts.append(served + (f" ({', '.join(about)})" if about else ""))
        if self.staleness is not None:
            parts.append(f"staleness {self.staleness:.1f}")
        gate = f"{self.versions} updates"
        held = [f"{self.rejected} rejected"] if self.rejected else []
        held += [f"{self.withdrawn} withdrawn"] if self.withdrawn else []
        parts.append(gate + (f" ({', '.join(held)})" if held else ""))
        return " · ".join(parts)


def look(store: TraceStore, wanted: int, *, by_run: bool, needed: int = 0) -> Now:
    """What the store says now. An update takes ``wanted`` tasks, or runs of tasks, and waits until the served version has
    ``needed`` ratings."""
    versions = Versions(store)
    known = versions.all()
    stages = [version.stage for version in known]
    serving = versions.serving()
    number = serving.number if serving else 0
    status = store.status()
    rated = store.waiting(by_run=by_run)
    if needed and rated >= wanted and (ratings := versions.count_ratings(number)) < needed:
        rated, wanted = ratings, needed
    return Now(
        traces=sum(status.states.values()),
        rated=rated,
        wanted=wanted,
        served=number,
        versions=max(len(known) - 1, 0),
        rejected=stages.count(Stage.REJECTED),
        withdrawn=stages.count(Stage.WITHDRAWN),
        ratings=status.ratings[number][1] if number in status.ratings else None,
        reward=serving.reward if serving else None,
        staleness=serving.report.get("staleness") if serving else None,
    )


def together(job_file: Path, *, key: str | None, sets: Iterable[str], further: Sequence[str] = ()) -> None:
    """Run both processes until Ctrl-C or SIGTERM. The explorer goes on if the trainer fails; the command then fails at its end.
    ``further`` are more arguments of the explorer. Raises AjetError."""
    sets = list(sets)
    layers = job_layers(job_file)
    lay_sets(layers, sets)
    settings = online_settings(layers)
    lay_defaults(layers, settings)
    own_keys = "--keys" in further
    if own_keys and key:
        raise ConfigError("--key and --keys: give one of them.")
    secret = checked_key(key)
    algorithm, wanted = _algorithm(layers), layers.job().train.batch_size
    by_run, needed = not compares_runs(algorithm), ratings_needed(algorithm, settings)
    arguments = [str(job_file), *(part for text in sets for part in ("--set", text))]
    store = TraceStore.open(settings.store)
    failed = 0
    try:
        with (
            _children(
                {
                    "explorer": ["explore", *arguments, *further],
                    "trainer": ["train", *arguments],
                },
                {} if own_keys else {"AJET_SERVE_KEY": secret},
                SECONDS_TO_END + settings.drain,
            ) as children,
            _until_signal() as over,
        ):
            if not (key or own_keys):
                print(f"key: {secret}", flush=True)
            rate = _Rate()
            while not over.wait(EVERY):
                failed = failed or _ended(children, "trainer")
                if _ended(children, "explorer"):
                    raise AjetError("the explorer has ended; its error is above.")
                now = look(store, wanted, by_run=by_run, needed=needed)
                _show(now.line(rate.seconds_left(now)), stopped=failed)
    finally:
        store.close()
        _show("")
    if failed:
        raise AjetError("the trainer has failed; its error is above.")


class _Rate:
    """How fast feedback comes."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []
        self._total = 0
        self._last = 0

    def seconds_left(self, now: Now) -> float | None:
        """Until the next update, at the rate of the last minutes; None if none came."""
        self._total += max(now.rated - self._last, 0)
        self._last = now.rated
        at = time.monotonic()
        self._seen = [*(one for one in self._seen if at - one[0] < RATE_SECONDS), (at, self._total)]
        first, before = self._seen[0]
        gained = self._total - before
        return (now.wanted - now.rated) * (at - first) / gained if gained else None


def _algorithm(layers: Layers) -> Algorithm:
    return build_plugin(layers, Algorithm, layers.job().train.algorithm, "train.algorithm")


@contextmanager
def _children(
    commands: Mapping[str, list[str]], environment: Mapping[str, str], seconds: float
) -> Iterator[dict[str, subprocess.Popen[Any]]]:
    """A block in which these commands of `ajet online` run. At its end they are asked to end, and killed if they do not within
    ``seconds``."""
    with lifeline() as line:
        running = {
            name: start(
                [sys.executable, "-m", "ajet", "online", *command], line, {**os.environ, **environment}
            )
            for name, command in commands.items()
        }
        try:
            yield running
        finally:
            for process in running.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + seconds
            for process in running.values():
                try:
                    process.wait(max(deadline - time.monotonic(), 0.1))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@contextmanager
def _until_signal() -> Iterator[threading.Event]:
    over = threading.Event()
    before = [signal.signal(number, lambda *_: over.set()) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield over
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


def _ended(children: Mapping[str, subprocess.Popen[Any]], name: str) -> int:
    """The exit status of a child that has failed; 0 while it runs, or if it ended well."""
    return children[name].poll() or 0


_shown = ""


def _show(line: str, *, stopped: int = 0) -> None:
    """Show a line on stderr: in place on a terminal, else whenever it has changed."""
    global _shown
    line += " · the trainer has failed" if stopped else ""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
    elif line and line != _shown:
        print(line, file=sys.stderr, flush=True)
    _shown = line


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
