"""The untrained clerk: it writes correct sentences, but leaves out half of a good reply."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from shop import BAD, GOOD, NAMES, SYSTEM, THINGS, draw, letter

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript

GOOD_SHARE = 0.5
"""Share of the good sentences in a reply."""
BAD_SHARE = 0.3
"""Share of the bad sentences in a reply."""


def reply(rng: random.Random) -> Transcript:
    """A letter and a clerk's reply."""
    name, thing, fault = draw(rng)
    sentences = [sentence for sentence in GOOD if rng.random() < GOOD_SHARE]
    for sentence in BAD:
        if rng.random() < BAD_SHARE:
            sentences.insert(rng.randint(0, len(sentences)), sentence)
    text = " ".join(sentences or BAD[:1]).format(name=name, thing=thing)
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": letter(name, thing, fault)},
        {"role": "assistant", "content": text},
    ]
    return Transcript(messages, tasks=(letter(name, thing, fault),))


def echo(rng: random.Random) -> Transcript:
    """Practice in copying names and things."""
    text = " ".join(rng.choice([*NAMES, *THINGS]) for _ in range(rng.randint(2, 6)))
    return Transcript([{"role": "user", "content": text}, {"role": "assistant", "content": text}])


class Clerk(TinyRecipe):
    """A clerk that leaves out half of a good reply."""

    name = "clerk"

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (make(rng) for make in (reply, echo) for _ in range(150))

    def phases(self) -> Sequence[Phase]:
        """Copying, then letters."""
        return (Phase("copy", 240, 2e-3, echo, 2), Phase("letters", 200, 2e-3, echo, 6, reply))
