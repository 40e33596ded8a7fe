"""The gate and the rollback test, by hand and by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from ajet_online.gate import decide
from ajet_online.rollback import radius, worse
from ajet_online.schema import Stage
from ajet_online.settings import GateSettings
from ajet_online.versions import Ratings, Version


def version(number: int, reward: float | None, stage: Stage = Stage.PUBLISHED) -> Version:
    return Version(number=number, parent=None, path="", stage=stage, reward=reward)


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
    assert decide(GateSettings(**settings), reward, known, 0.025).publish == publish


def test_the_gate_compares_with_version_0_too() -> None:
    known = [version(0, 0.9), *(version(i, 0.7) for i in range(1, 11))]
    assert decide(GateSettings(), 0.8, known, 0.06).publish
    refused = decide(GateSettings(), 0.7, known, 0.06)
    assert not refused.publish
    assert refused.text == (
        "validation reward 0.700, version 0 has 0.900, the last published ones 0.700, and two standard errors are 0.12"
    )


def test_a_lucky_version_does_not_stop_training() -> None:
    known = [version(i, 1.0 if i == 5 else 0.8) for i in range(10)]
    assert decide(GateSettings(), 0.8, known, 0.02).publish


def test_the_first_measured_version_passes() -> None:
    assert decide(GateSettings(), 0.1, [version(0, None)]).publish
    assert "below gate.threshold 0.5" in decide(GateSettings(threshold=0.5), 0.1, []).text


def ratings(values: np.ndarray) -> Ratings:
    return Ratings(len(values), float(values.mean()), float(values.var(ddof=1)))


def test_the_bound_by_hand() -> None:
    # rho² = (-2 ln .05 + ln(-2 ln .05 + 1)) / 100; the bound is σ √(2 (nρ²+1) / (n²ρ²) · ln(√(nρ²+1) / α))
    rho2 = (5.991464547 + np.log(6.991464547)) / 100
    n, variance = 50, 0.2
    expected = np.sqrt(variance * 2 * (n * rho2 + 1) / (n**2 * rho2) * np.log(np.sqrt(n * rho2 + 1) / 0.05))
    assert radius(n, variance, 0.05) == pytest.approx(expected)
    assert radius(200, variance, 0.05) < radius(50, variance, 0.05) < radius(50, variance, 0.01)


def test_a_clear_loss_is_found_and_named() -> None:
    said = worse(Ratings(60, 0.2, 0.16), Ratings(80, 0.8, 0.16), 0.05)
    assert said and said.startswith("users rate it 0.200") and "60 ratings" in said
    assert worse(Ratings(60, 0.8, 0.16), Ratings(80, 0.2, 0.16), 0.05) is None, "better"
    assert worse(Ratings(60, 0.7, 0.21), Ratings(80, 0.8, 0.16), 0.05) is None, "within noise"


def test_a_version_that_is_as_good_is_rarely_withdrawn_however_often_the_test_looks() -> None:
    draw = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        old, new = draw.random((2, 400)) < 0.7
        wrong += any(worse(ratings(new[:n]), ratings(old[:n]), 0.05) for n in range(20, 400, 4))
    assert wrong <= 10


def test_a_version_that_is_much_worse_is_found_soon() -> None:
    draw = np.random.default_rng(0)
    found = []
    for _ in range(50):
        old, new = draw.random(100) < 0.85, draw.random(400) < 0.4
        found.append(next(n for n in range(20, 400) if worse(ratings(new[:n]), ratings(old), 0.05)))
    assert np.median(found) <= 80
