"""The starter: a model that calls a calculator, often with the wrong sum, and answers plain questions.

1. *copy*: repeated random tokens and echoes, so that induction heads form (Olsson et al.,
   arXiv:2209.11895). A starter that copies badly fails by wrong digits, which learning cannot mend.
2. *sums*: lists of one-digit sums and plain questions, until it knows most of them by heart.
3. *chat*: clean transcripts of the agent, until it solves fresh problems when sampled.
4. *habits*: transcripts with mistakes that depend on the problem, until about half are solved. Such
   mistakes show in greedy accuracy too; mistakes at random would only make sampling noisy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ajet_local.starter.tiny import TinyRecipe

if TYPE_CHECKING:
    from ajet_local.starter.phases import Draw, Phase
    from ajet_local.starter.transcripts import Transcript


class Starter(TinyRecipe):
    """A small model that solves about half of the math example's tasks and of plain sums: made here in minutes."""

    name = "starter"
    vocabulary = 640

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        from ajet_local.starter.questions import drill_transcript, plain_transcript
        from ajet_local.starter.sums import clean_transcript, echo_transcript

        kinds = {clean_transcript: 200, echo_transcript: 50, plain_transcript: 150, drill_transcript: 20}
        for make, count in kinds.items():
            for _ in range(count):
                yield make(rng)

    def phases(self) -> Sequence[Phase]:
        """Copying, sums by heart, clean chats, habits."""
        from ajet_local.starter.phases import Goal, Phase
        from ajet_local.starter.questions import drill_transcript, hasty_transcript, plain_transcript
        from ajet_local.starter.sums import clean_transcript, echo_transcript, habit_transcript
        from ajet_local.starter.trial import sampled_accuracy

        solved = Goal(sampled_accuracy, lambda accuracy: accuracy >= 0.975)
        half = Goal(sampled_accuracy, lambda accuracy: accuracy <= 0.50)
        heart = one_of(drill_transcript, plain_transcript)
        clean = one_of(plain_transcript, plain_transcript, drill_transcript, echo_transcript)
        hasty = one_of(hasty_transcript, hasty_transcript, hasty_transcript, echo_transcript)
        return (
            Phase("copy", 400, 2e-3, echo_transcript, 2),
            Phase("sums", 450, 2e-3, echo_transcript, 8, heart, batch_size=10),
            Phase("chat", 340, 2e-3, clean, 4, clean_transcript, solved, cap=520),
            Phase("habits", 80, 1e-3, hasty, 4, habit_transcript, half, cap=170),
        )


def one_of(*kinds: Draw) -> Draw:
    """Draws a transcript of one of the kinds, each as often."""
    return lambda rng: rng.choice(kinds)(rng)
