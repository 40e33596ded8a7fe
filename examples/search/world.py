"""A small encyclopedia about invented companies, people and towns, and questions that need two of its articles."""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from ajet import Task
from ajet.interfaces.reader import DrawnReader

NAMES = (
    "Bel", "Bor", "Cam", "Cor", "Dag", "Dor", "Fen", "Fol", "Gal", "Gor", "Hul", "Hem", "Jor", "Jul",
    "Kas", "Kel", "Lum", "Lor", "Mir", "Mol", "Nor", "Nub", "Orb", "Osk", "Pel", "Pos", "Ras", "Rul",
    "Sil", "Sol", "Tam", "Tol", "Ulm", "Urs", "Var", "Vel", "Wen", "Wol", "Yar", "Zor",
)  # fmt: skip
KINDS = ("Mills", "Bank", "Works", "Lines", "Press", "Mines", "Foods")
FIRST_NAMES = (
    "Ada", "Ann", "Ben", "Dan", "Eve", "Gus", "Ida", "Jan", "Jon", "Kim", "Lea", "Max", "Ned", "Pia",
    "Sam", "Tim",
)  # fmt: skip
PREFIXES = ("Old", "New", "Port", "Upper", "Lower")
COUNTRIES = ("Averia", "Boland", "Cordia", "Drumond", "Elvany", "Falmark", "Gorania", "Hestria")
RIVERS = ("Amber", "Brook", "Clear", "Dark", "Elm", "Frost", "Green", "Heron")

COMPANIES, PEOPLE, TOWNS = 260, 400, 120
"""Numbers of articles of each kind."""

QUESTIONS = {
    ("founder", "birthplace"): "Where was the founder of {} born?",
    ("founder", "teacher"): "Who taught the founder of {}?",
    ("seat", "country"): "In which country is {}?",
    ("seat", "river"): "On which river is {}?",
    ("seat", "mayor"): "Who is the mayor where {} is?",
}
"""The two relations that lead from a company to the answer -> the question."""


@dataclass(frozen=True)
class World:
    """All facts."""

    facts: dict[tuple[str, str], str]
    """(relation, entity) -> value."""

    def sentence(self, relation: str, entity: str) -> str:
        """A fact as a sentence of the entity's article."""
        return f"It has the {relation} {self.facts[relation, entity]}."

    @functools.cached_property
    def articles(self) -> dict[str, str]:
        """Title -> text, of one article for each entity."""
        found: dict[str, list[str]] = {}
        for relation, entity in self.facts:
            found.setdefault(entity, []).append(self.sentence(relation, entity))
        return {title: " ".join(sentences) for title, sentences in found.items()}

    @functools.cached_property
    def companies(self) -> list[str]:
        """The companies, with which all questions begin."""
        return [entity for relation, entity in self.facts if relation == "founder"]


@functools.cache
def make_world(seed: int = 0) -> World:
    """The world of a seed. The founders of companies are different people."""
    rng = random.Random(f"world {seed}")
    companies = draw_names(rng, COMPANIES, NAMES, KINDS)
    people = draw_names(rng, PEOPLE, FIRST_NAMES, NAMES)
    towns = draw_names(rng, TOWNS, PREFIXES, NAMES)
    facts: dict[tuple[str, str], str] = {}
    for company, founder in zip(companies, people, strict=False):
        facts["founder", company] = founder
        facts["seat", company] = rng.choice(towns)
    for person in people:
        facts["birthplace", person] = rng.choice(towns)
        facts["teacher", person] = rng.choice(people)
    for town in towns:
        facts["country", town] = rng.choice(COUNTRIES)
        facts["river", town] = rng.choice(RIVERS)
        facts["mayor", town] = rng.choice(people)
    return World(facts)


def draw_names(rng: random.Random, count: int, first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Different names of two words."""
    return rng.sample([f"{a} {b}" for a in first for b in second], count)


def held_out(company: str) -> bool:
    """Whether the questions about a company are kept for validation, by a hash of its name: a quarter of all are."""
    return zlib.crc32(company.encode()) % 4 == 0


def to_task(world: World, company: str, relations: tuple[str, str]) -> Task:
    """The question about a company. The reference answer is a perfect response."""
    question = QUESTIONS[relations].format(company)
    source = world.facts[relations[0], company]
    answer = f"{world.facts[relations[1], source]}. Source: {source}."
    return Task(question, question, metadata={"answer": answer})


class Questions(DrawnReader):
    """Different questions about the companies of the world: either only held-out ones, or none of them."""

    name = "questions"

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        world = make_world()
        company = rng.choice([c for c in world.companies if held_out(c) == self.held_out])
        return to_task(world, company, rng.choice(list(QUESTIONS)))
