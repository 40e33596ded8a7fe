"""What a few episodes of each task say of groups of another size."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ajet.utils.statistics import wilson
from ajet_advice.forecast.figures import fitted, foreseen_signal, pass_at_k, signal


def test_pass_at_k_is_the_share_of_subsets_with_a_pass() -> None:
    # By hand: of the 6 pairs of 1 pass and 3 failures, 3 have the pass.
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(4, 0, 4) == 0 and pass_at_k(4, 4, 1) == 1 and pass_at_k(8, 2, 1) == 0.25
    for n, passed, k in ((6, 2, 3), (5, 4, 2)):
        subsets = list(itertools.combinations([1] * passed + [0] * (n - passed), k))
        assert pass_at_k(n, passed, k) == pytest.approx(np.mean([any(s) for s in subsets]))


def test_signal_is_the_share_of_subsets_with_different_rewards() -> None:
    # By hand: of the 6 pairs of (1, 1, 0, 0), 2 are equal.
    assert signal([1, 1, 0, 0], 2) == pytest.approx(4 / 6)
    rewards = [0.0, 0.5, 0.5, 1.0, 0.0]
    subsets = list(itertools.combinations(rewards, 3))
    assert signal(rewards, 3) == pytest.approx(np.mean([len(set(s)) > 1 for s in subsets]))
    assert signal([1, 1, 1, 1], 2) == 0


def test_larger_groups_are_read_off_a_beta_distribution() -> None:
    # By hand: uniform rates, Beta(1, 1), have E[p^2] = E[(1-p)^2] = 1/3, so 1/3 of pairs differ.
    assert foreseen_signal((1.0, 1.0), 2) == pytest.approx(1 / 3)
    assert foreseen_signal((1.0, 1.0), 4) == pytest.approx(1 - 2 / 5)
    assert fitted([0, 0], 4) is None and fitted([4, 4], 4) is None
    rates = np.random.default_rng(0).beta(0.5, 1.0, 20_000)
    beta = fitted(np.random.default_rng(1).binomial(8, rates).tolist(), 8)
    assert beta == pytest.approx((0.5, 1.0), rel=0.1)
    assert foreseen_signal(beta, 16) == pytest.approx(np.mean(1 - rates**16 - (1 - rates) ** 16), abs=0.02)


def test_tasks_that_differ_by_no_more_than_chance_have_one_rate() -> None:
    passed = np.random.default_rng(0).binomial(8, 0.25, 1000).tolist()
    beta = fitted(passed, 8)
    assert beta is not None and foreseen_signal(beta, 8) == pytest.approx(1 - 0.75**8 - 0.25**8, abs=0.03)


def test_wilson_interval_by_hand() -> None:
    # Wilson 1927 for 8 of 10: (0.8 + 0.19207 ± 1.96·sqrt(0.016 + 0.0096036)) / 1.38416 with z = 1.96 gives 0.490 to 0.943.
    assert wilson(0.8, 10) == pytest.approx((0.8, 0.490, 0.943), abs=1e-3)
    mean, low, high = wilson(0.0, 10)
    assert (mean, low) == (0, 0) and high == pytest.approx(0.2775, abs=1e-3)
    assert wilson(0.5, 0) == (0.5, 0.0, 1.0)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.8])
def test_wilson_interval_holds_for_shares_of_tasks(rate: float) -> None:
    draws = np.random.default_rng(0).binomial(12, rate, 2000) / 12
    held = [low <= rate <= high for _, low, high in (wilson(float(d), 12) for d in draws)]
    assert np.mean(held) >= 0.92 and math.isfinite(np.mean(held))
