"""The training step, and the loop over a Trainer and a source of batches; everything else is up to the source."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ajet.interfaces.backbone import Trainer
from ajet.learning.alarms import Alarms
from ajet.learning.batch import RolloutBatch
from ajet.learning.collapse import saved_before, train_again
from ajet.learning.rollouts import ValidationFailed
from ajet.learning.settings import TrainSettings
from ajet.rollout.batch_record import Account
from ajet.rollout.checkpoints import is_validated
from ajet.rollout.recorder import RunRecorder
from ajet.types import AjetError, Batch, Metrics
from ajet.utils.threads import to_its_end

log = logging.getLogger("ajet")
WORTH_SAVING = 60.0
"""Seconds since the last checkpoint from which a run that is cancelled writes another one first."""


class Ruined(AjetError):
    """Training has ruined the model."""


class NotFinite(Ruined, FloatingPointError):
    """A step's loss or gradient is not a finite number."""


class BatchSource(Protocol):
    """Where batches come from: rollouts, or transcripts."""

    async def batch(self, step: int, version: int) -> RolloutBatch:
        """The batch of a step, counted from 1. ``version`` is the version of the weights that will learn from it. The
        engine serves this version or, in an asynchronous run, the previous one until this one is published."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The parts of a training loop. ``validate`` runs every ``validate_every`` steps, and before and after training."""

    trainer: Trainer
    source: BatchSource
    recorder: RunRecorder
    settings: TrainSettings
    publish: Callable[[], Awaitable[int]]
    """`Trainer.publish`, on the engine's loop."""
    validate: Callable[[int], Awaitable[Metrics]] | None
    validate_every: int
    on_step: Callable[[int, Metrics], None]
    on_checkpoint: Callable[[int, Path], None] = lambda step, path: None
    """Called with the step and the folder of each complete checkpoint."""
    alarms: Alarms | None = None
    """By default those of the settings."""
    say: Callable[[str], None] = lambda text: None


@dataclass(frozen=True, slots=True)
class LoopResult:
    before: Metrics
    after: Metrics
    checkpoint: Path | None
    ruined: str
    """How training has ruined the model, as far as rewards show, and the remedy; empty if it has not."""
    collapsed: str
    """That the rewards have collapsed and stayed so; empty if they have not."""


async def train(loop: Loop, first_step: int) -> LoopResult:
    """Train from ``first_step`` (1, or the step after the restored checkpoint) to the last step. A run that is cancelled writes a
    checkpoint of its last step first, if that is worth it.

    In an asynchronous run the next step's episodes run during the update, one step off-policy
    (Noukhovitch et al., arXiv:2410.18252).
    """
    ahead, saving = _Ahead(loop.source, loop.settings), _Saving(loop)
    try:
        return await _train(loop, ahead, saving, first_step)
    except asyncio.CancelledError:
        await saving.leave()
        raise
    finally:
        await ahead.close()
        await saving.end()


async def _train(loop: Loop, ahead: _Ahead, saving: _Saving, first_step: int) -> LoopResult:
    settings, trainer, recorder = loop.settings, loop.trainer, loop.recorder
    if not settings.steps:
        loop.say("train.steps is 0: nothing is trained")
    before = await loop.validate(0) if loop.validate and first_step == 1 else {}
    after = before
    alarms = loop.alarms or Alarms.of(settings)
    for step in range(first_step, settings.steps + 1):
        started = time.monotonic()
        batch = await ahead.batch(step, trainer.version)
        rollout = time.monotonic() - started
        waited = await saving.end()
        metrics, cancelled = await saving.finished(
            step,
            training_step(
                trainer,
                loop.publish,
                batch,
                step,
                seconds_rollout=rollout,
                saved=partial(saved_before, recorder.dir),
                record=recorder.batch,
            ),
        )
        metrics["seconds_checkpoint"] = waited
        raised = alarms.step(step, metrics)
        recorder.metrics("train", step, metrics)
        loop.on_step(step, metrics)
        # Messages and tokens of an episode refer to each other, so only the collector frees them. Here fewer calls wait for it
        # than if it ran during the rollout, where it would stop all of them.
        del batch
        gc.collect()
        last = step == settings.steps
        state, failed = {"version": metrics["weight_version"]}, None
        keeps_earlier = alarms.collapse.is_suspected()  # keeps those from before it
        saving.unsaved = None if keeps_earlier else (step, state)
        if cancelled:
            raise asyncio.CancelledError
        if loop.validate and (last or (loop.validate_every and step % loop.validate_every == 0)):
            try:
                after = await loop.validate(step)
                state["validation_reward"] = after["reward"]
                raised += alarms.validation(step, after)
            except ValidationFailed as error:  # the step's checkpoint is written nevertheless
                failed = error
        for alarm in raised:
            log.warning("%s", alarm.line)
        is_best = settings.keep_best and recorder.beats_all(state.get("validation_reward"))
        regular = (step % settings.save_every == 0 or saving.is_late()) and not keeps_earlier
        if last or is_best or regular or (alarms.stops(raised) and not alarms.collapse.found()):
            saving.begin(step, state)
        if failed:
            raise failed
        alarms.stop(raised)
    await saving.end()
    if loop.validate and first_step > settings.steps and not is_validated(recorder.dir):
        recorder.repeat_validation(settings.steps)  # it failed or was cancelled after the last checkpoint
        after = await loop.validate(settings.steps)
        recorder.validated(settings.steps, after["reward"])
    ruined = alarms.collapse.ruined(after, recorder.dir, settings.learning_rate)
    return LoopResult(before, after, saving.last, ruined, alarms.collapse.found())


