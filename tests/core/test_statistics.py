"""Standard errors, the paired test and its correction, against known values and over many seeds."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from ajet.types import Spent
from ajet.utils.statistics import first_and_last, holm, mean_and_error, sign_flip, student
from ajet_selection.comparison import Comparison, Outcome, compare

DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
"""Heights of cross-fertilised maize less those of self-fertilised, in eighths of an inch: the example for which Fisher
counted all combinations of signs (The Design of Experiments, 1935, section 21)."""


def test_a_mean_has_the_standard_error_of_the_textbook() -> None:
    mean, error = mean_and_error([2, 4, 4, 4, 5, 5, 7, 9])
    assert mean == 5 and error == pytest.approx(math.sqrt(32 / 7 / 8))
    assert mean_and_error([3.0]) == (3.0, None)


def test_fishers_own_example_has_his_p_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """He counts 863 of 32,768 combinations in each direction."""
    assert sign_flip(DARWIN) == 2 * 863 / 32768
    monkeypatch.setattr("ajet.utils.statistics.ALL_SIGNS", 14)
    assert sign_flip(DARWIN) == pytest.approx(2 * 863 / 32768, abs=0.005)  # drawn


def test_pairs_without_a_difference_say_nothing() -> None:
    assert sign_flip([0.0] * 30) == 1.0
    assert sign_flip([0.0] * 30 + [1.0] * 6) == sign_flip([1.0] * 6) == 2 / 64


def test_sums_that_differ_by_rounding_only_are_equal() -> None:
    assert sign_flip([0.1, 0.2, -0.3]) == 1.0


def test_first_and_last_values_are_compared_with_all_orders() -> None:
    # By hand: 3, 2 and 3 of 8 values have 560 places, and in 2 of them the difference is as large.
    assert first_and_last([1, 2, 3, 10, 11, 20, 30, 40], 3) == pytest.approx(2 / 560, abs=0.003)
    assert first_and_last([1, 2, 3, 4, 5, 6], 3) == pytest.approx(2 / 20, abs=0.02)
    assert first_and_last([0.5] * 9, 3) == first_and_last([0.1, 0.2, 0.3, 9.0, 0.3, 0.2, 0.1], 3) == 1


@pytest.mark.parametrize("steps", [7, 10, 20])
def test_a_sequence_without_a_change_seldom_differs(steps: int) -> None:
    cases, draw = 400, np.random.default_rng(steps)
    found = sum(
        first_and_last(draw.binomial(8, 0.05, steps).tolist(), 3, seed) < 0.05 for seed in range(cases)
    )
    assert found < 0.08 * cases  # 0.05 + 3 standard errors


def test_students_t_is_that_of_the_table() -> None:
    assert [student(n) for n in (3, 4, 9, 30)] == pytest.approx([3.182, 2.776, 2.262, 2.042], abs=0.01)


def test_holm_corrects_as_in_his_paper() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@pytest.mark.whole
@pytest.mark.parametrize(("pairs", "cases"), [(10, 1000), (40, 200)])
def test_equal_models_differ_significantly_in_at_most_one_of_twenty_cases(pairs: int, cases: int) -> None:
    draw, error = np.random.default_rng(pairs), math.sqrt(0.05 * 0.95 / cases)
    found = sum(sign_flip(draw.normal(size=pairs).tolist(), seed) < 0.05 for seed in range(cases))
    assert 0.05 - 3 * error < found / cases < 0.05 + 3 * error


def _models(draw: random.Random, names: str, tasks: int = 12) -> Comparison:
    """Models whose rewards come from one distribution, over tasks of different difficulty."""
    difficulty = [draw.random() for _ in range(tasks)]
    return compare(
        {
            name: [Outcome(str(t), d + draw.gauss(0, 0.3), 1.0, Spent()) for t, d in enumerate(difficulty)]
            for name in names
        }
    )


@pytest.mark.whole
def test_the_best_of_several_equal_models_is_rarely_better_than_any_other() -> None:
    """The best was chosen by the data that test it: without correction for all pairs, one of seven such cases would find
    some difference."""
    cases = [_models(random.Random(seed), "abcd") for seed in range(150)]
    assert sum(any(d.is_significant for d in case.differences) for case in cases) < 0.08 * 150
    assert sum(case.is_significant for case in cases) < 0.02 * 150


def outcomes(rewards: list[float | None], repeats: int = 1) -> list[Outcome]:
    return [Outcome(str(i // repeats), reward, 2.0, Spent(100, 20, 0.5)) for i, reward in enumerate(rewards)]


def test_episodes_of_one_task_count_as_one_value() -> None:
    found = compare({"a": outcomes([1, 0, 1, 1], repeats=2), "b": outcomes([0, 0, 0, 1], repeats=2)})
    first = found.models[0]
    assert (first.name, first.episodes) == ("a", 4)
    assert first.reward and (first.reward.mean, first.reward.standard_error) == (0.75, 0.25)
    assert first.tokens and (first.tokens.mean, first.tokens.standard_error) == (120, 0)
    assert first.cost and first.cost.mean == 0.5 and first.seconds and first.seconds.mean == 2
    (difference,) = found.differences
    assert (difference.reward.mean, difference.reward.standard_error) == (0.5, 0)


def test_a_failed_episode_never_pays() -> None:
    found = compare({"fails": outcomes([-1, None, None]), "slow": outcomes([-1, -4, -5])})
    assert found.best == "slow"
    (_, fails) = found.models
    assert fails.failed == 2 and fails.reward and fails.reward.mean == pytest.approx(-11 / 3)


def test_a_model_with_an_error_is_listed_and_not_compared() -> None:
    found = compare(
        {"a": outcomes([1, 1]), "b": outcomes([None]), "c": outcomes([0, 0])}, {"b": "unreachable"}
    )
    assert [(m.name, m.error) for m in found.models] == [("a", None), ("c", None), ("b", "unreachable")]
    assert not found.is_complete and [d.other for d in found.differences] == ["c"]
    none = compare({"b": []}, {"b": "unreachable"})
    assert none.best is None and not none.is_significant
