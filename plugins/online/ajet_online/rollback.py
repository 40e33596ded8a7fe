"""Rollback: whether users rate the served version lower than those before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ajet_online.settings import RollbackSettings

RECENT = 16
"""With how many published versions before it the served one is compared, besides version 0."""
LEAST = 20
"""Ratings below which nothing is compared: the means of fewer are not nearly normal."""


HOSTILE = 0.2
"""The share of the keys that may rate to harm."""
NEARLY_ALL = 0.9
"""The share of a key that stands for the service itself: what is left without it says little."""


@dataclass(frozen=True, slots=True)
class RewardLoss:
    """What the test has found."""

    to: int
    """The place of the version to serve in the list that was compared: the newest one that was rated as high as what the
    served version was compared with."""
    text: str


def worse(
    rewards: Sequence[NDArray[np.float64]],
    settings: RollbackSettings,
    bounds: tuple[float, float],
    keys: Sequence[Sequence[str]] | None = None,
) -> RewardLoss | None:
    """Whether the last of these versions is worse than those before it; None if it is not, or not beyond noise.

    ``rewards`` are the ratings of the published versions in their order, version 0 first and the served one last, each in the
    order of `Versions.ratings` and within ``bounds``; ``keys`` are the API keys that have given them.

    A loss counts only if it is also found without any single key, and without the fifth of the keys that speaks most for it: those
    who rate to harm would otherwise decide. A key behind which nearly all ratings stand is not left out.

    The means are compared by one-sided z tests: with that of all recent versions together, which has two thirds of the budget of
    ``settings.error``, and with those of version 0 and of each recent version, which share the rest (Bonferroni). The
    variance of both is the largest that ratings within bounds with their common mean can have (Bhatia and Davis, "A better
    bound on the variance", American Mathematical Monthly 107, 2000). Each side gets one more rating, at the bound that speaks
    against a loss, so no single rating decides.

    The test looks only after ``settings.ratings`` ratings of the served version, at the first so many of them, and after a
    half, a quarter, …, twice, four times, … as many. Each look has a fixed share of the budget (alpha spending: Lan and
    DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70, 1983), half of it for the first named. So a
    version that is as good as those before it is ever found worse with a probability of at most about ``settings.error``,
    however often this function is called.
    """
    low, high = bounds
    *before, served = ((own - low) / (high - low) for own in rewards)
    usual = max(settings.ratings, LEAST)
    if not before or len(served) < LEAST:
        return None
    look = math.floor(math.log2(len(served) / usual))
    count = math.ceil(usual * 2.0**look)
    if count < LEAST:
        return None
    served = served[:count]
    raters = [np.array(own) for own in keys] if keys is not None else []
    budget = settings.error * (0.5 if look == 0 else 2.0 ** -abs(look) / 4)
    losses = []
    for places, share in _references(len(before)):
        others = np.concatenate([before[place] for place in places])
        is_lower = _is_lower((count, len(others)), (float(served.sum()), float(others.sum())), budget * share)
        if len(others) < min(count, usual) or not is_lower:
            continue
        if raters:
            known = np.concatenate([raters[place] for place in places])
            if not _found_without(served, others, raters[-1][:count], known, budget * share):
                continue
        rated = others.mean()
        as_good = [place for place, own in enumerate(before) if len(own) and own.mean() >= rated - 1e-9]
        mean, other = (low + (high - low) * own.mean() for own in (served, others))
        what = "those before it" if len(places) > 1 else "one before it"
        losses.append(
            RewardLoss(
                as_good[-1],
                f"users rate it {mean:.3f} ({count} ratings), {what} {other:.3f} ({len(others)} ratings)",
            )
        )
    return max(losses, key=lambda loss: loss.to, default=None)


def _references(count: int) -> list[tuple[list[int], float]]:
    """The places of the versions that the one after so many is compared with, and each comparison's share of the budget."""
    recent = list(range(max(count - RECENT, 0), count))
    if count == 1:
        return [(recent, 1.0)]
    alone = sorted({0, *recent})
    return [(recent, 2 / 3), *(([place], 1 / 3 / len(alone)) for place in alone)]


def _found_without(
    new: NDArray[np.float64],
    old: NDArray[np.float64],
    new_keys: NDArray[np.str_],
    old_keys: NDArray[np.str_],
    error: float,
) -> bool:
    """Whether `_is_lower` holds without any one key, and without those that speak most for it; see `worse`."""
    names, codes = np.unique(np.concatenate([new_keys, old_keys]), return_inverse=True)
    sides = (new, codes[: len(new)]), (old, codes[len(new) :])
    counts = [np.bincount(of, minlength=len(names)) for _, of in sides]
    sums = [np.bincount(of, own, len(names)) for own, of in sides]
    middle = (new.sum() + old.sum()) / (len(new) + len(old))
    new_speaks, old_speaks = (
        (total - middle * count) / count.sum() for count, total in zip(counts, sums, strict=True)
    )
    shares = np.maximum(*(count / count.sum() for count in counts))
    each = np.flatnonzero(shares <= NEARLY_ALL)
    few = each[np.argsort((new_speaks - old_speaks)[each])][: int(HOSTILE * len(names))]
    for left_out in (*each[:, None], few):
        kept = [int(count.sum() - count[left_out].sum()) for count in counts]
        left = [float(total.sum() - total[left_out].sum()) for total in sums]
        if min(kept) < LEAST or not _is_lower(kept, left, error):
            return False
    return True


def _is_lower(counts: Sequence[int], sums: Sequence[float], error: float) -> bool:
    """Whether the mean of new ratings from 0 to 1 is lower than that of old ones, by the number and the sum of both."""
    number, total = [count + 1 for count in counts], (sums[0] + 1, sums[1])
    common = sum(total) / sum(number)
    deviation = math.sqrt(common * (1 - common) * (1 / number[0] + 1 / number[1]))
    return total[1] / number[1] - total[0] / number[0] > -NormalDist().inv_cdf(error) * deviation
