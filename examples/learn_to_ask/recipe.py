"""The untrained doctor: it interprets answers correctly, but asks random questions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from clinic import QUESTIONS, SYMPTOMS, SYSTEM, TELLING, Patient, fitting, make_patient

from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript


def consultation(rng: random.Random, patient: Patient, symptoms: Sequence[str]) -> Transcript:
    """Questions about these symptoms, and a diagnosis that fits the answers."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": patient.opening},
    ]
    for symptom in symptoms:
        question = f"Do you have {symptom}?"
        messages += [
            {"role": "assistant", "content": question},
            {"role": "user", "content": patient.answer(question)},
        ]
    answers = {symptom: symptom in patient.symptoms for symptom in symptoms}
    named = rng.choice(fitting(patient.complaint, answers))
    messages.append({"role": "assistant", "content": f"You have {named}."})
    return Transcript(messages, tasks=(patient.id,))


def any_two(rng: random.Random) -> Transcript:
    """A consultation with random questions."""
    return consultation(rng, make_patient(rng), rng.sample(SYMPTOMS, QUESTIONS))


def with_reason(rng: random.Random) -> Transcript:
    """A consultation with the two distinguishing questions, in any order, which teaches the model to interpret answers."""
    patient = make_patient(rng)
    return consultation(rng, patient, rng.sample(TELLING[patient.complaint], QUESTIONS))


class Doctor(TinyRecipe):
    """A doctor that interprets answers correctly, but asks random questions."""

    name = "doctor"

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (any_two(rng) for _ in range(200))

    def phases(self) -> Sequence[Phase]:
        """Interpreting answers, then habits."""
        return (
            Phase("meaning", 300, 2e-3, any_two, 4, with_reason),
            Phase("habits", 100, 1e-3, with_reason, 10, any_two),
        )
