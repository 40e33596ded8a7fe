"""Runs whose model is ruined: said when it shows, and no success in the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ajet.learning.batch import RolloutBatch
from ajet.learning.collapse import CollapseCheck
from ajet.learning.loop import Loop, LoopResult, NotFinite, train
from ajet.learning.settings import TrainSettings
from ajet.rollout.recorder import RunRecorder
from ajet.types import AjetError

LEARNS = (0.14, 0.3)
FLAT = (0.0, 1.0)


class Ruins:
    """A trainer, and its source, whose steps have these rewards and shares of groups with equal rewards."""

    version = 0

    def __init__(self, steps: Sequence[tuple[float, float]], **updated: float) -> None:
        self._steps = steps
        self._updated = updated

    async def batch(self, step: int, version: int) -> RolloutBatch:
        reward, share = self._steps[step - 1]
        batch: Any = SimpleNamespace(step=step, learning_rate=1000.0)
        return RolloutBatch(batch, 5, {"reward": reward, "groups": 8, "groups_zero_advantage": share})

    def update(self, batch: Any) -> dict[str, float]:
        known = {"tokens_trained": 5.0, "tokens_zero_advantage": 0.0, "loss": 0.1}
        return {**known, **(self._updated if batch.step == len(self._steps) else {})}

    async def publish(self) -> int:
        self.version += 1
        return self.version

    def save(self, path: Path) -> None:
        path.mkdir()

    def run(self, folder: Path, validation: Sequence[float] = ()) -> LoopResult:
        trainer: Any = self
        rewards = iter(validation)

        async def validate(step: int) -> dict[str, float]:
            return {"reward": next(rewards)}

        loop = Loop(
            trainer=trainer,
            source=self,
            recorder=RunRecorder(folder),
            settings=TrainSettings(steps=len(self._steps), save_every=1, learning_rate=1000.0),
            publish=self.publish,
            validate=validate if validation else None,
            validate_every=0,
            on_step=lambda *_: None,
        )
        return asyncio.run(train(loop, 1))


def test_a_collapse_is_a_warning_once_and_the_end_names_the_last_checkpoint_before_it_and_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ajet"):
        ended = Ruins([LEARNS, LEARNS, FLAT, FLAT]).run(tmp_path)
    (said,) = caplog.messages
    assert said.startswith(
        "step 3: the reward has collapsed: since step 3 all episodes of 8 groups have the reward 0"
    )
    assert "since step 3 all episodes of 16 groups" in ended.ruined
    assert "step_000002" in ended.ruined and "lower train.learning_rate (now 1000)" in ended.ruined


@pytest.mark.parametrize(
    "steps",
    [
        [LEARNS, FLAT, FLAT, LEARNS],  # it learns again
        [LEARNS, (1.0, 1.0), (1.0, 1.0)],  # it has learned everything
        [FLAT, FLAT, FLAT],  # it never learned
        [(0.02, 0.9), FLAT, (0.02, 0.9), FLAT],  # tasks that are seldom solved
    ],
)
def test_what_is_no_collapse_is_a_success(tmp_path: Path, steps: list[tuple[float, float]]) -> None:
    ended = Ruins(steps).run(tmp_path)
    assert not ended.ruined and not ended.collapsed


def test_a_model_that_still_solves_validation_tasks_is_not_ruined(tmp_path: Path) -> None:
    steps = [LEARNS, LEARNS, FLAT, FLAT]
    ended = Ruins(steps).run(tmp_path, validation=[0.2, 0.2])
    assert not ended.ruined and "the reward has collapsed: since step 3" in ended.collapsed
    assert Ruins(steps).run(tmp_path / "other", validation=[0.2, 0.0]).ruined


@pytest.mark.whole
def test_healthy_runs_whose_rewards_are_rare_do_not_collapse() -> None:
    """The share of passes stays 0.03, in 4 groups of 8; most groups have equal rewards, and many steps only such groups."""
    collapsed = 0
    for seed in range(50):
        check = CollapseCheck()
        passed = np.random.default_rng(seed).random((150, 4, 8)) < 0.03
        found = False
        for step, groups in enumerate(passed, 1):
            equal = np.mean([group.all() or not group.any() for group in groups])
            metrics = {
                "reward": groups.mean(),
                "reward_std": groups.std(),
                "groups": 4,
                "groups_zero_advantage": equal,
            }
            check.follow(step, {name: float(value) for name, value in metrics.items()})
            found = found or bool(check.found())
        collapsed += found
    assert collapsed <= 1


def test_metrics_without_groups_are_no_collapse() -> None:
    check = CollapseCheck()
    for step in (1, 2, 3):
        check.follow(step, {"reward": 0.0, "loss": 1.0})
        assert not check.found()


def test_groups_that_each_have_one_reward_of_their_own_are_no_collapse() -> None:
    check = CollapseCheck()
    check.follow(1, {"reward": 0.6, "groups": 8, "groups_zero_advantage": 0.3, "reward_std": 0.5})
    for step in (2, 3, 4):
        check.follow(step, {"reward": 0.5, "groups": 8, "groups_zero_advantage": 1.0, "reward_std": 0.5})
        assert not check.found()


@pytest.mark.parametrize("bad", [{"loss": float("nan")}, {"grad_norm": float("inf")}])
def test_numbers_that_are_not_finite_end_the_run_and_name_step_checkpoint_and_remedy(
    tmp_path: Path, bad: dict[str, float]
) -> None:
    trainer = Ruins([LEARNS, LEARNS, LEARNS], **bad)
    with pytest.raises(
        NotFinite,
        match=r"step 3: the (loss is nan|grad_norm is inf)\. Train again from its last .*step_000002",
    ) as e:
        trainer.run(tmp_path)
    assert isinstance(e.value, AjetError) and "lower train.learning_rate (now 1000)" in str(e.value)
    assert trainer.version == 2, "what may be ruined is not published"


def test_without_a_checkpoint_the_remedy_begins_anew(tmp_path: Path) -> None:
    with pytest.raises(
        NotFinite, match=r"step 1: the loss is nan\. Train again from the beginning with a lower"
    ):
        Ruins([LEARNS], loss=float("nan")).run(tmp_path)
