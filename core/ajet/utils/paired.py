"""Whether a mean differs from another by more than chance: standard errors, a paired test, and several tests at once.

The test is Fisher's randomisation test for pairs (R. A. Fisher, The Design of Experiments, 1935, section 21), also called
sign-flip permutation test: if two models are alike, each difference of a pair is as likely to have the other sign. It
assumes no distribution and is exact for any number of pairs. Several p-values are corrected by S. Holm, A simple
sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

ALL_SIGNS = 16
"""Up to this many pairs that differ, all combinations of signs are counted."""
DRAWS = 20_000
"""Combinations drawn for more pairs."""
_AT_ONCE = 2_000


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and its standard error; no error for one value, which says nothing of the spread. Raises ValueError for
    none."""
    if not values:
        raise ValueError("a mean needs at least one value")
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def sign_flip(differences: Sequence[float], seed: int = 0) -> float:
    """The two-sided p-value of differences of pairs: the share of all combinations of their signs whose sum is as far from
    0 as the sum found.

    Above `ALL_SIGNS` pairs the combinations are drawn with ``seed``, and the one found is counted as one of them, so the
    p-value is never too small (B. Phipson and G. K. Smyth, Statistical Applications in Genetics and Molecular Biology 9,
    2010).
    """
    found = np.array([d for d in differences if d], np.float64)
    if not len(found):
        return 1.0
    far = abs(found.sum()) - 1e-9 * np.abs(found).sum()  # equal sums may differ by rounding
    if len(found) <= ALL_SIGNS:
        bits = np.arange(2 ** len(found))[:, None] >> np.arange(len(found)) & 1
        return float((np.abs((1 - 2 * bits) @ found) >= far).mean())
    generator = np.random.default_rng(seed)
    extreme = 0
    for start in range(0, DRAWS, _AT_ONCE):
        signs = generator.integers(0, 2, (min(_AT_ONCE, DRAWS - start), len(found)), np.int8) * 2 - 1
        extreme += int((np.abs(signs @ found) >= far).sum())
    return (extreme + 1) / (DRAWS + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Each p-value corrected for the number of tests: the chance that any test of equal models is below 0.05 is at most
    0.05."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