async def training_step(
    trainer: Trainer,
    publish: Callable[[], Awaitable[int]],
    batch: RolloutBatch,
    step: int,
    *,
    seconds_rollout: float,
    saved: Callable[[], Path | None],
    record: Callable[[int, Batch, Account], None],
) -> Metrics:
    """Update the weights with a batch and publish them; returns the step's metrics. ``seconds_rollout`` says how long the
    batch took, ``saved`` finds the last checkpoint, and ``record`` writes what is trained, during the update. Raises
    NotFinite, and then publishes nothing."""
    started = time.monotonic()
    # A thread keeps what it was given until it runs again after its work, on a busy machine after the next step has begun.
    given, kept = [batch.batch], [(batch.batch, batch.account)]
    recorded = asyncio.create_task(asyncio.to_thread(lambda: record(step, *kept.pop())))
    try:
        updated = await asyncio.to_thread(lambda: trainer.update(given.pop()))
        for name in ("loss", "grad_norm"):
            if not math.isfinite(updated.get(name, 0.0)):
                raise FloatingPointError(f"the {name} is {updated[name]}")
    except FloatingPointError as error:
        raise NotFinite(f"step {step}: {error}. {train_again(saved(), batch.batch.learning_rate)}") from error
    finally:
        await recorded
    assert_all_trained(batch, updated, step)
    version = await publish()
    return {
        **batch.metrics,
        **updated,
        "learning_rate": batch.batch.learning_rate,
        "weight_version": version,
        "seconds_rollout": seconds_rollout,
        "seconds_update": time.monotonic() - started,
    }


class _Ahead:
    """The batches of a source; in an asynchronous run each is started when the previous one is taken."""

    def __init__(self, source: BatchSource, settings: TrainSettings) -> None:
        self._source = source
        self._settings = settings
        self._next: asyncio.Task[RolloutBatch] | None = None

    async def batch(self, step: int, version: int) -> RolloutBatch:
        """The batch of a step, for weights of a version."""
        batch = await (self._next or self._source.batch(step, version))
        self._next = None
        if self._settings.asynchronous and step < self._settings.steps:
            self._next = asyncio.create_task(self._source.batch(step + 1, version + 1))
        return batch

    async def close(self) -> None:
        """Cancel a batch in progress."""
        if self._next:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)


class _Saving:
    """Writes checkpoints while the episodes of the next step run, which leave the weights as they are: at most one at a time,
    and an update waits for its end. So nothing is copied before, and the run folder stays locked until the checkpoint is complete."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._writing: asyncio.Task[None] | None = None
        self._began = time.monotonic()
        """When the last checkpoint was begun, at first the run."""
        self.last: Path | None = None
        """The last complete checkpoint."""
        self.unsaved: tuple[int, Metrics] | None = None
        """The last step, and its state, if its weights are worth a checkpoint and have none."""

    def is_late(self) -> bool:
        """Whether `train.save_minutes` asks for a checkpoint."""
        minutes = self._loop.settings.save_minutes
        return minutes is not None and time.monotonic() - self._began >= 60 * minutes

    def begin(self, step: int, state: Metrics) -> None:
        """Begin to write the checkpoint of a step."""
        self._began, self.unsaved = time.monotonic(), None
        self._writing = asyncio.create_task(self._write(step, state))

    async def _write(self, step: int, state: Metrics) -> None:
        loop, keep = self._loop, self._loop.settings
        save = partial(loop.recorder.checkpoint, step, loop.trainer.save, state, keep.keep_last)
        self.last = await to_its_end(partial(save, keep_best=keep.keep_best))
        loop.on_checkpoint(step, self.last)

    async def finished(self, number: int, step: Coroutine[Any, Any, Metrics]) -> tuple[Metrics, bool]:
        """The metrics of a step, and whether it was cancelled meanwhile: where a lot would be lost, a step that has begun is finished
        first. A second cancellation ends it at once."""
        self.unsaved, work = None, asyncio.create_task(step)
        try:
            return await asyncio.shield(work), False
        except asyncio.CancelledError:
            if not self._is_worth_it():
                await _cancelled(work)
                raise
            self._loop.say(f"finishing the update of step {number}, to save it; Ctrl-C again ends at once")
            try:
                return await asyncio.shield(work), True
            except BaseException as error:  # such as of an engine that got the same Ctrl-C
                await _cancelled(work)
                raise asyncio.CancelledError from error

    async def leave(self) -> None:
        """Write a checkpoint of a run that was cancelled, if a lot would be lost without it."""
        if self.unsaved and self._is_worth_it():
            self._loop.say(f"saving step {self.unsaved[0]}")
            self.begin(*self.unsaved)
            await self.end()

    def _is_worth_it(self) -> bool:
        return time.monotonic() - self._began >= WORTH_SAVING

    async def end(self) -> float:
        """Wait until the checkpoint is complete; returns the seconds that this took. Raises what writing it raised."""
        if self._writing is None:
            return 0.0
        started = time.monotonic()
        writing, self._writing = self._writing, None
        await writing
        return time.monotonic() - started


async def _cancelled(work: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended."""
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


def assert_all_trained(batch: RolloutBatch, updated: Metrics, step: int) -> None:
    """Check that every sampled token reached the trainer once per epoch, including tokens of zero advantage, which
    cost nothing."""
    seen = updated["tokens_trained"] + updated["tokens_zero_advantage"]
    wanted = batch.sampled_tokens * batch.epochs
    if seen != wanted:
        raise AjetError(
            f"step {step}: the trainer should have got {wanted} tokens, but got {seen:.0f}. "
            "This is a bug in AgentJet: please report it with the run folder."
        )
