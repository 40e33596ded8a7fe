"""The phases of a small model's supervised training, as batches for `LocalTrainer.update`.

A phase with a goal continues after its ``steps`` at its lowest learning rate, until the goal is met or its cap is
reached.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ajet.interfaces.backbone import Batch, Sample
from ajet.interfaces.engine import Engine
from ajet.learning.sft import sft_batch
from ajet_local.starter.transcripts import Transcript, make_sample

WARM_UP = 10
"""Steps over which the learning rate rises linearly."""
LOWEST_RATE = 0.1
"""Learning rate at the end of a phase, as a share of its peak."""

Draw = Callable[[random.Random], Transcript]
"""Makes a random transcript."""
ToSample = Callable[[Transcript], Sample]


@dataclass(frozen=True, slots=True)
class Goal:
    """When a phase may end: ``trial`` measures the model, through its engine and renderer, and ``met`` says whether the
    result is good enough."""

    trial: Callable[[Engine, Any, random.Random], Awaitable[float]]
    met: Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of training. Every ``echo_every``-th batch consists of transcripts from ``echo`` (copying practice), the
    others of transcripts from ``make`` or, if that is None, of random repetitions."""

    name: str
    steps: int
    peak_rate: float
    echo: Draw
    echo_every: int
    make: Draw | None = None
    goal: Goal | None = None
    cap: int = 0
    """Maximum steps if there is a goal."""
    batch_size: int = 32
    """Transcripts per step. Memorising costs less with many small steps than with few large ones."""

    @property
    def most_steps(self) -> int:
        """Maximum number of steps: ``steps`` or, if larger, ``cap``."""
        return max(self.steps, self.cap)


def batches(phase: Phase, seed: int, to_sample: ToSample, tokenizer: Any, used: set[str]) -> Iterator[Batch]:
    """The batches of a phase up to its cap, each with `batch_size` samples for one step.

    Adds the tasks in the transcripts to ``used``. Echoes are in separate batches, because the other transcripts share
    the agent's prompt, which is then computed once.
    """
    rng = random.Random(f"{phase.name} {seed}")
    symbols = _symbols(tokenizer)
    for step in range(phase.most_steps):
        if step % phase.echo_every == 0:
            samples = _rendered(to_sample, [phase.echo(rng) for _ in range(phase.batch_size)], used)
        elif phase.make is not None:
            samples = _rendered(to_sample, [phase.make(rng) for _ in range(phase.batch_size)], used)
        else:
            samples = [_repetition(rng, *symbols) for _ in range(phase.batch_size)]
        yield sft_batch(samples, phase.peak_rate * _schedule(step, phase.steps))


def _schedule(step: int, steps: int) -> float:
    """Share of the peak rate at a step from 0: half a cosine from 1 to `LOWEST_RATE`, times a linear warm-up."""
    done = min(step / steps, 1.0)
    cosine = LOWEST_RATE + (1 - LOWEST_RATE) * (1 + math.cos(math.pi * done)) / 2
    return min(1.0, (step + 1) / WARM_UP) * cosine


def _rendered(to_sample: ToSample, transcripts: list[Transcript], used: set[str]) -> list[Sample]:
    used.update(task for t in transcripts for task in t.tasks)
    return [to_sample(t) for t in transcripts]


def _symbols(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Token ids of the digits, and of everything else except signs, so that no sum can appear by chance."""
    vocabulary = tokenizer.get_vocab()
    digits = [vocabulary[str(d)] for d in range(10)]
    others = [i for text, i in sorted(vocabulary.items()) if i not in digits and not set(text) & set("+-")]
    return digits, others


def _repetition(rng: random.Random, digits: list[int], others: list[int], length: int = 48) -> Sample:
    """A random sequence of 4 to 16 tokens, about half of them digits, repeated to ``length`` tokens. All but the first
    occurrence is trained."""
    period = [rng.choice(digits if rng.random() < 0.5 else others) for _ in range(rng.randint(4, 16))]
    ids = (period * (length // len(period) + 1))[:length]
    return make_sample(ids, np.arange(length) >= len(period))
