"""A clinic of simulated patients: their complaints, answers and conditions."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ajet import Task
from ajet.interfaces.reader import DrawnReader

SYSTEM = "You are a doctor. Ask two questions, then name the condition."
QUESTIONS = 2
COMPLAINTS = {
    "headache": ("migraine", "sinusitis", "concussion", "dehydration"),
    "cough": ("pneumonia", "asthma", "bronchitis", "reflux"),
    "stomach ache": ("appendicitis", "gastritis", "food poisoning", "gallstones"),
    "rash": ("measles", "eczema", "shingles", "hives"),
}
"""Complaint -> the conditions that can cause it."""

TELLING = {
    "headache": ("nausea", "injury"),
    "cough": ("fever", "wheezing"),
    "stomach ache": ("vomiting", "sharp pain"),
    "rash": ("itching", "blisters"),
}
"""Complaint -> the two symptoms that distinguish its conditions: condition i has the first if i is above 1, and the
second if i is odd. All other symptoms are random."""

SYMPTOMS = tuple(symptom for pair in TELLING.values() for symptom in pair)
NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ida", "Jon",
    "Kim", "Lea", "Max", "Nora", "Otis", "Pia", "Quinn", "Rosa", "Sam", "Tess",
)  # fmt: skip


@dataclass(frozen=True)
class Patient:
    """A patient with a condition."""

    name: str
    age: int
    complaint: str
    condition: str
    symptoms: frozenset[str]

    @property
    def id(self) -> str:
        """An id made of all fields."""
        symptoms = ",".join(sorted(self.symptoms))
        return f"{self.name}-{self.age}-{self.complaint}-{self.condition}-{symptoms}"

    @property
    def held_out(self) -> bool:
        """Whether the patient is kept for validation, by a hash of the id: a quarter of all are."""
        return zlib.crc32(self.id.encode()) % 4 == 0

    @property
    def opening(self) -> str:
        """The patient's first message."""
        return f"I am {self.name}, {self.age}. I have a {self.complaint}."

    def answer(self, question: str) -> str:
        """The patient's answer to a question."""
        match = re.fullmatch(r"Do you have (.+)\?", question.strip())
        if not match or match[1] not in SYMPTOMS:
            return "I do not understand."
        return f"Yes, {match[1]}." if match[1] in self.symptoms else f"No {match[1]}."


def make_patient(rng: random.Random, *, held_out: bool = False) -> Patient:
    """A random patient, either for training or held out."""
    while True:
        complaint = rng.choice(list(COMPLAINTS))
        number = rng.randrange(4)
        present = {symptom for symptom in SYMPTOMS if rng.random() < 0.5} - set(TELLING[complaint])
        first, second = TELLING[complaint]
        present |= {s for s, has in ((first, number > 1), (second, number % 2 == 1)) if has}
        condition = COMPLAINTS[complaint][number]
        patient = Patient(rng.choice(NAMES), rng.randint(18, 90), complaint, condition, frozenset(present))
        if patient.held_out == held_out:
            return patient


def to_task(patient: Patient) -> Task:
    """The patient as a task, which is plain data."""
    fields = {**asdict(patient), "symptoms": sorted(patient.symptoms)}
    return Task(patient.id, patient.opening, metadata={"answer": patient.condition, "patient": fields})


def from_task(task: Task) -> Patient:
    """The patient of a task."""
    fields: Mapping[str, Any] = task.metadata["patient"]
    return Patient(**{**fields, "symptoms": frozenset(fields["symptoms"])})


def fitting(complaint: str, answers: dict[str, bool]) -> list[str]:
    """The conditions that are possible given the answers, by symptom."""
    first, second = TELLING[complaint]
    return [
        condition
        for number, condition in enumerate(COMPLAINTS[complaint])
        if answers.get(first, number > 1) == (number > 1)
        and answers.get(second, number % 2 == 1) == (number % 2 == 1)
    ]


class Patients(DrawnReader):
    """Distinct patients: either only held-out ones, or none of them."""

    name = "patients"

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        return to_task(make_patient(rng, held_out=self.held_out))
