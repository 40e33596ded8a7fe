"""Progress of long work on stderr: live bars on a terminal, plain lines elsewhere; in a notebook, below its cell."""

from __future__ import annotations

import math
import os
import shlex
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from ajet.interfaces.progress import LOG
from ajet.utils.terminal import readable

if TYPE_CHECKING:
    from ajet.interfaces.backbone import RunResult
    from ajet.job.job import Job
    from ajet.types import Metrics

QUIET_SECONDS = 10.0
REWRITE_SECONDS = 0.2
MOST_EARLY = 100
"""Texts that are kept until there is a run folder."""


def make_progress() -> Lines:
    """Bars on a terminal; lines in logs and when a debugger needs the terminal; a line that updates in a notebook."""
    from os import environ

    from ajet.utils.breakpoints import under_debugger

    if type(sys.stdout).__module__.startswith("ipykernel"):
        return Cell(_output())
    live = sys.stderr.isatty() and environ.get("TERM") != "dumb" and not under_debugger()
    return Bars() if live else Lines(sys.stderr)


def describe_ended(how: str, run_dir: Path | None, *, without_checkpoint: bool = False) -> str:
    """How to resume a run that was interrupted or failed; ``without_checkpoint``: it needs none for that."""
    if run_dir is None:
        return f"{how} before the run folder was created"
    from ajet.rollout.checkpoints import checkpoints

    last = checkpoints(run_dir)
    resume = f"resume with: ajet run --resume {shlex.quote(str(run_dir))}"
    kept = resume if without_checkpoint else "no checkpoint yet"
    return f"{how}. Run folder: {run_dir}; {f'last checkpoint: {last[-1]}; {resume}' if last else kept}"


def run_told(job: Job, progress: Lines) -> RunResult:
    """Run a prepared job. If it ends early, it is told where to find what it has done so far: for Ctrl-C by the text of the
    KeyboardInterrupt."""
    from ajet.runs.restarts import run_job

    def ended(how: str) -> str:
        able = job.backbone.capabilities
        # A run that trains begins again, with the finished episodes of its first step.
        resumable = able.trains or able.resumes_without_checkpoint
        return describe_ended(how, progress.run_dir, without_checkpoint=resumable)

    try:
        return run_job(job)
    except KeyboardInterrupt:
        told = ended("interrupted")
        progress.keep(told)
        raise KeyboardInterrupt(told) from None
    except Exception as error:
        if progress.run_dir is not None:
            progress.keep(f"{type(error).__name__}: {error}")
            progress.say(ended("failed"))
        raise


