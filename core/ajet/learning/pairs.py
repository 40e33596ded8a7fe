"""Samples whose loss compares them: which are one pair, and the numbers of their tokens' pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ajet.types import Sample


def paired(samples: Sequence[Sample], groups: Sequence[int]) -> list[Sample]:
    """The samples of episodes of these groups, where those with credit are the pair of their group and adapter.

    Samples on one side only, because nothing of the other episode is trained, form no pair, and get no credit.
    """
    sides: dict[tuple[int, str | None], set[float]] = defaultdict(set)
    for sample, group in zip(samples, groups, strict=True):
        sides[group, sample.adapter] |= set(np.sign(sample.advantages[sample.mask]).tolist())
    return [
        _in_pair(sample, group, {1.0, -1.0} <= sides[group, sample.adapter])
        for sample, group in zip(samples, groups, strict=True)
    ]


def _in_pair(sample: Sample, group: int, complete: bool) -> Sample:
    if not complete:
        return replace(sample, advantages=sample.advantages * np.float32(0))
    return replace(sample, pair=group) if sample.advantages[sample.mask].any() else sample


def pair_numbers(samples: Sequence[Sample]) -> np.ndarray:
    """int64[N]: the number of the pair of each trained token, from 0. A sample in no pair has a number of its own."""
    numbers = {pair: i for i, pair in enumerate(dict.fromkeys(s.pair for s in samples if s.pair is not None))}
    own = [len(numbers) + i if s.pair is None else numbers[s.pair] for i, s in enumerate(samples)]
    return np.repeat(np.array(own, np.int64), [int(s.mask.sum()) for s in samples])


def together(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples, divided into those that must be computed together: the samples of a pair, or one sample."""
    units: dict[tuple[str, int], list[Sample]] = {}
    for i, sample in enumerate(samples):
        key = ("sample", i) if sample.pair is None else ("pair", sample.pair)
        units.setdefault(key, []).append(sample)
    return list(units.values())
