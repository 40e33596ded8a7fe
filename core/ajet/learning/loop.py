"""The training loop: a Trainer and a source of batches; everything else is the source's business."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ajet.backbone import Trainer
from ajet.learning.batch import RolloutBatch
from ajet.learning.settings import TrainSettings
from ajet.rollout.recorder import RunRecorder
from ajet.types import AjetError, Metrics


class BatchSource(Protocol):
    """Where batches come from: rollouts, or transcripts."""

    async def batch(self, step: int, version: int) -> RolloutBatch:
        """The batch of a step, counted from 1. ``version`` is the one that the engine serves."""
        ...


@dataclass(frozen=True, slots=True)
class Loop:
    """What the loop drives. ``validate`` runs every ``validate_every`` steps, before and after."""

    trainer: Trainer
    source: BatchSource
    recorder: RunRecorder
    settings: TrainSettings
    publish: Callable[[], Awaitable[int]]
    """`Trainer.publish`, on the engine's loop."""
    validate: Callable[[int], Awaitable[Metrics]] | None
    validate_every: int
    on_step: Callable[[int, Metrics], None]


@dataclass(frozen=True, slots=True)
class LoopResult:
    before: Metrics
    after: Metrics
    checkpoint: Path | None
    train_seconds: float
    """Of the steps alone, without validation and checkpoints."""


async def train(loop: Loop, first_step: int) -> LoopResult:
    """Train from ``first_step`` (1, or what follows the restored checkpoint) to the last step."""
    settings, trainer, recorder = loop.settings, loop.trainer, loop.recorder
    before = await loop.validate(0) if loop.validate and first_step == 1 else {}
    after, checkpoint, seconds = before, None, 0.0
    for step in range(first_step, settings.steps + 1):
        started = time.monotonic()
        batch = await loop.source.batch(step, trainer.version)
        rolled_out = time.monotonic()
        updated = await asyncio.to_thread(trainer.update, batch.batch)
        _assert_all_trained(batch, updated, step)
        version = await loop.publish()
        ended = time.monotonic()
        seconds += ended - started
        metrics = {
            **batch.metrics,
            **updated,
            "learning_rate": batch.batch.learning_rate,
            "weight_version": version,
            "seconds_rollout": rolled_out - started,
            "seconds_update": ended - rolled_out,
        }
        recorder.metrics("train", step, metrics)
        loop.on_step(step, metrics)
        last = step == settings.steps
        if loop.validate and (last or (loop.validate_every and step % loop.validate_every == 0)):
            after = await loop.validate(step)
        if last or step % settings.save_every == 0:
            checkpoint = recorder.checkpoint(step, trainer.save, {"version": version}, settings.keep_last)
    return LoopResult(before, after, checkpoint, seconds)


def _assert_all_trained(batch: RolloutBatch, updated: Metrics, step: int) -> None:
    """Every sampled token reached the trainer once an epoch: those of zero advantage count, though they
    cost nothing."""
    seen = updated["tokens_trained"] + updated["tokens_zero_advantage"]
    wanted = batch.sampled_tokens * batch.epochs
    if seen != wanted:
        raise AjetError(
            f"step {step}: {wanted} tokens were to be trained, but the trainer saw {seen:.0f}. "
            "This is a bug in AgentJet: please report it with the run folder."
        )
