"""The recipe: the model's shape, and the phases of supervised training that make it.

1. *copy*: repeated random tokens and echoes, so that induction heads form (Olsson et al.,
   arXiv:2209.11895). A starter that copies badly fails by wrong digits, which learning cannot mend.
2. *chat*: clean transcripts of the agent, until it solves fresh problems when sampled.
3. *habits*: transcripts with mistakes that depend on the problem, until about half are solved. Such
   mistakes show in greedy accuracy too; mistakes at random would only make sampling noisy.

A phase is an iterator of batches for `LocalTrainer.update`, the same trainer as everywhere. It runs
its ``steps``, then goes on at its lowest rate until its goal is met, or to its cap.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import Qwen3Config

from ajet.learning.sft import sft_batch
from ajet.types import Batch, Sample
from ajet_local.starter.transcripts import (
    Transcript,
    clean_transcript,
    echo_transcript,
    habit_transcript,
    make_sample,
    to_sample,
)

CONTEXT_LENGTH = 512
BATCH_SIZE = 32
BETAS = (0.9, 0.98)
WARM_UP = 10
LOWEST_RATE = 0.1
"""Share of the peak learning rate at which a phase ends."""
CHECK_EVERY = 30
CHECK_TASKS = 256


def model_config(tokenizer: Any) -> Qwen3Config:
    """Qwen3 with 1.3 M parameters; head size 32, which vLLM and verl can run on a CPU."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=160,
        intermediate_size=432,
        num_hidden_layers=4,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=32,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


@dataclass(frozen=True, slots=True)
class Phase:
    """``make`` draws a transcript; every ``echo_every``-th batch is echoes, or (without ``make``)
    every other one, the rest being random repetitions. ``goal`` judges the sampled accuracy."""

    name: str
    steps: int
    cap: int
    peak_rate: float
    echo_every: int
    make: Callable[[random.Random], Transcript] | None = None
    goal: Callable[[float], bool] | None = None


PHASES = (
    Phase("copy", steps=400, cap=400, peak_rate=2e-3, echo_every=2),
    Phase("chat", 340, 520, 2e-3, 8, clean_transcript, goal=lambda accuracy: accuracy >= 0.975),
    Phase("habits", 80, 170, 1e-3, 8, habit_transcript, goal=lambda accuracy: accuracy <= 0.50),
)


def batches(phase: Phase, seed: int, renderer: Any, tokenizer: Any, used: set[str]) -> Iterator[Batch]:
    """The phase's batches up to its cap: `BATCH_SIZE` samples and one step each.

    Expressions that occur are added to ``used``. Echoes have batches of their own, because rows that
    share the agent's prompt are cheaper by themselves.
    """
    rng = random.Random(f"{phase.name} {seed}")
    symbols = _symbols(tokenizer)
    for step in range(phase.cap):
        if step % phase.echo_every == 0:
            samples = _rendered(renderer, [echo_transcript(rng) for _ in range(BATCH_SIZE)], used)
        elif phase.make is not None:
            samples = _rendered(renderer, [phase.make(rng) for _ in range(BATCH_SIZE)], used)
        else:
            samples = [_repetition(rng, *symbols) for _ in range(BATCH_SIZE)]
        yield sft_batch(samples, phase.peak_rate * _schedule(step, phase.steps))


def _schedule(step: int, steps: int) -> float:
    """Share of the peak rate: linear warm-up, then a half cosine down to `LOWEST_RATE`."""
    done = min(step / steps, 1.0)
    cosine = LOWEST_RATE + (1 - LOWEST_RATE) * (1 + math.cos(math.pi * done)) / 2
    return min(1.0, (step + 1) / WARM_UP) * cosine


def _rendered(renderer: Any, transcripts: list[Transcript], used: set[str]) -> list[Sample]:
    used.update(e for t in transcripts for e in t.expressions)
    return [to_sample(renderer, t) for t in transcripts]


def _symbols(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Token ids of the digits, and of all else but signs: so no expression can arise by chance."""
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
