"""The untrained visitor: it knows what doors and ways there are, and takes any."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from house import DOORS, ROOMS, SIGNS, SYSTEM, WAYS, question

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript


def visit(rng: random.Random) -> Transcript:
    """A visit with random answers."""
    sign, house = rng.choice(SIGNS), rng.randrange(10, 1000)
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for number in range(ROOMS + 1):
        messages += [
            {"role": "user", "content": question(sign, house, number)},
            {"role": "assistant", "content": rng.choice(WAYS if number else DOORS)},
        ]
    return Transcript(messages)


class Visitor(TinyRecipe):
    """A visitor that takes any door and any way."""

    name = "visitor"
    hidden_size = 64
    layers = 2

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (visit(rng) for _ in range(200))

    def phases(self) -> Sequence[Phase]:
        """Visits."""
        return (Phase("visit", 100, 3e-3, visit, 1),)
