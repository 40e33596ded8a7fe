"""What n episodes of each task say of groups of another size: pass@k, and the share of groups with signal.

pass@k is the unbiased estimator of Chen et al., "Evaluating Large Language Models Trained on Code", 2021
(arXiv:2107.03374, eq. 1); the share of groups with signal is the same count over subsets. Groups larger than n are read off
a beta-binomial distribution (J. G. Skellam, A probability distribution derived from the binomial distribution, Journal of
the Royal Statistical Society B 10, 1948), fitted by moments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence


def pass_at_k(n: int, passed: int, k: int) -> float:
    """The chance that at least one of ``k`` episodes passes, of which ``passed`` of ``n`` >= ``k`` did."""
    return 1 - math.comb(n - passed, k) / math.comb(n, k)


def signal(rewards: Sequence[Hashable], size: int) -> float:
    """The chance that a group of ``size`` of these episodes has different rewards: the share of all such subsets."""
    equal = sum(math.comb(count, size) for count in Counter(rewards).values())
    return 1 - equal / math.comb(len(rewards), size)


def fitted(passed: Sequence[int], n: int) -> tuple[float, float] | None:
    """The beta distribution (a, b) of the tasks' pass rates, from the passes of each in ``n`` episodes; None if all or none
    passed. Where the rates do not differ by more than chance, it is narrow; where each is 0 or 1, wide."""
    tasks, mean = len(passed), sum(passed) / (len(passed) * n)
    if not 0 < mean < 1 or n < 2:
        return None
    variance = sum((count / n - mean) ** 2 for count in passed) / max(tasks - 1, 1)
    chance = mean * (1 - mean)
    correlation = (n * variance / chance - 1) / (n - 1)  # of two episodes of one task
    concentration = 1 / min(max(correlation, 0.01), 0.99) - 1
    return mean * concentration, (1 - mean) * concentration


def foreseen_signal(beta: tuple[float, float], size: int) -> float:
    """The chance that a group of ``size`` has passed and failed episodes, if pass rates have this beta distribution (a, b)."""
    a, b = beta

    def all_of(one: float) -> float:
        return math.exp(sum(math.log((one + i) / (a + b + i)) for i in range(size)))

    return 1 - all_of(a) - all_of(b)
