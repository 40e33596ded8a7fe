"""Loggers and hooks that receive every step: one that raises is reported once, and the run continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ajet.interfaces.workflow import place_of
from ajet.job.prepare import Job
from ajet.types import Metrics


class Listeners:
    """Those of a job, for one run folder."""

    def __init__(self, job: Job, run_dir: Path) -> None:
        self._job = job
        self._run_dir = run_dir
        self._reported: set[str] = set()

    def log(self, step: int, metrics: Metrics) -> None:
        """Give metrics to the loggers."""
        for logger in self._job.loggers:
            self._call(f"logger {logger.name!r}", logger.log, self._run_dir, step, metrics)

    def step_end(self, step: int, metrics: Metrics) -> None:
        """Tell loggers and plugins of a training step."""
        self.log(step, metrics)
        hook = self._job.plugins.manager.hook.ajet_step_end
        self._call("hook ajet_step_end", hook, step=step, metrics=metrics)

    def close(self) -> None:
        """Let the loggers flush."""
        for logger in self._job.loggers:
            self._call(f"logger {logger.name!r}", logger.close)

    def _call(self, who: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        try:
            function(*arguments, **named)
        except Exception as error:
            if who not in self._reported:
                self._reported.add(who)
                place = f" ({place_of(error)})" if place_of(error) else ""
                self._job.progress.say(
                    f"{who} failed: {type(error).__name__}: {error}{place}. The run continues."
                )
