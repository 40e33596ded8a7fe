"""Whether a mean differs from another by more than chance: standard errors, intervals, tests of pairs and of a sequence, and several
at once.

The test of pairs is Fisher's randomisation test for pairs (R. A. Fisher, The Design of Experiments, 1935, section 21), also called
sign-flip permutation test: if two models are alike, each difference of a pair is as likely to have the other sign. It
assumes no distribution and is exact for any number of pairs. The same holds for a sequence in which nothing changes: its values
are as likely in any other order (E. J. G. Pitman, Significance tests which may be applied to samples from any populations,
Supplement to the Journal of the Royal Statistical Society 4, 1937). Several p-values are corrected by S. Holm, A simple
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
ORDERS = 2_000
"""Orders drawn of a sequence."""
_AT_ONCE = 2_000
Z = 1.96
"""Standard errors of an interval that holds in 95 % of cases."""
Interval = tuple[float, float, float]
"""An estimate, and the lower and upper end of its interval."""


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


def wilson(mean: float, n: float, z: float = Z) -> Interval:
    """A mean of ``n`` independent values from 0 to 1, with its interval. For values between 0 and 1 it is too wide rather
    than too narrow, because their variance is at most ``mean · (1 - mean)``. It is also right where all values are equal
    (E. B. Wilson, Probable inference, the law of succession, and statistical inference, Journal of the American Statistical
    Association 22, 1927)."""
    if n <= 0:
        return mean, 0.0, 1.0
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(max(mean * (1 - mean), 0.0) / n + z * z / (4 * n * n))
    return mean, max(0.0, centre - half), min(1.0, centre + half)


def sign_flip(differences: Sequence[float], seed: int = 0) -> float:
    """The two-sided p-value of differences of pairs: the share of all combinations of their signs whose sum is as far from
    0 as the sum found.

    Above `ALL_SIGNS` pairs the combinations are drawn with ``seed``, and the one found is counted as one of them, so the
    p-value is never too small (B. Phipson and G. K. Smyth, Statistical Applications in Genetics and Molecular Biology 9,
    2010).
    """
    nonzero = np.array([d for d in differences if d], np.float64)
    if not len(nonzero):
        return 1.0
    far = abs(nonzero.sum()) - 1e-9 * np.abs(nonzero).sum()  # equal sums may differ by rounding
    if len(nonzero) <= ALL_SIGNS:
        bits = np.arange(2 ** len(nonzero))[:, None] >> np.arange(len(nonzero)) & 1
        return float((np.abs((1 - 2 * bits) @ nonzero) >= far).mean())
    generator = np.random.default_rng(seed)
    extreme = 0
    for start in range(0, DRAWS, _AT_ONCE):
        signs = generator.integers(0, 2, (min(_AT_ONCE, DRAWS - start), len(nonzero)), np.int8) * 2 - 1
        extreme += int((np.abs(signs @ nonzero) >= far).sum())
    return (extreme + 1) / (DRAWS + 1)


def first_and_last(values: Sequence[float], count: int, seed: int = 0) -> float:
    """The two-sided p-value of the difference between the means of the first and of the last ``count`` values: the share of all
    orders of the values in which it is as large. The orders are drawn with ``seed``, and the one found is counted as one of them."""
    numbers = np.array(values, np.float64)
    signs = np.zeros(len(numbers))
    signs[:count], signs[-count:] = -1, 1
    far = abs(numbers @ signs) - 1e-9 * np.abs(numbers).sum()  # equal sums may differ by rounding
    orders = np.random.default_rng(seed).permuted(np.broadcast_to(numbers, (ORDERS, len(numbers))), axis=1)
    return float((np.count_nonzero(np.abs(orders @ signs) >= far) + 1) / (ORDERS + 1))


def student(freedom: int, z: float = Z) -> float:
    """Standard errors of an interval that holds in 95 % of cases, where the error is known with so many degrees of freedom:
    Student's t, by the expansion of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5."""
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom**power for power, term in enumerate(terms, 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Each p-value corrected for the number of tests: the chance that any test of equal models is below 0.05 is at most
    0.05."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
