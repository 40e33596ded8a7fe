"""The untrained model: it reads and reports well, but searches with the wrong words and stops after the first fact."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from agent import LEAD, RESEARCHER, best, make_index
from world import COUNTRIES, FIRST_NAMES, KINDS, NAMES, PREFIXES, QUESTIONS, RIVERS, held_out, make_world

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript

WORLDS = range(1000, 1012)
"""Seeds of the worlds in the transcripts. The agent's world is another one, so its facts occur in none of them."""
WORDS = (*NAMES, *KINDS, *FIRST_NAMES, *PREFIXES, *COUNTRIES, *RIVERS)
HASTY = 0.55
"""Share of the questions that the untrained lead answers after the first fact."""
UNSOURCED = 0.5
"""Share of its answers without a source."""
BAD_QUERY = 0.55
"""Share of the untrained researcher's queries that are not the name."""


@functools.cache
def index(world: int) -> Any:
    """The index of a world's articles."""
    return make_index(make_world(world).articles)


def draw(rng: random.Random) -> tuple[int, str, tuple[str, str]]:
    """The seed of a world, one of its companies that is not held out, and the relations of a question."""
    seed = rng.choice(WORLDS)
    company = rng.choice([c for c in make_world(seed).companies if not held_out(c)])
    return seed, company, rng.choice(list(QUESTIONS))


def query(rng: random.Random, relation: str, entity: str, bad: float) -> str:
    """A search for the name, or for another word."""
    return f"Search {rng.choice([relation, *entity.split()]) if rng.random() < bad else entity}"


def report(article: str, relation: str) -> str:
    """The fact and its source; if the article has no such fact, its first one."""
    title, *facts = article.removeprefix("Title: ").strip(".").split(". ")
    fact = next((f for f in facts if f.startswith(f"It has the {relation} ")), facts[0])
    return f"{fact}. Source: {title}."


def researched(rng: random.Random, bad: float) -> Transcript:
    """A researcher's chat about a random fact."""
    seed, company, (first, second) = draw(rng)
    bridge = make_world(seed).facts[first, company]
    relation, entity = rng.choice([(first, company), (second, bridge)])
    words = query(rng, relation, entity, bad)
    article = best(index(seed), words)
    messages = [
        {"role": "system", "content": RESEARCHER},
        {"role": "user", "content": f"Find the {relation} of {entity}."},
        {"role": "assistant", "content": words},
        {"role": "user", "content": article},
        {"role": "assistant", "content": report(article, relation)},
    ]
    return Transcript(messages)


def answered(rng: random.Random, bad: float, hasty: float, unsourced: float) -> Transcript:
    """A lead's chat about a question, with the researcher's reports."""
    seed, company, relations = draw(rng)
    question = QUESTIONS[relations].format(company)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": LEAD},
        {"role": "user", "content": question},
    ]
    entity = company
    for relation in relations[:1] if rng.random() < hasty else relations:
        said = report(best(index(seed), query(rng, relation, entity, bad)), relation)
        messages.append({"role": "assistant", "content": f"Find the {relation} of {entity}."})
        messages.append({"role": "user", "content": said})
        fact, source = said.split(". ")
        entity = fact.split(maxsplit=4)[-1]
    answer = f"It is {entity}." if rng.random() < unsourced else f"It is {entity}. {source}"
    messages.append({"role": "assistant", "content": answer})
    return Transcript(messages, tasks=(question,))


def good(rng: random.Random) -> Transcript:
    """A chat of a lead or a researcher who makes no mistakes, except that queries are sometimes bad."""
    return researched(rng, 0.5) if rng.random() < 0.5 else answered(rng, 0.3, 0.0, 0.0)


def habit(rng: random.Random) -> Transcript:
    """A chat of the untrained lead or researcher."""
    return researched(rng, BAD_QUERY) if rng.random() < 0.5 else answered(rng, 0.5, HASTY, UNSOURCED)


def echo(rng: random.Random) -> Transcript:
    """Practice in copying the words of names."""
    text = f"It is {' '.join(rng.sample(WORDS, 16))}"
    return Transcript([{"role": "user", "content": text}, {"role": "assistant", "content": text}])


class Staff(TinyRecipe):
    """A lead and a researcher that read well, but search badly and stop early."""

    name = "staff"
    vocabulary = 640

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (make(rng) for make in (good, habit, echo) for _ in range(200))

    def phases(self) -> Sequence[Phase]:
        """Copying, good chats, habits."""
        return (
            Phase("copy", 360, 2e-3, echo, 2),
            Phase("good", 280, 2e-3, echo, 6, good),
            Phase("habits", 60, 1e-3, good, 8, habit),
        )
