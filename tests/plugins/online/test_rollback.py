"""The gate and the rollback test, by hand and by simulation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray

from ajet_online.gate import Measured, decide
from ajet_online.rollback import RewardLoss, worse
from ajet_online.schema import Stage
from ajet_online.settings import GateSettings, RollbackSettings
from ajet_online.versions import Version


def version(number: int, reward: float | None, stage: Stage = Stage.PUBLISHED) -> Version:
    return Version(number=number, parent=None, path="", stage=stage, reward=reward)


def measured(reward: float, error: float = 0.0) -> Measured:
    return Measured(reward, error, 40, 0, 0.0)


@pytest.mark.parametrize(
    ("settings", "reward", "publish"),
    [
        ({}, None, True),
        ({}, 0.76, True),
        ({}, 0.74, False),
        ({"tolerance": 0.0}, 0.81, True),
        ({"tolerance": 0.0}, 0.79, False),
        ({"tolerance": 0.5, "threshold": 0.87}, 0.86, False),
    ],
)
def test_the_gate_compares_with_the_last_published_versions(
    settings: dict[str, float], reward: float | None, publish: bool
) -> None:
    known = [
        version(0, 0.5),
        *(version(i, 0.75 + i % 2 / 10) for i in range(1, 11)),
        version(11, 1.0, Stage.REJECTED),
    ]
    assert decide(GateSettings(**settings), reward and measured(reward, 0.025), known).publish == publish


def test_the_gate_compares_with_version_0_too() -> None:
    known = [version(0, 0.9), *(version(i, 0.7) for i in range(1, 11))]
    assert decide(GateSettings(), measured(0.8, 0.06), known).publish
    refused = decide(GateSettings(), measured(0.7, 0.06), known)
    assert not refused.publish
    assert refused.text == (
        "validation reward 0.700, version 0 has 0.900, the last published ones 0.700, and two standard errors are 0.12"
    )


def test_a_lucky_version_does_not_stop_training() -> None:
    known = [version(i, 1.0 if i == 5 else 0.8) for i in range(10)]
    assert decide(GateSettings(), measured(0.8, 0.02), known).publish


def test_the_first_measured_version_passes() -> None:
    assert decide(GateSettings(), measured(0.1), [version(0, None)]).publish
    assert "below gate.threshold 0.5" in decide(GateSettings(threshold=0.5), measured(0.1), []).text


def rewards_of(*rewards: float, failed: int = 0) -> dict[str, float]:
    """The metrics of a validation."""
    own = (
        {"reward": np.mean(rewards), "reward_std": np.std(rewards), "reward_min": min(rewards)}
        if rewards
        else {}
    )
    return {"episodes": len(rewards) + failed, "episodes_failed": failed, **own}


def test_a_failed_validation_episode_counts_as_0() -> None:
    found = Measured.of(rewards_of(1.0, 0.5, failed=2), ())
    assert found and found.reward == pytest.approx(np.mean([1.0, 0.5, 0, 0]))
    assert found.error == pytest.approx(np.std([1.0, 0.5, 0, 0]) / 2)
    assert str(found) == "validation reward 0.375 (2 of 4 episodes failed)"
    assert not decide(GateSettings(), found, [version(0, 1.0)]).publish


def test_where_rewards_are_negative_a_failed_episode_counts_as_the_lowest_that_was_seen() -> None:
    first = Measured.of(rewards_of(-1.0, -0.5), ())
    assert first and first.reward == -0.75
    known = [replace(version(0, first.reward), report=first.report())]
    found = Measured.of(rewards_of(-0.5, failed=1), known)
    assert found and found.reward == -0.75


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf")])
def test_a_candidate_whose_reward_is_not_a_number_is_never_published(reward: float) -> None:
    for known in ([], [version(0, 1.0)]):
        assert not decide(GateSettings(), measured(reward), known).publish


def test_a_candidate_whose_validation_episodes_all_fail_is_never_published() -> None:
    found = Measured.of(rewards_of(failed=3), ())
    decision = decide(GateSettings(tolerance=1.0), found, [version(0, 0.0)])
    assert not decision.publish and decision.text == "all 3 validation episodes failed"


def compared(
    *rewards: Sequence[float], bounds: tuple[float, float] = (0.0, 1.0), ratings: int = 200
) -> RewardLoss | None:
    return worse([np.array(own, np.float64) for own in rewards], RollbackSettings(ratings=ratings), bounds)


def likes(count: int, of: int) -> list[float]:
    """Ratings of which so many are likes, evenly spread."""
    return [float((n + 1) * count // of > n * count // of) for n in range(of)]


def test_the_bound_by_hand() -> None:
    # 200 ratings each, one look with half of 5 %: p is that of all 402 ratings, one more like and one more dislike included.
    z, old = NormalDist().inv_cdf(1 - 0.025), likes(160, 200)

    def is_beyond(new: int) -> bool:
        p = (new + 160 + 1) / 402
        return bool(160 / 201 - (new + 1) / 201 > z * np.sqrt(p * (1 - p) * 2 / 201))

    found = [compared(old, likes(new, 200)) is not None for new in range(100, 160)]
    assert found == [is_beyond(new) for new in range(100, 160)] and 0 < sum(found) < 60


def test_a_clear_loss_is_found_and_named() -> None:
    loss = compared(likes(160, 200), likes(40, 200))
    assert loss and loss.text == "users rate it 0.200 (200 ratings), one before it 0.800 (200 ratings)"
    assert compared(likes(40, 200), likes(160, 200)) is None, "better"
    assert compared(likes(160, 200), likes(150, 200)) is None, "within noise"
    assert compared(likes(160, 200)) is None, "version 0 has nothing to be compared with"


def test_a_loss_is_named_in_the_units_of_the_rewards() -> None:
    stars = [[1 + 4 * reward for reward in likes(count, 200)] for count in (160, 40)]
    loss = compared(*stars, bounds=(1, 5))
    assert loss and loss.text == "users rate it 1.800 (200 ratings), one before it 4.200 (200 ratings)"


@pytest.mark.parametrize("reward", [0.0, 1.0])
@pytest.mark.parametrize("side", [0, 1])
def test_no_single_rating_decides(side: int, reward: float) -> None:
    for versions, is_found in (
        ([likes(180, 200), likes(180, 200)], False),
        ([likes(20, 20), likes(20, 20)], False),
        ([likes(180, 200), likes(20, 200)], True),
        ([[1.0] * 200, [0.0] * 200], True),
    ):
        assert (compared(*versions) is not None) == is_found
        versions[side] = [reward, *versions[side][1:]]
        assert (compared(*versions) is not None) == is_found


def by_keys(
    shares: dict[str, float], rates: dict[str, float], of: int = 200
) -> tuple[list[float], list[str]]:
    """Ratings of several keys, which take turns: each key's share of them, and its share of likes."""
    given = [
        (like, key)
        for key in shares
        for like in likes(round(rates[key] * shares[key] * of), round(shares[key] * of))
    ]
    given.sort(key=lambda one: hash_of(str(one)))
    return [like for like, _ in given], [key for _, key in given]


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@pytest.mark.parametrize(
    ("hostile", "honest", "after", "withdrawn"),
    [
        ({"h": 0.2}, 4, 0.9, False),
        ({"h": 0.5}, 1, 0.9, False),
        ({"h": 0.1}, 1, 0.9, False),
        ({f"h{n}": 0.02 for n in range(10)}, 40, 0.9, False),
        ({}, 5, 0.3, True),
        ({"h": 0.2}, 4, 0.3, True),
        ({"h": 0.02}, 1, 0.3, True),
    ],
    ids=[
        "one of five",
        "one of two",
        "one beside a large one",
        "a fifth of fifty",
        "a loss",
        "one for it",
        "a key for tests",
    ],
)
def test_one_key_or_a_fifth_of_the_keys_decides_nothing(
    hostile: dict[str, float], honest: int, after: float, withdrawn: bool
) -> None:
    """Those who rate to harm rate all versions as if the one that is right were wrong."""
    shares = hostile | {f"k{n}": (1 - sum(hostile.values())) / honest for n in range(honest)}
    before, then = {key: 0.9 for key in shares}, {key: after for key in shares}
    for key in hostile:
        before[key], then[key] = (1.0, 0.0) if after == 0.9 else (0.0, 1.0)
    old, old_keys = by_keys(shares, before)
    new, new_keys = by_keys(shares, then)
    given = [np.array(old), np.array(new)]
    if hostile and not withdrawn and sum(hostile.values()) >= 0.2:
        assert worse(given, RollbackSettings(), (0, 1)), "of which the keys are unknown"
    assert (worse(given, RollbackSettings(), (0, 1), [old_keys, new_keys]) is not None) == withdrawn


