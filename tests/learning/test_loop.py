"""The loop: in which order batches are begun, weights updated and published, checkpoints written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.learning.batch import RolloutBatch
from ajet.learning.loop import Loop, train
from ajet.learning.settings import TrainSettings
from ajet.rollout.checkpoints import checkpoints
from ajet.rollout.recorder import RunRecorder


class Told:
    """A trainer and a source that tell what they are asked for, in order."""

    def __init__(self, recorder: RunRecorder, rewards: Sequence[float] = (), fails_at: int = 0) -> None:
        self.story: list[str] = []
        self.version = 0
        self.cancelled = False
        self._recorder = recorder
        self._rewards = iter(rewards)
        self._fails_at = fails_at

    async def batch(self, step: int, version: int) -> RolloutBatch:
        self.story.append(f"batch {step} for {version}")
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        batch: Any = SimpleNamespace(step=step, learning_rate=0.1)
        return RolloutBatch(batch, 5, {})

    def update(self, batch: Any) -> dict[str, float]:
        self.story.append(f"update {batch.step}")
        if batch.step == self._fails_at:
            raise FloatingPointError("non-finite loss")
        return {"tokens_trained": 5.0, "tokens_zero_advantage": 0.0}

    async def publish(self) -> int:
        self.version += 1
        self.story.append(f"publish {self.version}")
        return self.version

    def save(self, path: Path) -> None:
        path.mkdir()

    async def validate(self, step: int) -> dict[str, float]:
        return {"reward": next(self._rewards)}

    def run(self, **settings: Any) -> None:
        trainer: Any = self
        loop = Loop(
            trainer,
            self,
            self._recorder,
            TrainSettings(**settings),
            self.publish,
            self.validate if settings.get("keep_best") else None,
            1,
            lambda *_: None,
        )
        asyncio.run(train(loop, 1))


def test_a_synchronous_run_samples_from_the_weights_that_it_trains(tmp_path: Path) -> None:
    told = Told(RunRecorder(tmp_path))
    told.run(steps=2)
    assert told.story == [
        *("batch 1 for 0", "update 1", "publish 1"),
        *("batch 2 for 1", "update 2", "publish 2"),
    ]


def test_an_asynchronous_run_begins_the_next_batch_before_the_update_has_ended(tmp_path: Path) -> None:
    told = Told(RunRecorder(tmp_path))
    told.run(steps=3, asynchronous=True)
    order = told.story.index
    assert order("batch 2 for 1") < order("publish 1") < order("update 2")
    assert order("batch 3 for 2") < order("publish 2") < order("update 3")
    assert len(told.story) == 9, "nothing is sampled after the last step"


def test_a_failing_update_cancels_the_batch_ahead(tmp_path: Path) -> None:
    told = Told(RunRecorder(tmp_path), fails_at=1)
    with pytest.raises(FloatingPointError):
        told.run(steps=3, asynchronous=True)
    assert told.cancelled


def test_keep_best_writes_a_checkpoint_whenever_a_validation_beats_all_before(tmp_path: Path) -> None:
    told = Told(RunRecorder(tmp_path), rewards=(0.1, 0.3, 0.9, 0.5, 0.4))
    told.run(steps=4, save_every=4, keep_last=1, keep_best=True)
    assert [c.name for c in checkpoints(tmp_path)] == ["step_000002", "step_000004"]
    best = json.loads((checkpoints(tmp_path)[0] / "ajet.json").read_text())
    assert best == {"step": 2, "version": 2, "validation_reward": 0.9}
