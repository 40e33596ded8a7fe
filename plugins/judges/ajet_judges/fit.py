"""Chooses criteria and their weights from a few labels.

A few labels fit many rubrics, so no single one is chosen. A beam search visits small rubrics of equal weights. Each
rubric counts more the more pairs of a better and a worse response it ranks correctly; a criterion's weight is the
weighted share of the rubrics that contain it. A criterion that only one lucky rubric needs therefore gets a small weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet.interfaces.algorithm import Float64

WIDTH = 200
"""Rubrics that the beam search keeps of each size."""
LARGEST = 6
"""Maximum criteria in a visited rubric."""
SHARPNESS = 100.0
"""A rubric that ranks another hundredth of the pairs correctly counts e times as much."""
PER_CRITERION = 0.01
"""Share of the pairs that a further criterion must gain."""
STEPS = 4
"""Weights are multiples of 1/4 and the largest is 1, so that people can read and edit them."""


def fit(met: Float64, labels: Float64) -> Float64:
    """Weights, float64[C] from 0 to 1, of criteria. ``met`` is float64[N, C]: 1 if a criterion favours a response, else 0.
    ``labels`` is float64[N], higher for better. The weights are equal if no criterion separates the responses."""
    import numpy as np

    better, worse = np.nonzero(labels[:, None] > labels[None, :])
    margins = met[better] - met[worse]  # [P, C]
    count = met.shape[1]
    beam: list[tuple[int, ...]] = [()]
    visited: list[tuple[tuple[int, ...], float]] = []
    for size in range(1, min(LARGEST, count) + 1):
        wider = dict.fromkeys(
            tuple(sorted((*chosen, c))) for chosen in beam for c in range(count) if c not in chosen
        )
        rubrics = list(wider)
        members = np.zeros((len(rubrics), count))
        members[np.arange(len(rubrics))[:, None], np.array(rubrics)] = 1
        scores = _share(members @ margins.T)
        best = np.argsort(-scores, kind="stable")[:WIDTH]
        beam = [rubrics[i] for i in best]
        visited += [(rubrics[i], scores[i] - PER_CRITERION * size) for i in best]
    achieved = np.array([score for _, score in visited])
    belief = np.exp(SHARPNESS * (achieved - achieved.max()))
    weights = np.zeros(count)
    for (chosen, _), share in zip(visited, belief, strict=True):
        weights[list(chosen)] += share
    rounded: Float64 = np.round(weights / weights.max() * STEPS) / STEPS
    return rounded


def ranked_correctly(rewards: Float64, labels: Float64) -> float:
    """The share of pairs with different labels whose rewards have the same order; equal rewards count half."""
    import numpy as np

    better, worse = np.nonzero(labels[:, None] > labels[None, :])
    return float(_share((rewards[better] - rewards[worse])[None])[0])


def cross_validated(met: Float64, labels: Float64, folds: int = 5) -> float:
    """`ranked_correctly` of rewards whose weights were each fitted without the response's own label."""
    import numpy as np

    fold_of = np.argsort(np.argsort(labels, kind="stable"), kind="stable") % folds
    rewards = np.zeros(len(labels))
    for fold in range(folds):
        inside = fold_of != fold
        weights = fit(met[inside], labels[inside])
        rewards[~inside] = met[~inside] @ weights / max(weights.sum(), 1e-9)
    return ranked_correctly(rewards, labels)


def _share(differences: Float64) -> Float64:
    share: Float64 = (differences > 1e-9).mean(-1) + 0.5 * (abs(differences) <= 1e-9).mean(-1)
    return share
