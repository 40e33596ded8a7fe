"""Which of many criteria to keep, and at what weight, from few labels.

A handful of labels fits many rubrics, so no single best one is taken. A beam search visits small rubrics of
equal weights, each is weighed by how many pairs of a better and a worse response it ranks rightly, and the
weight of a criterion is its share of all of them: what only some lucky rubric needs counts little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet.types import Float64

WIDTH = 200
LARGEST = 6
SHARPNESS = 100.0
"""A rubric that ranks one pair in a hundred more rightly counts e times as much."""
PER_CRITERION = 0.01
"""What a further criterion must gain, as a share of the pairs."""
STEPS = 4
"""Weights are multiples of a quarter of the largest, which is 1: a person reads and edits them."""


def fit(met: Float64, labels: Float64) -> Float64:
    """Weights, float64[C] from 0 to 1, of criteria ``met`` float64[N, C] (1 where it speaks for a response, 0
    where not), from ``labels`` float64[N], higher for better; equal ones where nothing separates anything."""
    import numpy as np

    better, worse = np.nonzero(labels[:, None] > labels[None, :])
    margins = met[better] - met[worse]  # [P, C]
    count = met.shape[1]
    beam: dict[tuple[int, ...], Float64] = {(): np.zeros(len(margins))}
    visited: list[tuple[tuple[int, ...], float]] = []
    for size in range(1, min(LARGEST, count) + 1):
        wider = {
            tuple(sorted((*chosen, c))): total + margins[:, c]
            for chosen, total in beam.items()
            for c in range(count)
            if c not in chosen
        }
        keys = list(wider)
        scores = _share(np.stack([wider[key] for key in keys]))
        best = np.argsort(-scores, kind="stable")[:WIDTH]
        beam = {keys[i]: wider[keys[i]] for i in best}
        visited += [(keys[i], scores[i] - PER_CRITERION * size) for i in best]
    found = np.array([score for _, score in visited])
    belief = np.exp(SHARPNESS * (found - found.max()))
    weights = np.zeros(count)
    for (chosen, _), share in zip(visited, belief, strict=True):
        weights[list(chosen)] += share
    rounded: Float64 = np.round(weights / weights.max() * STEPS) / STEPS
    return rounded


def ranked_rightly(rewards: Float64, labels: Float64) -> float:
    """The share of pairs of different labels whose rewards are in the same order; equal rewards count half."""
    import numpy as np

    better, worse = np.nonzero(labels[:, None] > labels[None, :])
    return float(_share((rewards[better] - rewards[worse])[None])[0])


def cross_validated(met: Float64, labels: Float64, folds: int = 5) -> float:
    """`ranked_rightly` of rewards each of which comes from weights that never saw its label."""
    import numpy as np

    place = np.argsort(np.argsort(labels, kind="stable"), kind="stable") % folds
    rewards = np.zeros(len(labels))
    for fold in range(folds):
        inside = place != fold
        weights = fit(met[inside], labels[inside])
        rewards[~inside] = met[~inside] @ weights / max(weights.sum(), 1e-9)
    return ranked_rightly(rewards, labels)


def _share(differences: Float64) -> Float64:
    share: Float64 = (differences > 1e-9).mean(-1) + 0.5 * (abs(differences) <= 1e-9).mean(-1)
    return share
