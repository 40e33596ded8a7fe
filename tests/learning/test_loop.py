"""The loop: in which order batches are begun, weights updated and published, checkpoints written."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from ajet.learning.batch import RolloutBatch
from ajet.learning.loop import Loop, train
from ajet.learning.rollouts import ValidationFailed
from ajet.learning.settings import TrainSettings
from ajet.rollout.checkpoints import checkpoints, validation_reward
from ajet.rollout.recorder import RunRecorder
from ajet.types import AjetError
from tests.patience import PATIENCE


class Told:
    """A trainer and a source that tell what they are asked for, in order."""

    def __init__(self, recorder: RunRecorder, rewards: Sequence[float] = (), fails_at: int = 0) -> None:
        self.story: list[str] = []
        self.version = 0
        self.gaps: dict[int, float] = {}
        self.cancelled = False
        self._recorder = recorder
        self._rewards, self._validates = iter(rewards), bool(rewards)
        self._fails_at = fails_at

    async def batch(self, step: int, version: int) -> RolloutBatch:
        self.story.append(f"batch {step} for {version}")
        try:
            await asyncio.sleep(PATIENCE if 0 < self._fails_at < step else 0.01)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        batch: Any = SimpleNamespace(step=step, learning_rate=0.1)
        return RolloutBatch(batch, 5, {})

    def update(self, batch: Any) -> dict[str, float]:
        self.story.append(f"update {batch.step}")
        if batch.step == self._fails_at:
            raise FloatingPointError("non-finite loss")
        return {
            "tokens_trained": 5.0,
            "tokens_zero_advantage": 0.0,
            "logprob_diff_mean": self.gaps.get(batch.step, 0.01),
        }

    async def publish(self) -> int:
        self.version += 1
        self.story.append(f"publish {self.version}")
        return self.version

    def save(self, path: Path) -> None:
        path.mkdir()

    async def validate(self, step: int) -> dict[str, float]:
        self.story.append(f"validate {step}")
        reward = next(self._rewards)
        if math.isnan(reward):
            raise ValidationFailed("all episodes failed")
        return {"reward": reward}

    def run(self, **settings: Any) -> None:
        asyncio.run(train(self.loop(**settings), 1))

    def loop(self, **settings: Any) -> Loop:
        trainer: Any = self
        return Loop(
            trainer=trainer,
            source=self,
            recorder=self._recorder,
            settings=TrainSettings(**settings),
            publish=self.publish,
            validate=self.validate if self._validates else None,
            validate_every=1,
            on_step=lambda *_: None,
        )


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


def test_a_run_of_no_steps_says_that_nothing_is_trained(tmp_path: Path) -> None:
    told, said = Told(RunRecorder(tmp_path)), list[str]()
    asyncio.run(train(replace(told.loop(steps=0), say=said.append), 1))
    assert said == ["train.steps is 0: nothing is trained"] and not told.story


def test_a_step_frees_its_episodes_before_the_next_one_begins(tmp_path: Path) -> None:
    class Episode:
        def __init__(self) -> None:
            self.itself = self

    class Busy(ThreadPoolExecutor):
        """Keeps what its threads were given, as a thread does that has not run again since its work ended."""

        kept: ClassVar[list[Any]] = []

        def submit(self, *work: Any, **options: Any) -> Future[Any]:
            self.kept.append((work, options))
            return super().submit(*work, **options)

    class Remembers(Told):
        earlier: weakref.ref[Episode] | None = None

        async def batch(self, step: int, version: int) -> RolloutBatch:
            if step == 1:
                asyncio.get_running_loop().set_default_executor(Busy())
            assert self.earlier is None or self.earlier() is None
            batch: Any = SimpleNamespace(step=step, learning_rate=0.1, episode=Episode())
            self.earlier = weakref.ref(batch.episode)
            return RolloutBatch(batch, 5, {})

    told = Remembers(RunRecorder(tmp_path))
    gc.disable()  # while another thread collects, which a finalizer may prolong, `gc.collect` returns at once
    try:
        told.run(steps=3)
    finally:
        gc.enable()
    assert told.version == 3
    assert Busy.kept


def test_a_failing_update_cancels_the_batch_ahead(tmp_path: Path) -> None:
    told = Told(RunRecorder(tmp_path), fails_at=1)
    with pytest.raises(FloatingPointError):
        told.run(steps=3, asynchronous=True)
    assert told.cancelled


@pytest.mark.parametrize("asynchronous", [False, True])
def test_episodes_run_while_a_checkpoint_is_written_and_the_update_waits_for_it(
    tmp_path: Path, asynchronous: bool
) -> None:
    class Waits(Told):
        saving, moved = threading.Event(), threading.Event()

        async def batch(self, step: int, version: int) -> RolloutBatch:
            while step == 2 and not self.saving.is_set():
                await asyncio.sleep(0.01)
            if step == 2:
                self.moved.set()
            return await super().batch(step, version)

        def save(self, path: Path) -> None:
            self.saving.set()
            assert self.moved.wait(PATIENCE)
            time.sleep(0.05)  # the batch is complete before
            self.story.append(f"saved {self.version}")
            super().save(path)

    told = Waits(RunRecorder(tmp_path))
    told.run(steps=2, asynchronous=asynchronous, save_every=1)
    order = told.story.index
    assert order("batch 2 for 1") < order("saved 1") < order("update 2")
    seconds = [json.loads(line)["seconds_checkpoint"] for line in (tmp_path / "metrics.jsonl").open()]
    assert seconds[0] == 0 < seconds[1], "what the second update waited"


def test_a_checkpoint_that_cannot_be_written_ends_the_run_before_the_next_update(tmp_path: Path) -> None:
    class Full(Told):
        def save(self, path: Path) -> None:
            raise OSError(28, "No space left on device")

    told = Full(RunRecorder(tmp_path))
    with pytest.raises(AjetError, match="No space left on device"):
        told.run(steps=2, save_every=1)
    assert "update 1" in told.story and "update 2" not in told.story
    assert not checkpoints(tmp_path)


def test_a_cancelled_run_ends_when_its_checkpoint_is_whole(tmp_path: Path) -> None:
    class Saves(Told):
        saving, go_on = threading.Event(), threading.Event()

        def save(self, path: Path) -> None:
            self.saving.set()
            assert self.go_on.wait(PATIENCE)
            super().save(path)

    told = Saves(RunRecorder(tmp_path))

    async def main() -> None:
        run = asyncio.create_task(train(told.loop(steps=2, save_every=1), 1))
        await asyncio.to_thread(told.saving.wait, 30)
        for _ in range(2):
            run.cancel()
            await asyncio.sleep(0.01)
        assert not run.done()
        told.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(main())
    assert [c.name for c in checkpoints(tmp_path)] == ["step_000001"]


class Slow(Told):
    """Its second update, and what comes after that, waits."""

    def __init__(self, recorder: RunRecorder, waits: str) -> None:
        super().__init__(recorder)
        self.reached, self.go_on, self.waits = threading.Event(), threading.Event(), waits

    async def batch(self, step: int, version: int) -> RolloutBatch:
        if self.waits == "batch" and step == 3:
            self.reached.set()
            await asyncio.sleep(PATIENCE)
        return await super().batch(step, version)

    def update(self, batch: Any) -> dict[str, float]:
        if self.waits == "update" and batch.step == 2:
            self.reached.set()
            assert self.go_on.wait(PATIENCE)
        return super().update(batch)

    def interrupted(self, times: int = 1) -> None:
        """Train, and cancel that once the place is reached."""

        async def main() -> None:
            run = asyncio.create_task(train(self.loop(steps=4, save_every=4), 1))
            await asyncio.to_thread(self.reached.wait, PATIENCE)
            for _ in range(times):
                run.cancel()
                await asyncio.sleep(0.01)
            self.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await run

        asyncio.run(main())


@pytest.mark.parametrize("waits", ["batch", "update"])
def test_a_cancelled_run_saves_its_last_step_if_the_last_checkpoint_is_old(
    tmp_path: Path, waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Slow(RunRecorder(tmp_path / "short"), waits).interrupted()
    assert not checkpoints(tmp_path / "short"), "it has lost less than a minute"
    monkeypatch.setattr("ajet.learning.loop.WORTH_SAVING", 0.0)
    told = Slow(RunRecorder(tmp_path / "long"), waits)
    told.interrupted()
    assert [c.name for c in checkpoints(tmp_path / "long")] == ["step_000002"]
    lines = [json.loads(line) for line in (tmp_path / "long" / "metrics.jsonl").open()]
    assert [line["step"] for line in lines] == [1, 2] and told.story[-1] != "update 3"


def test_a_second_cancellation_does_not_wait_for_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet.learning.loop.WORTH_SAVING", 0.0)
    Slow(RunRecorder(tmp_path), "update").interrupted(times=2)
    lines = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()]
    assert lines == [1] and not checkpoints(tmp_path), "the update may still change the weights"


def test_a_checkpoint_is_written_after_so_many_minutes_too(tmp_path: Path) -> None:
    told = Told(RunRecorder(tmp_path))
    told.run(steps=3, save_every=100, save_minutes=1e-9, keep_last=9)
    assert [c.name for c in checkpoints(tmp_path)] == ["step_000001", "step_000002", "step_000003"]


def test_keep_best_writes_a_checkpoint_whenever_a_validation_beats_all_before(tmp_path: Path) -> None:
    told = Told(RunRecorder(tmp_path), rewards=(0.1, 0.3, 0.9, 0.5, 0.4))
    told.run(steps=4, save_every=4, keep_last=1, keep_best=True)
    assert [c.name for c in checkpoints(tmp_path)] == ["step_000002", "step_000004"]
    best = json.loads((checkpoints(tmp_path)[0] / "ajet.json").read_text())
    assert best == {"step": 2, "version": 2, "validation_reward": 0.9}


def test_a_validation_whose_episodes_all_fail_loses_no_step_and_is_repeated_when_the_run_resumes(
    tmp_path: Path,
) -> None:
    told = Told(RunRecorder(tmp_path), rewards=(0.5, 0.5, math.nan, 0.7))
    with pytest.raises(ValidationFailed):
        told.run(steps=2, save_every=1)
    assert [c.name for c in checkpoints(tmp_path)] == ["step_000001", "step_000002"]
    resumed = asyncio.run(train(told.loop(steps=2, save_every=1), 3))
    assert resumed.after == {"reward": 0.7} and told.story[-2:] == ["validate 2", "validate 2"]
    assert validation_reward(checkpoints(tmp_path)[-1]) == 0.7
    again = asyncio.run(train(told.loop(steps=2, save_every=1), 3))
    assert not again.after, "it has succeeded"


def test_a_gap_between_engine_and_trainer_is_worth_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told(RunRecorder(tmp_path))
    told.gaps = {2: 0.25, 3: 0.3}  # in the first step 0.01, as with bfloat16
    told.run(steps=3)
    (message,) = caplog.messages
    assert message.startswith(
        "step 2: the trainer's logprobs of sampled tokens differ from the engine's by 0.25"
    )


def test_in_an_asynchronous_run_only_the_first_step_shows_the_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told(RunRecorder(tmp_path))
    # The weights that learn from these tokens are newer than those that sampled them.
    told.gaps = {2: 0.25, 3: 0.25}
    told.run(steps=3, asynchronous=True)
    assert not caplog.messages
