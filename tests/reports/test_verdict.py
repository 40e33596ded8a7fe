"""The verdict on a run: what was learned beyond chance, and what to try next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ajet.api.results import load_run
from ajet.reports.folder import RecordedRun
from ajet.reports.text import describe_run
from ajet.reports.verdict import verdict_of

from .conftest import Folder

Successes = Sequence[bool | None]


def run(
    before: Successes = (), after: Successes = (), rewards: Sequence[float] = (0.5,), **metrics: float
) -> RecordedRun:
    """A run whose validation tasks had these outcomes (None: failed)."""
    entries: list[Any] = []
    for step, outcomes in ((0, before), (9, after)):
        for number, success in enumerate(outcomes):
            entries.append(_Entry(f"t{number}", step, success))
    lines = [
        {"type": "train", "step": n + 1, "reward": reward, **metrics} for n, reward in enumerate(rewards)
    ]
    lines += [
        {"type": "validation", "step": step} for step, episodes in ((0, before), (9, after)) if episodes
    ]
    return RecordedRun(Path(), {}, entries, lines)


def graded(tasks: int) -> RecordedRun:
    """All tasks get better, by success and by rewards that say more."""
    made = run([False] * tasks, [True] * tasks)
    for entry in made.entries:
        cast("_Entry", entry).reward *= 0.9
    return made


class _Entry:
    def __init__(self, task: str, step: int, success: bool | None) -> None:
        self.phase, self.task, self.step = "validation", task, step
        self.is_success, self.reward = success, float(bool(success))
        self.failure = "timeout" if success is None else None


def test_a_gain_on_the_same_tasks_beyond_chance_is_learned() -> None:
    found = verdict_of(run([False] * 10, [True] * 8 + [False] * 2))
    assert found and found.outcome == "learned" and found.change
    assert (found.change.before, found.change.after, found.change.gain) == (0.0, 0.8, 0.8)
    # By hand: 8 differences of one sign; 2 of 2^8 combinations of signs are as far from 0.
    assert found.change.p == 2 / 256 and (found.change.solved, found.change.lost) == (8, 0)
    low, high = found.change.interval or (0, 0)
    assert 0 < low < 0.8 < high
    assert found.lines[0].startswith(
        "learned: accuracy on 10 validation tasks 0.000 → 0.800, a change of +0.800"
    )


def test_a_validation_that_has_not_come_to_its_end_is_not_compared() -> None:
    made = run([False] * 10, [False] * 10)
    quick = [_Entry(f"t{number}", 18, True) for number in range(6)]  # those that took longest are cut off
    cut: list[Any] = [*made.entries, *quick]
    found = verdict_of(replace(made, entries=cut))
    assert found == verdict_of(made) and found and found.outcome == "no change shown"


def test_a_change_within_chance_is_not_shown_and_the_verdict_says_what_would_have_shown() -> None:
    found = verdict_of(run([False] * 9 + [True], [True, *[False] * 8, True]))
    assert found and found.outcome == "no change shown"
    assert "within chance: only a change of about" in found.lines[0] and "ajet forecast" in str(found)


def test_a_run_that_has_ruined_its_model_is_worse() -> None:
    found = verdict_of(run([True] * 10, [False] * 9 + [True]))
    assert found and found.outcome == "worse" and "train.learning_rate" in str(found)


def test_a_failed_episode_has_not_succeeded() -> None:
    found = verdict_of(run([True] * 10, [None] * 10))
    assert found and found.outcome == "worse"


def test_where_only_rewards_are_given_failed_episodes_are_left_out_and_counted() -> None:
    made = run([False] * 10, [True] * 8 + [None] * 2)
    for entry in made.entries:
        cast("_Entry", entry).is_success = None
    told = str(verdict_of(made))
    assert "reward on 8 validation tasks, without the failed episodes (0 and 2), 0.000 → 1.000" in told


@pytest.mark.parametrize(
    ("rewards", "outcome"),
    [
        ([0.1, 0.12, 0.11, 0.5, 0.6, 0.8, 0.81, 0.79], "learned"),
        ([0.1, 0.3, 0.2, 0.1, 0.3, 0.15, 0.25, 0.2], "no change shown"),
        ([0.1, 0.9], "unknown"),
    ],
)
def test_without_validation_tasks_the_first_and_last_steps_say_less(
    rewards: list[float], outcome: str
) -> None:
    found = verdict_of(run(rewards=rewards))
    assert found and found.outcome == outcome and "task.validation" in found.advice[-1]


def test_alarms_are_in_the_verdict_with_the_remedy_of_the_first() -> None:
    found = verdict_of(run(rewards=[0.5] * 8, episodes=10.0, episodes_failed=5.0))
    assert found and [alarm.name for alarm in found.alarms] == ["failed_episodes"]
    assert any(
        "failed_episodes from step 4, on 5 steps: 50% of the episodes fail" in line for line in found.lines
    )
    assert found.advice[0].startswith("`ajet show` has their causes")


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (run([False] * 5, [True] * 5), "it takes 6 validation tasks to show any change"),
        (run(rewards=[0, 0, 0, 1, 1, 1]), "it takes 7 steps to show any change"),
        (
            run(rewards=[0.5, 0.5, 0.5, 0.9, 0.6, 0.6, 0.6]),
            "+0.100, p = 0.7. That is within chance: these rewards do not vary",
        ),
        (
            run([False] * 8, [False] * 8),
            "+0.000, p = 1. That is within chance: no task has changed; 6 that all get better",
        ),
        (graded(6), "it takes 7 validation tasks to show any change"),
    ],
)
def test_too_little_to_show_a_change_shows_none_and_says_so(made: RecordedRun, told: str) -> None:
    found = verdict_of(made)
    assert found and found.outcome == "no change shown" and told in found.lines[0]


def test_six_tasks_that_all_get_better_show_a_change() -> None:
    found = verdict_of(run([False] * 6, [True] * 6))
    assert found and found.outcome == "learned" and "validation tasks to show" not in str(found)
    assert "a change of +1.000, p = 0.031, 6 tasks better" in found.lines[0], "equal changes tell no interval"


def test_with_two_figures_it_takes_one_task_more() -> None:
    found = verdict_of(graded(7))
    assert found and found.outcome == "learned"


def test_rewards_that_say_more_than_success_are_compared_too() -> None:
    made = run([False] * 12, [False] * 12)
    for entry in made.entries:
        entry.reward = 0.28 if entry.step == 0 else 0.01
    found = verdict_of(made)
    assert found and found.outcome == "worse" and found.lines[0].startswith("worse: reward on 12 validation")


CUT = {"episodes_cut": 10.0, "episodes": 10.0, "reward_cut": 0.0, "reward_min": 0.0, "reward_max": 1.0}


@pytest.mark.parametrize(
    ("outcomes", "metrics", "first"),
    [
        # Entropy explodes at step 7 of a run that learns nothing, after answers are cut at step 4: the rate is the cause.
        (
            ([False] * 9, [False] * 9),
            {**CUT, "sampled_entropy": 4.0},
            "Training has ruined the model: the entropy",
        ),
        (
            ([True] * 9, [False] * 9),
            CUT,
            "Train again from the beginning with a lower train.learning_rate (now 0.001).",
        ),
        (([False] * 9, [True] * 9), CUT, "Show the model a short answer"),
        (([False] * 9, [False] * 9), CUT, "Show the model a short answer"),
        (
            ([True] * 9, [False] * 9),
            {"episodes": 10.0, "episodes_failed": 9.0},
            "`ajet show` has their causes",
        ),
    ],
)
def test_the_remedy_of_the_cause_comes_first(
    outcomes: tuple[Successes, Successes], metrics: dict[str, float], first: str
) -> None:
    made = run(*outcomes, rewards=[0.1] * 8, groups=4.0, reward_std=0.3, **metrics)
    if "sampled_entropy" in metrics:
        for line in made.metrics[:3]:
            line["sampled_entropy"] = 1.0
    made.job["train"] = {"learning_rate": 1e-3}
    found = verdict_of(made)
    assert found and found.advice[0].startswith(first), found.lines


@pytest.mark.parametrize(("equal", "advised"), [(0.2, True), (1.0, False)])
def test_training_on_is_advised_where_groups_still_differ(equal: float, advised: bool) -> None:
    found = verdict_of(run([False] * 10, [True] * 8 + [False] * 2, groups_zero_advantage=equal))
    assert found and found.outcome == "learned"
    advice = "Train on, as the reward is not near its end: ajet run --resume . --steps 2 (the steps in all)."
    assert (advice in found.advice) == advised


def test_what_trains_nothing_has_no_verdict() -> None:
    assert verdict_of(RecordedRun(Path(), {}, [], [{"type": "debug", "step": 1, "reward": 1.0}])) is None


def test_the_report_and_the_api_have_it(folder: Folder) -> None:
    folder.write([])
    folder.metrics("train", 1, reward=0.5)
    told = describe_run(folder.summary())
    assert "verdict\n  unknown: there are neither two validations" in told
    verdict = load_run(folder.dir).verdict
    assert verdict and verdict.outcome == "unknown"
