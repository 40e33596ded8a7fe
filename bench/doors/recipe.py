"""The untrained visitor: it knows what notes, doors and ways there are, and takes any."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from house import DOORS, NOTE, SYSTEM, WAYS, WORDS, questions

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript


def visit(rng: random.Random) -> Transcript:
    """A visit with random answers."""
    asked = questions(rng.randrange(10, 10_000), 7, notes=rng.random() < 0.5)
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for question in asked:
        words = rng.choices(WORDS, k=NOTE) if question.endswith("note.") else [rng.choice(WAYS)]
        said = rng.choice(DOORS) if question.endswith("door?") else " ".join(words)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": said}]
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
        return (Phase("visit", 120, 3e-3, visit, 1),)
