"""The phases of supervised training that make a small model, as batches for `LocalTrainer.update`.

A phase runs its ``steps``, then goes on at its lowest rate until its goal is met, or to its cap.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ajet.interfaces.engine import Engine
from ajet.learning.sft import sft_batch
from ajet.types import Batch, Sample
from ajet_local.starter.transcripts import Transcript, make_sample, to_sample

WARM_UP = 10
LOWEST_RATE = 0.1
"""Share of the peak learning rate at which a phase ends."""

Draw = Callable[[random.Random], Transcript]


@dataclass(frozen=True, slots=True)
class Goal:
    """When a phase may end: ``trial`` lets the model work, through its engine and renderer, and ``met`` judges
    the figure."""

    trial: Callable[[Engine, Any, random.Random], Awaitable[float]]
    met: Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Phase:
    """``make`` draws a transcript; every ``echo_every``-th batch is drawn from ``echo`` (copying practice), or
    (without ``make``) every other one, the rest being random repetitions."""

    name: str
    steps: int
    peak_rate: float
    echo: Draw
    echo_every: int
    make: Draw | None = None
    goal: Goal | None = None
    cap: int = 0
    """Most steps, where there is a goal."""
    batch_size: int = 32
    """Transcripts of a step; for what must be learned by heart, many small steps cost less than few large ones."""

    @property
    def most_steps(self) -> int:
        """``steps``, or more where it takes them to reach the goal."""
        return max(self.steps, self.cap)


def batches(phase: Phase, seed: int, renderer: Any, tokenizer: Any, used: set[str]) -> Iterator[Batch]:
    """The phase's batches up to its cap: `batch_size` samples and one step each.

    Tasks that transcripts give away are added to ``used``. Echoes have batches of their own, because rows that
    share the agent's prompt are cheaper by themselves.
    """
    rng = random.Random(f"{phase.name} {seed}")
    symbols = _symbols(tokenizer)
    for step in range(phase.most_steps):
        if step % phase.echo_every == 0:
            samples = _rendered(renderer, [phase.echo(rng) for _ in range(phase.batch_size)], used)
        elif phase.make is not None:
            samples = _rendered(renderer, [phase.make(rng) for _ in range(phase.batch_size)], used)
        else:
            samples = [_repetition(rng, *symbols) for _ in range(phase.batch_size)]
        yield sft_batch(samples, phase.peak_rate * _schedule(step, phase.steps))


def _schedule(step: int, steps: int) -> float:
    """Share of the peak rate: linear warm-up, then a half cosine down to `LOWEST_RATE`."""
    done = min(step / steps, 1.0)
    cosine = LOWEST_RATE + (1 - LOWEST_RATE) * (1 + math.cos(math.pi * done)) / 2
    return min(1.0, (step + 1) / WARM_UP) * cosine


def _rendered(renderer: Any, transcripts: list[Transcript], used: set[str]) -> list[Sample]:
    used.update(task for t in transcripts for task in t.tasks)
    return [to_sample(renderer, t) for t in transcripts]


def _symbols(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Token ids of the digits, and of all else but signs: so no sum can arise by chance."""
    vocabulary = tokenizer.get_vocab()
    digits = [vocabulary[str(d)] for d in range(10)]
    others = [i for text, i in sorted(vocabulary.items()) if i not in digits and not set(text) & set("+-")]
    return digits, others


def _repetition(rng: random.Random, digits: list[int], others: list[int], length: int = 48) -> Sample:
    """A random period of 4 to 16 tokens, half of them digits, repeated to ``length``; the
    repetitions are learned."""
    period = [rng.choice(digits if rng.random() < 0.5 else others) for _ in range(rng.randint(4, 16))]
    ids = (period * (length // len(period) + 1))[:length]
    return make_sample(ids, np.arange(length) >= len(period))
