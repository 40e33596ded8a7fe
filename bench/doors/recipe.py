"""The untrained visitor: it takes any door and any card."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from house import DOORS, SEEN, SYSTEM, WORDS, questions

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript


def visit(rng: random.Random) -> Transcript:
    """A visit with random answers."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    door = " ".join([rng.choice(DOORS), *rng.choices(WORDS, k=SEEN)])
    for question, said in zip(questions(rng.randrange(10, 10_000)), (door, rng.choice(WORDS)), strict=True):
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": said}]
    return Transcript(messages)


class Visitor(TinyRecipe):
    """A visitor that takes any door and any card."""

    name = "visitor"
    hidden_size = 64
    layers = 2

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (visit(rng) for _ in range(200))

    def phases(self) -> Sequence[Phase]:
        """Visits."""
        return (Phase("visit", 150, 3e-3, visit, 1),)