def test_fewer_than_20_ratings_never_withdraw_a_version_whatever_the_settings() -> None:
    assert compared([1.0] * 200, [0.0] * 19, ratings=2) is None
    assert compared([1.0] * 200, [0.0] * 20, ratings=2)


@pytest.mark.parametrize("good", [0, 3, 9])
def test_a_version_is_compared_with_version_0_the_best_of_the_last_and_all_of_them(good: int) -> None:
    before = [likes(180 if place == good else 120, 200) for place in range(10)]
    loss = compared(*before, likes(115, 200))
    assert loss and loss.to == good
    assert "one before it 0.900" in loss.text
    assert compared(*[likes(120, 200)] * 10, likes(115, 200)) is None
    loss = compared(*[likes(120, 200)] * 10, likes(90, 200))
    assert loss and "those before it 0.600 (2000 ratings)" in loss.text and loss.to == 9


def test_the_version_to_go_back_to_is_the_newest_that_was_as_good() -> None:
    before = [likes(count, 200) for count in (180, 180, 60, 180, 100)]
    loss = compared(*before, likes(20, 200))
    assert loss and loss.to == 4, "version 4, though not as good as version 3, is better beyond noise"
    loss = compared(*before, likes(90, 200))
    assert loss and loss.to == 3


def test_later_ratings_do_not_count_before_the_next_look() -> None:
    assert compared(likes(180, 200), likes(180, 200) + [0.0] * 199) is None
    assert compared(likes(180, 200), likes(180, 200) + [0.0] * 200)


def drawn(draw: np.random.Generator, *likes: float) -> list[NDArray[np.float64]]:
    return [(draw.random(200) < p).astype(np.float64) for p in likes]


def is_withdrawn(rewards: list[NDArray[np.float64]]) -> bool:
    *before, served = rewards
    return any(worse([*before, served[:n]], RollbackSettings(), (0, 1)) for n in (25, 50, 100, 200))


@pytest.mark.parametrize("liked", [0.99, 0.9, 0.5, 0.02])
def test_a_version_that_is_as_good_is_rarely_withdrawn_however_often_the_test_looks(liked: float) -> None:
    draw = np.random.default_rng(0)
    assert sum(is_withdrawn(drawn(draw, *[liked] * 6)) for _ in range(300)) <= 15


def test_a_version_that_is_worse_is_found_under_noise() -> None:
    draw = np.random.default_rng(0)
    # 37 % of the ratings are wrong: 0.9 looks like 0.604, and 0.3 like 0.448.
    assert sum(is_withdrawn(drawn(draw, *[0.604] * 10, 0.448)) for _ in range(100)) >= 95
