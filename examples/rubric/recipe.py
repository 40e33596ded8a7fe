"""The clerk to begin with: writes proper sentences, and leaves out half of what belongs into a reply."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from shop import BAD, GOOD, NAMES, SYSTEM, THINGS, draw, letter

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript

SAID = 0.5
"""Share of the good sentences that are said."""
RUDE = 0.3
"""Share of the bad sentences that are said."""


def reply(rng: random.Random) -> Transcript:
    """A letter and a clerk's reply."""
    name, thing, fault = draw(rng)
    said = [sentence for sentence in GOOD if rng.random() < SAID]
    for sentence in BAD:
        if rng.random() < RUDE:
            said.insert(rng.randint(0, len(said)), sentence)
    text = " ".join(said or BAD[:1]).format(name=name, thing=thing)
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": letter(name, thing, fault)},
        {"role": "assistant", "content": text},
    ]
    return Transcript(messages, tasks=(letter(name, thing, fault),))


def echo(rng: random.Random) -> Transcript:
    """Copying practice: names and things."""
    text = " ".join(rng.choice([*NAMES, *THINGS]) for _ in range(rng.randint(2, 6)))
    return Transcript([{"role": "user", "content": text}, {"role": "assistant", "content": text}])


class Clerk(TinyRecipe):
    """A clerk who leaves out half of what belongs into a reply."""

    name = "clerk"

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (make(rng) for make in (reply, echo) for _ in range(150))

    def phases(self) -> Sequence[Phase]:
        """Copying, then letters."""
        return (Phase("copy", 240, 2e-3, echo, 2), Phase("letters", 200, 2e-3, echo, 6, reply))
