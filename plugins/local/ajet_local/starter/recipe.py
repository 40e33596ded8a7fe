"""The starter, which is the default model: it answers plain questions for one-digit sums.

1. *sums*: lists of sums, and questions in many wordings, after which it knows most sums by heart.
2. *habits*: questions that are mostly answered by adding where it should subtract, so that there is something to learn.
   The habit depends on the question and shows in greedy decoding too, as that of `Calculator` does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ajet_local.starter.tiny import TinyRecipe

if TYPE_CHECKING:
    from ajet_local.starter.phases import Phase
    from ajet_local.starter.transcripts import Transcript


class Starter(TinyRecipe):
    """A small model that adds one-digit numbers, and mostly adds where it should subtract: made here in minutes."""

    name = "starter"

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        from ajet_local.starter.questions import drill_transcript, plain_transcript

        for make, count in ((plain_transcript, 300), (drill_transcript, 20)):
            for _ in range(count):
                yield make(rng)

    def phases(self) -> Sequence[Phase]:
        """Sums by heart, habits."""
        from ajet_local.starter.phases import Phase
        from ajet_local.starter.questions import drill_transcript, hasty_transcript, plain_transcript

        return (
            Phase("sums", 700, 2e-3, drill_transcript, 2, plain_transcript, batch_size=10),
            Phase("habits", 100, 1e-3, plain_transcript, 8, hasty_transcript, batch_size=20),
        )
