"""The model of the math example, which calls a calculator, but often with the wrong sum.

It is trained in three phases:

1. *copy*: repeated random tokens and echoes, so that induction heads form (Olsson et al.,
   arXiv:2209.11895). A model that copies badly writes wrong digits, and reinforcement learning cannot correct that.
2. *chat*: transcripts without mistakes, until the sampled model solves new problems.
3. *habits*: transcripts with mistakes that depend on the problem, until about half of the problems are solved. Such
   mistakes also lower greedy accuracy; random mistakes would only make sampling noisy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ajet_local.starter.tiny import TinyRecipe

if TYPE_CHECKING:
    from ajet_local.starter.phases import Phase
    from ajet_local.starter.transcripts import Transcript


class Calculator(TinyRecipe):
    """A small model that solves about half of the math example's tasks with its tool. Built on this machine in minutes."""

    name = "calculator"

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        from ajet_local.starter.sums import clean_transcript, echo_transcript

        for make, count in ((clean_transcript, 200), (echo_transcript, 50)):
            for _ in range(count):
                yield make(rng)

    def phases(self) -> Sequence[Phase]:
        """Copying, chats without mistakes, habits."""
        from ajet_local.starter.phases import Goal, Phase
        from ajet_local.starter.sums import clean_transcript, echo_transcript, habit_transcript
        from ajet_local.starter.trial import sampled_accuracy

        solved = Goal(sampled_accuracy, lambda accuracy: accuracy >= 0.975)
        half = Goal(sampled_accuracy, lambda accuracy: accuracy <= 0.50)
        return (
            Phase("copy", 400, 2e-3, echo_transcript, 2),
            Phase("chat", 340, 2e-3, echo_transcript, 8, clean_transcript, solved, cap=520),
            Phase("habits", 80, 1e-3, echo_transcript, 8, habit_transcript, half, cap=170),
        )
