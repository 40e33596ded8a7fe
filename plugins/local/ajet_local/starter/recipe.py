"""The starter, the default model: it answers plain questions about sums of one-digit numbers.

It is trained in two phases:

1. *sums*: lists of sums, and questions in many wordings, until it knows most sums by heart.
2. *habits*: questions that are mostly answered by adding where it should subtract, so that there is something to learn.
   As with `Calculator`, the habit depends on the question and also shows in greedy decoding.
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
    """A small model that adds one-digit numbers, and mostly adds where it should subtract. Built on this machine in minutes."""

    name = "starter"

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        from ajet_local.starter.questions import drill_transcript, plain_transcript

        for make, count in ((plain_transcript, 300), (drill_transcript, 20)):
            for _ in range(count):
                yield make(rng)

    def phases(self) -> Sequence[Phase]:
        """Memorising sums, habits."""
        from ajet_local.starter.phases import Phase
        from ajet_local.starter.questions import drill_transcript, hasty_transcript, plain_transcript

        return (
            Phase("sums", 700, 2e-3, drill_transcript, 2, plain_transcript, batch_size=10),
            Phase("habits", 100, 1e-3, plain_transcript, 8, hasty_transcript, batch_size=20),
        )