class Lines:
    """A `Progress` of plain lines: one for each training step, and occasional lines in stages and long phases."""

    def __init__(self, out: TextIO) -> None:
        self.run_dir: Path | None = None
        self._early: deque[str] = deque(maxlen=MOST_EARLY)
        """What was said before there was a run folder."""
        self._out = out
        self._lock = threading.RLock()
        self._pace = Pace()
        self._stages: dict[str, tuple[float, float]] = {}
        """Stages that are not complete: when each began, and at which fraction."""
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def started(self, run_dir: Path) -> None:
        """See `Progress.started`."""
        self.run_dir = run_dir
        for text in (*self._early, f"run folder: {run_dir}"):
            self.keep(text)
        self._early.clear()
        with self._lock:
            self._print(f"run folder: {run_dir}")

    def say(self, text: str) -> None:
        """See `Progress.say`."""
        self.keep(text)
        with self._lock:
            self._print(text)

    def keep(self, text: str) -> None:
        """Write a text into the log of the run folder, with the time. What cannot be written is not kept: the run goes on."""
        with self._lock:
            if self.run_dir is None:
                self._early.append(text)
                return
            # A folder that comes from elsewhere may have a link of this name.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            with (
                suppress(OSError),
                open(
                    os.open(self.run_dir / LOG, flags, 0o644), "w", encoding="utf-8", errors="replace"
                ) as file,
            ):
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {readable(text)}\n")

    def stage(self, name: str, fraction: float, metrics: Metrics) -> None:
        """See `Progress.stage`."""
        with self._lock:
            first, figures = name not in self._stages, self._stage_figures(name, fraction, metrics)
            if first or fraction >= 1 or time.monotonic() - self._last_line >= QUIET_SECONDS:
                self._print(f"{name} {fraction:.0%}  {figures}".rstrip())

    def episodes(self, phase: str, done: int, total: int) -> None:
        """See `Progress.episodes`."""
        with self._lock:
            if time.monotonic() - self._last_line >= QUIET_SECONDS:
                self._print(f"{phase}: {done}/{total} episodes")

    def step(self, step: int, total: int, metrics: Metrics) -> None:
        """See `Progress.step`."""
        with self._lock:
            figures = self._figures(step, total, metrics)
            self.keep(f"step {step}/{total}  {figures}")
            self._stepped(step, total, figures)

    def _stepped(self, step: int, total: int, figures: str) -> None:
        self._print(f"step {step}/{total}  {figures}")

    def _figures(self, step: int, total: int, metrics: Metrics) -> str:
        eta = self._pace.eta(step, total, metrics)
        return "  ".join([*step_figures(metrics), *([f"eta {eta}"] if eta else [])])

    def _stage_figures(self, name: str, fraction: float, metrics: Metrics) -> str:
        """The figures of a stage, and how long the rest of it takes at the pace since it began here."""
        now = time.monotonic()
        began, at = self._stages.setdefault(name, (now, fraction))
        figures = [f"{figure} {value:.3g}" for figure, value in metrics.items()]
        if fraction >= 1:
            del self._stages[name]
        elif fraction > at:
            figures.append(f"eta {clock((now - began) * (1 - fraction) / (fraction - at))}")
        return "  ".join(figures)

    def _print(self, text: str) -> None:
        self._last_line = time.monotonic()
        print(text, file=self._out, flush=True)


class Cell(Lines):
    """A `Progress` for a notebook's cell, as one output that is replaced: what was said, and in the last line the step and the
    episodes. ``show`` replaces it."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(sys.stdout)
        self._replace = show
        self._said: list[str] = []
        self._step = self._phase = ""
        self._written = -math.inf

    def __exit__(self, *error: object) -> None:
        if self._step or self._phase:
            self._show(self._step, "" if self._step else self._phase, now=True)

    def stage(self, name: str, fraction: float, metrics: Metrics) -> None:
        """See `Progress.stage`."""
        done = fraction >= 1
        with self._lock:
            figures = self._stage_figures(name, fraction, metrics)
            self._show(self._step, "" if done else f"{name} {fraction:.0%}  {figures}", now=done)

    def episodes(self, phase: str, done: int, total: int) -> None:
        """See `Progress.episodes`."""
        self._show(self._step, f"{phase}: {done}/{total} episodes", now=done >= total)

    def _stepped(self, step: int, total: int, figures: str) -> None:
        self._show(f"step {step}/{total}  {figures}", "", now=True)

    def _print(self, text: str) -> None:
        self._said.append(text)
        self._show(self._step, self._phase, now=True)

    def _show(self, step: str, phase: str, *, now: bool) -> None:
        with self._lock:
            self._step, self._phase = step, phase
            if now or time.monotonic() - self._written >= REWRITE_SECONDS:
                self._written = time.monotonic()
                last = "  |  ".join(filter(None, (step, phase)))
                self._replace("\n".join([*self._said, *filter(None, [last])]))


def _output() -> Callable[[str], None]:
    """What replaces an output of the cell that runs, which the first text makes."""
    from IPython.display import DisplayHandle

    untyped: Any = DisplayHandle
    handle, begun = untyped(), False

    def show(text: str) -> None:
        nonlocal begun
        (handle.update if begun else handle.display)({"text/plain": text}, raw=True)
        begun = True

    return show


class Bars(Lines):
    """A `Progress` of live bars: one for the steps, below it one for the phase's episodes or a stage."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(sys.stderr)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[figures]}"),
            console=Console(stderr=True, highlight=False),
            redirect_stdout=sys.stdout.isatty(),
        )
        self._rows: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def stage(self, name: str, fraction: float, metrics: Metrics) -> None:
        """See `Progress.stage`."""
        with self._lock:
            figures = self._stage_figures(name, fraction, metrics)
            self._show(name, fraction, 1.0, f"{fraction:.0%}", figures)
            if fraction >= 1:
                self._hide(name)

    def episodes(self, phase: str, done: int, total: int) -> None:
        """See `Progress.episodes`."""
        with self._lock:
            self._show(phase, done, total, f"{done}/{total}", "episodes")
            if done >= total:
                self._hide(phase)

    def _stepped(self, step: int, total: int, figures: str) -> None:
        self._show("steps", step, total, f"{step}/{total}", figures)

    def _print(self, text: str) -> None:
        self._bars.console.print(text, markup=False, soft_wrap=True)

    def _show(self, name: str, done: float, total: float, count: str, figures: str) -> None:
        if name not in self._rows:
            self._rows[name] = self._bars.add_task(name, count="", figures="")
        self._bars.update(self._rows[name], completed=done, total=total, count=count, figures=figures)

    def _hide(self, name: str) -> None:
        self._bars.remove_task(self._rows.pop(name))


