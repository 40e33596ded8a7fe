"""The learning rate of each step: warm-up, then constant, linear or cosine."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from pydantic import ValidationError

from ajet.learning.settings import TrainSettings


def rates(**settings: Any) -> list[float]:
    train = TrainSettings(learning_rate=1.0, **settings)
    return [round(train.rate_at(step), 6) for step in range(1, train.steps + 1)]


def test_a_linear_schedule_falls_evenly_from_the_whole_rate_to_its_final_share() -> None:
    assert rates(steps=5, schedule="linear", final_share=0) == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert rates(steps=5, schedule="linear", final_share=0.2) == [1.0, 0.8, 0.6, 0.4, 0.2]


def test_a_cosine_schedule_is_half_a_wave_between_the_same_ends() -> None:
    found = rates(steps=5, schedule="cosine", final_share=0.1)
    wave = [(1 + math.cos(math.pi * k / 4)) / 2 for k in range(5)]
    assert found == pytest.approx([0.1 + 0.9 * value for value in wave], abs=1e-6)
    assert found[0] == 1.0 and found[2] == 0.55 and found[-1] == 0.1


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_warm_up_comes_first_and_its_last_step_has_the_whole_rate(schedule: str) -> None:
    found = rates(steps=12, schedule=schedule, warmup_steps=4)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(a >= b for a, b in itertools.pairwise(found[3:]))
    assert found[-1] == (1.0 if schedule == "constant" else 0.1), "by default the last step still learns"


def test_a_constant_rate_stays() -> None:
    assert rates(steps=3) == [1.0, 1.0, 1.0]
    with pytest.raises(ValidationError, match="final_share needs schedule: linear or cosine"):
        TrainSettings(final_share=0.5)


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (3, 3), (2, 5)])
def test_runs_that_end_with_their_warm_up_have_no_decay(steps: int, warmup: int) -> None:
    whole = [round(min(1.0, step / warmup), 6) if warmup else 1.0 for step in range(1, steps + 1)]
    assert rates(steps=steps, warmup_steps=warmup, schedule="cosine") == whole


def test_the_settings_of_a_finished_job_file_can_be_read_again() -> None:
    for train in (TrainSettings(), TrainSettings(schedule="cosine", final_share=0.3)):
        assert TrainSettings(**train.model_dump()) == train
