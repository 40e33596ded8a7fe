"""The recipe: the model's shape, and the phases of supervised training that make it.

1. *copy*: repeated random tokens and echoed expressions, so that induction heads form
   (Olsson et al., arXiv:2209.11895). Without good copying, later failures are wrong digits.
2. *chat*: the agent's transcripts, which have two terms only, with some echoes of up to four.

Each phase ends when its goal is met on fresh problems, or at its cap of steps. It is an iterator of
batches for `LocalTrainer.update`, the same trainer as everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import Qwen3Config

from ajet.types import Batch, Sample

CONTEXT_LENGTH = 1024
BATCH_SIZE = 32
BETAS = (0.9, 0.98)


def model_config(tokenizer: Any) -> Qwen3Config:
    """Qwen3 with 1.3 M parameters; head size 32 so that vLLM and verl can run it on a CPU."""
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


def supervised_loss(xp: Any, new: Any, old: Any, advantages: Any) -> Any:
    """Negative log-likelihood; a sample's advantages of 1 leave it as it is."""
    return -new * advantages


@dataclass(frozen=True, slots=True)
class Phase:
    """``steps`` is the cap. Every ``check_every`` steps after ``at_least``, ``goal`` decides whether
    the phase is done, from the accuracy by number of terms."""

    name: str
    steps: int
    peak_rate: float
    make: Callable[[random.Random, Any, Any], Sample]
    at_least: int
    check_every: int
    goal: Callable[[dict[str, float]], bool]


def batches(phase: Phase, seed: int, renderer: Any, tokenizer: Any, used: set[str]) -> Iterator[Batch]:
    """The phase's batches, `BATCH_SIZE` samples and one step each; warm-up, then a falling rate.

    Expressions that occur are added to ``used``.
    """
    rng = random.Random(f"{phase.name} {seed}")
    for step in range(phase.steps):
        samples = [phase.make(rng, renderer, used) for _ in range(BATCH_SIZE)]
        total = sum(int(s.mask.sum()) for s in samples)
        weighted = [replace(s, weights=s.weights / np.float32(total)) for s in samples]
        yield Batch(
            weighted, supervised_loss, [range(BATCH_SIZE)], phase.peak_rate * _schedule(step, phase.steps)
        )