class Pace:
    """Estimates how long the remaining steps take from the last few."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=5)

    def eta(self, step: int, total: int, metrics: Metrics) -> str:
        """The estimate as `clock` writes it; empty before the first estimate and after the last step."""
        if seconds := seconds_of(metrics):
            self._seconds.append(seconds)
        if not self._seconds or step >= total:
            return ""
        return clock(sum(self._seconds) / len(self._seconds) * (total - step))


def clock(seconds: float) -> str:
    """``1:02:03`` or ``0:51``."""
    left = round(seconds)
    hours, minutes = left // 3600, left // 60 % 60
    return f"{hours}:{minutes:02}:{left % 60:02}" if hours else f"{minutes}:{left % 60:02}"


def step_figures(metrics: Metrics) -> list[str]:
    """The main figures of a training step."""
    figures = [f"{name} {metrics[name]:.2f}" for name in ("reward", "accuracy") if name in metrics]
    if not figures and "loss" in metrics:
        figures.append(f"loss {metrics['loss']:.3f}")
    if "groups_zero_advantage" in metrics:
        figures.append(f"zero-adv groups {metrics['groups_zero_advantage'] * 100:.0f} %")
    if metrics.get("episodes_failed"):
        figures.append(f"{metrics['episodes_failed']:.0f} failed{_causes(metrics)}")
    if metrics.get("forks_diverged"):
        figures.append(f"{metrics['forks_diverged']:.0f} of {metrics['forks']:.0f} forks diverged")
    if metrics.get("steered"):
        diverged = metrics["steered_diverged"]
        figures.append(f"{metrics['steered']:.0f} steered{f' ({diverged:.0f} diverged)' if diverged else ''}")
    if "tokens_per_second" in metrics:
        figures.append(f"{metrics['tokens_per_second']:,.0f} tok/s")
    if seconds := seconds_of(metrics):
        figures.append(f"{seconds:.1f} s")
    if alarms := [name.removeprefix("alarm/") for name in metrics if name.startswith("alarm/")]:
        figures.append(f"alarms: {', '.join(alarms)}")
    return figures


def _causes(metrics: Metrics) -> str:
    """The causes of failures, the most frequent first, with their counts if there are several."""
    causes = {name.removeprefix("failed/"): n for name, n in metrics.items() if name.startswith("failed/")}
    several = [
        f"{causes[cause]:.0f} {cause}" for cause in sorted(causes, key=causes.__getitem__, reverse=True)
    ]
    return f" ({', '.join(several if len(several) > 1 else causes)})" if causes else ""


def seconds_of(metrics: Mapping[str, float]) -> float:
    """Seconds of a step, without its validation and checkpoint; 0 if they are unknown."""
    return metrics.get("seconds_rollout", 0.0) + metrics.get("seconds_update", 0.0)
