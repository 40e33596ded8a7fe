"""A model of random weights for a first run: it shows what is sent and trained, but learns nothing in a few steps."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pydoc_data.topics import topics
from typing import Any

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript


class Untrained(TinyRecipe):
    """Built in seconds. Its vocabulary is that of Python's manual, and its context holds the prompt of any recipe."""

    name = "untrained"
    vocabulary = 4096
    context_length = 1 << 17
    hidden_size = 32
    layers = 2

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """Python's manual, from which the tokenizer is trained."""
        return (Transcript([{"role": "user", "content": text}]) for _, text in sorted(topics.items()))

    def tokenizer(self, seed: int) -> tuple[Any, str]:
        """See `Recipe.tokenizer`."""
        tokenizer, architecture = super().tokenizer(seed)
        tokenizer.model_max_length = self.context_length
        return tokenizer, architecture

    def phases(self) -> Sequence[Phase]:
        """None: the weights stay random."""
        return ()
