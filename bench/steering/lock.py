"""A lock of many dials: each turn sets one, and only at the end it opens or does not. The agent, and an untrained burglar."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import httpx2

from ajet import Task, WorkflowOutput
from ajet.interfaces.reader import DrawnReader
from ajet_local.starter.phases import Phase
from ajet_local.starter.tiny import TinyRecipe
from ajet_local.starter.transcripts import Transcript

CLIENT = httpx2.AsyncClient(timeout=60)
URL = "http://127.0.0.1:9/v1/chat/completions"
"""No server listens on this port: capture answers."""
SYSTEM = "Open the lock. Turn each dial left or right."
TURNS = ("left", "right")
CODE = ["left", "right", "right", "left", "right", "left"]
"""One guess in 64 is right."""
DIALS = len(CODE)


def code(lock: int) -> Sequence[str]:
    """What opens a lock: for all the same."""
    return CODE


def question(lock: int, dial: int) -> str:
    """What the agent reads before it turns a dial."""
    return f"Lock {lock}, dial {dial}."


def guess(rng: random.Random, lock: int, dial: int) -> str:
    """How the untrained burglar turns a dial."""
    return rng.choice(TURNS)


async def run(task: Task) -> WorkflowOutput:
    """Turn all dials, then try the lock."""
    lock: int = task.metadata["lock"]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    for dial in range(DIALS):
        messages.append({"role": "user", "content": question(lock, dial)})
        answer = await CLIENT.post(URL, json={"model": "m", "messages": messages})
        said = answer.json()["choices"][0]["message"]["content"] or ""
        messages.append({"role": "assistant", "content": said})
    opened = [m["content"].strip() for m in messages if m["role"] == "assistant"] == list(code(lock))
    return WorkflowOutput(reward=float(opened), is_success=opened)


class Locks(DrawnReader):
    """Locks with numbers."""

    name = "locks"

    def draw(self, rng: random.Random) -> Task:
        """See `DrawnReader.draw`."""
        lock = rng.randrange(70, 100) if self.held_out else rng.randrange(10, 70)
        return Task(str(lock), metadata={"lock": lock})


def guesses(rng: random.Random) -> Transcript:
    """Dials that are turned at random."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    lock = rng.randrange(10, 100)
    for dial in range(DIALS):
        messages += [
            {"role": "user", "content": question(lock, dial)},
            {"role": "assistant", "content": guess(rng, lock, dial)},
        ]
    return Transcript(messages)


def reading(rng: random.Random) -> Transcript:
    """Practice in telling dials apart."""
    lock, dial = rng.randrange(10, 100), rng.randrange(DIALS)
    asked = f"{question(lock, dial)} Which dial is it?"
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": str(dial)}]
    return Transcript(messages)


class Burglar(TinyRecipe):
    """A burglar who knows one dial from another, and turns them at random."""

    name = "burglar"
    hidden_size = 64
    layers = 2

    def corpus(self, rng: random.Random) -> Iterator[Transcript]:
        """See `TinyRecipe.corpus`."""
        return (make(rng) for make in (guesses, reading) for _ in range(100))

    def phases(self) -> Sequence[Phase]:
        """Reading, then guesses."""
        return (
            Phase("read", 150, 3e-3, reading, 1),
            Phase("guess", 150, 2e-3, reading, 3, guesses),
        )
