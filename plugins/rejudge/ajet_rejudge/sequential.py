"""Wald's sequential probability ratio test (1945), and the search for the first of several checkpoints that shows a behaviour."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sprt:
    """Decides from as few episodes as possible whether a behaviour is shown rarely or often. If its share is at most ``rare``, the
    answer is "often" with a probability of at most about ``error``; if it is at least ``often``, the answer is "rarely" with
    at most that. Between the two either answer may come."""

    rare: float
    often: float
    error: float
    ratio: float = field(default=0.0, init=False)
    """The log of the likelihood ratio so far."""

    def add(self, shown: bool) -> bool | None:
        """Count an episode. Returns whether the behaviour is shown often; None while this is not decided."""
        if shown:
            self.ratio += math.log(self.often / self.rare)
        else:
            self.ratio += math.log((1 - self.often) / (1 - self.rare))
        bound = math.log((1 - self.error) / self.error)
        return None if abs(self.ratio) < bound else self.ratio > 0


def most_evaluations(checkpoints: int) -> int:
    """How many models `first_showing` asks about at most: log2 of the checkpoints and 2."""
    return math.floor(math.log2(checkpoints)) + 2


def first_showing(checkpoints: int, shows: Callable[[int], bool]) -> int | None:
    """The first of the checkpoints 1, 2, … that shows a behaviour, by bisection; 0 if the model before the training shows it, None if
    the last one does not. ``shows`` is asked about each at most once."""
    if not shows(checkpoints):
        return None
    clean, showing = 0, checkpoints
    while showing - clean > 1:
        middle = (clean + showing) // 2
        if shows(middle):
            showing = middle
        else:
            clean = middle
    return 0 if clean == 0 and shows(0) else showing
