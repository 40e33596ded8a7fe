"""Rollback: whether users rate a version lower than its predecessor, by a test that may look at any time."""

from __future__ import annotations

import math

from ajet_online.versions import Ratings

PLANNED = 100
"""Ratings of a version for which the test is tuned; it is valid for any number."""


def worse(new: Ratings, old: Ratings, error: float) -> str | None:
    """Why a version with these ratings is worse than its predecessor; None if it is not, or not beyond noise.

    The test compares two confidence sequences, each of which contains the true mean rating at all times with a probability of
    at least 1 - error / 2: the version is worse as soon as its upper bound is below the predecessor's lower bound. So the
    test may be repeated after every rating, and a version that is as good as its predecessor is ever found worse with a
    probability of at most ``error``. The bounds are asymptotic normal-mixture confidence sequences: Waudby-Smith, Arbour,
    Sinha, Kennedy and Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences", arXiv:2103.06476,
    eq. 8, after Robbins, "Statistical methods related to the law of the iterated logarithm", 1970.
    """
    # The larger variance for both: ratings that are all equal so far do not prove that they always are.
    variance = max(new.variance, old.variance)
    upper = new.mean + radius(new.count, variance, error)
    lower = old.mean - radius(old.count, variance, error)
    if upper >= lower:
        return None
    return (
        f"users rate it {new.mean:.3f} (at most {upper:.3f}, {new.count} ratings), the version before it {old.mean:.3f} "
        f"(at least {lower:.3f}, {old.count} ratings)"
    )


def radius(count: int, variance: float, error: float) -> float:
    """Half the width of a two-sided confidence sequence of level 1 - error after so many ratings."""
    grown = count * _rho2(error) + 1
    return math.sqrt(variance * 2 * grown / (count * (grown - 1)) * math.log(math.sqrt(grown) / error))


def _rho2(error: float) -> float:
    """The parameter for which the bound is nearly the narrowest after `PLANNED` ratings (eq. 63 of the paper)."""
    return (-2 * math.log(error) + math.log(-2 * math.log(error) + 1)) / PLANNED
