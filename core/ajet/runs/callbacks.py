"""Loggers and hooks that receive what happens in a run: one that raises is reported once, and the run continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ajet.interfaces.backbone import RunResult
from ajet.interfaces.events import CheckpointSaved, EpisodeCall, EpisodeEnd, RunEnd, RunStart, StepEnd
from ajet.interfaces.logger import Logger
from ajet.interfaces.progress import reporting_to
from ajet.interfaces.workflow import location_of
from ajet.job.job import Job
from ajet.job.prepare import resolved
from ajet.rollout.episode import Episode
from ajet.rollout.image_folder import restore_images
from ajet.runs.run_state import note_begin, note_end
from ajet.tracker.call import Call
from ajet.tracker.record import EpisodeRecord
from ajet.tracker.timelines import all_timelines
from ajet.types import Metrics


class FirstFailures:
    """Tells the first failure of each cause as soon as its episode is recorded. The metrics of a step count all."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._told: set[str] = set()

    def __call__(self, episode: Episode, phase: str, step: int) -> None:
        if episode.failed and episode.failed.cause not in self._told:
            self._told.add(episode.failed.cause)
            what = " ".join(episode.error.split())
            self._say(
                f"{episode.id} failed, the first by {episode.failed.cause}: {what}. {episode.failed.remedy}"
            )


class Listeners:
    """Those of a job, for one run folder."""

    def __init__(self, job: Job, run_dir: Path) -> None:
        self._job = job
        self._run_dir = run_dir
        self._loggers = [*job.loggers, *_unnamed(job)]
        self._reported: set[str] = set()
        self._first_failures = FirstFailures(job.progress.say)
        self.result: RunResult | None = None
        """Set before the block of `run` ends."""
        self.said = ""
        """What the run folder says of a run that has finished, set like the result."""
        self.wants_episodes = bool(self._hook("ajet_episode_end").get_hookimpls()) or any(
            logger.wants_episodes for logger in self._loggers
        )
        """Whether any of them receives episodes, whose timelines take time to build."""

    @contextmanager
    def run(self, resumed_after: int | None = None) -> Iterator[None]:
        """A block that is the run: its start and its end are noted in its folder and sent, then loggers flush."""
        note_begin(self._run_dir)
        start = RunStart(run_dir=self._run_dir, config=resolved(self._job), resumed_after=resumed_after)
        self._call_loggers("run_start", start)
        self._call_hook("ajet_run_start", start)
        try:
            yield
        except BaseException as error:
            self._run_end(RunEnd(run_dir=self._run_dir, error=error))
            raise
        else:
            self._run_end(RunEnd(run_dir=self._run_dir, result=self.result))
        finally:
            self._call_loggers("close")

    def episode_end(self, episode: Episode, phase: str, step: int) -> None:
        """An episode has been recorded."""
        self._first_failures(episode, phase, step)
        if not self.wants_episodes:
            return
        event = ended(self._run_dir, episode, phase, step)
        self._call_loggers("episode_end", event)
        self._call_hook("ajet_episode_end", event)

    def log(self, step: int, metrics: Metrics) -> None:
        """Give metrics to the loggers."""
        self._call_loggers("log", self._run_dir, step, metrics)

    def step_end(self, step: int, metrics: Metrics) -> None:
        """A training step has been recorded."""
        self.log(step, metrics)
        self._call_hook("ajet_step_end", StepEnd(run_dir=self._run_dir, step=step, metrics=metrics))

    def checkpoint_saved(self, step: int, path: Path) -> None:
        """A checkpoint is complete on the disk."""
        event = CheckpointSaved(run_dir=self._run_dir, step=step, path=path)
        self._call_loggers("checkpoint_saved", event)
        self._call_hook("ajet_checkpoint_saved", event)

    def _run_end(self, event: RunEnd) -> None:
        note_end(self._run_dir, event.error, self.said)
        self._call_loggers("run_end", event)
        self._call_hook("ajet_run_end", event)

    def _call_loggers(self, method: str, *arguments: Any) -> None:
        for logger in self._loggers:
            self._call(f"logger {logger.name!r}", getattr(logger, method), *arguments)

    def _call_hook(self, name: str, event: Any) -> None:
        """Send an event to each plugin: an exception in one does not keep it from the others."""
        for one in reversed(self._hook(name).get_hookimpls()):
            distribution = one.plugin_name.partition(":")[0]
            self._call(f"plugin {distribution}: hook {name}", one.function, *[event for _ in one.argnames])

    def _hook(self, name: str) -> Any:
        return getattr(self._job.plugins.manager.hook, name)

    def _call(self, who: str, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            with reporting_to(self._job.progress):
                function(*arguments)
        except Exception as error:
            if who not in self._reported:
                self._reported.add(who)
                location = f" ({location_of(error)})" if location_of(error) else ""
                self._job.progress.say(
                    f"{who} failed: {type(error).__name__}: {error}{location}. The run continues."
                )


def ended(run_dir: Path, episode: Episode, phase: str, step: int) -> EpisodeEnd:
    """The event of an episode that has been recorded. One that was read from a journal gets its images from the run folder."""
    restore_images(episode.record, run_dir)
    return EpisodeEnd(
        run_dir=run_dir,
        id=episode.plan.id,
        phase=phase,
        step=step,
        task=episode.plan.task,
        reward=episode.reward,
        is_success=episode.is_success,
        failure=episode.failure,
        error=episode.error,
        metrics=episode.metrics,
        response=episode.output.response,
        started=episode.started,
        seconds=episode.seconds,
        messages=episode.view().messages,
        images=episode.record.images,
        calls=_calls(episode.record),
        timelines=all_timelines(episode.record),
    )


def _unnamed(job: Job) -> Iterator[Logger]:
    """The loggers that the job gets without naming them (`Logger.unnamed`)."""
    named = {logger.name for logger in job.loggers}
    for name, cls in job.plugins.of(Logger).items():
        if name not in named:
            logger = cls.unnamed()
            if logger is not None:
                yield logger


def _calls(record: EpisodeRecord) -> list[EpisodeCall]:
    calls = []
    for exchange in record.exchanges:
        call = exchange if isinstance(exchange, Call) else None
        calls.append(
            EpisodeCall(
                agent=exchange.agent,
                target=exchange.target,
                started=exchange.started,
                seconds=exchange.seconds,
                prompt_tokens=call.prompt.length if call else None,
                sampled_tokens=len(call.generation.token_ids) if call else None,
                truncated=call is not None and call.generation.finish_reason == "length",
                number=exchange.number,
                tools=exchange.tools,
            )
        )
    return calls
