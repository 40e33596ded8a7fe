"""Compares the local engine's speed with Hugging Face `generate`, and counts the tokens that it computes.

    python bench/generation.py

Two workloads for a model of 1.41 million parameters on one thread. Groups: 8 prompts × 8 members, 32 + 32 tokens, with
new weights in each round; the two sides alternate, measured in CPU seconds. Conversations: 64 of 10 turns that arrive at
random times; a hook on the embedding counts the computed tokens, which are compared with the number of tokens in the
radix tree of all sequences. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from shape import SHAPE
from transformers import AutoModelForCausalLM, Qwen3Config

from ajet.types import GenerateRequest, Sampling
from ajet_local.engine import LocalEngine

ROUNDS = 25
GROUPS, MEMBERS, PROMPT, COMPLETION = 8, 8, 32, 32
CONVERSATIONS, TURNS = 64, 10
VOCABULARY = 1068


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and return the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args(arguments).rounds
    torch.set_num_threads(1)
    model = make_model()
    work = Requests(GROUPS, MEMBERS, PROMPT, COMPLETION)
    ours, theirs = asyncio.run(alternate(model, work, rounds))
    show(work, ours, theirs)
    computed, unique, passes = asyncio.run(conversations(model))
    print(
        f"{CONVERSATIONS} conversations: {computed:,} tokens computed in {passes:,} passes, {unique:,} unique"
    )
    figures = {"generation_ratio_hf": ratio(ours, theirs), "prefilled_ratio_unique": computed / unique}
    figures = {name: round(value, 4) for name, value in figures.items()}
    print(json.dumps(figures))
    return figures


def make_model() -> Any:
    """Qwen3 in the starter's shape, with random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        **SHAPE,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@dataclass(frozen=True, slots=True)
class Requests:
    """``groups`` random prompts of ``prompt`` tokens, each for ``members`` answers of ``completion`` tokens, all at once."""

    groups: int
    members: int
    prompt: int
    completion: int

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return self.groups * self.members * self.completion


async def alternate(model: Any, work: Requests, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each round, of CPU and of wall clock, float64[rounds, 2]: ours, and those of `generate`, in which the model must not
    end an answer by itself. The first round is not counted."""
    engine = LocalEngine(model, None, max_batch=max(64, work.groups * work.members))
    await engine.start()
    vocabulary = model.config.vocab_size
    ours, theirs = [], []
    for number in range(rounds + 1):
        prompts = np.random.default_rng(number).integers(
            0, vocabulary, (work.groups, work.prompt), dtype=np.int32
        )
        requests = [
            GenerateRequest(prompt, Sampling(max_tokens=work.completion, seed=number * work.members + member))
            for prompt in prompts
            for member in range(work.members)
        ]
        started = clocks()
        answers = await asyncio.gather(*map(engine.generate, requests))
        ours.append(clocks() - started)
        engine.version += 1
        ids = torch.from_numpy(prompts.repeat(work.members, axis=0)).long()
        started = clocks()
        generated = generate(model, ids, work.completion)
        theirs.append(clocks() - started)
        assert all(len(answer.token_ids) == work.completion for answer in answers)
        assert generated.shape == (work.groups * work.members, work.prompt + work.completion)
    await engine.close()
    return np.array(ours[1:]), np.array(theirs[1:])


def clocks() -> np.ndarray:
    """float64[2]: the seconds of this process on CPUs, and those of wall clock."""
    return np.array([time.process_time(), time.perf_counter()])


def show(work: Requests, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Print the speed of both sides."""
    for name, seconds in (("ajet", ours), ("Hugging Face generate", theirs)):
        cpu, wall = work.tokens / np.median(seconds, axis=0)
        best = work.tokens / seconds[:, 0].min()
        print(
            f"{name:22} {cpu:8,.0f} tokens per CPU second (best {best:,.0f}), {wall:,.0f} per second",
            flush=True,
        )


def ratio(ours: np.ndarray, theirs: np.ndarray) -> float:
    """How many times as fast we are, in CPU time. Rounds are compared one by one, because the machine's other load changes between
    them."""
    return float(np.median(theirs[:, 0] / ours[:, 0]))


@torch.no_grad()
def generate(model: Any, ids: torch.Tensor, tokens: int) -> torch.Tensor:
    """Hugging Face's plain sampling of so many tokens: int64[B, T]."""
    sampled: torch.Tensor = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
    )
    return sampled


async def conversations(model: Any) -> tuple[int, int, int]:
    """(tokens computed, tokens in the radix tree of all sequences, forward passes)."""
    counts: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(
        lambda _, args, out: counts.append(args[0].numel())
    )
    engine = LocalEngine(model, None)
    await engine.start()
    sequences = await asyncio.gather(*(converse(engine, number) for number in range(CONVERSATIONS)))
    await engine.close()
    hook.remove()
    return sum(counts), unique_tokens(sequences), len(counts)


async def converse(engine: LocalEngine, number: int) -> Sequence[int]:
    """Run one conversation; all have the same system prompt. Returns its tokens."""
    rng = random.Random(number)
    ids = [i % VOCABULARY for i in range(100)]
    for _ in range(TURNS):
        ids += [rng.randrange(VOCABULARY) for _ in range(rng.randint(4, 24))]
        await asyncio.sleep(rng.expovariate(10.0))
        sampling = Sampling(max_tokens=rng.randint(4, 32), seed=rng.randrange(1 << 30))
        answer = await engine.generate(GenerateRequest(np.array(ids, dtype=np.int32), sampling))
        ids += answer.token_ids.tolist()
    return ids


def unique_tokens(sequences: Iterable[Sequence[int]]) -> int:
    """The number of distinct prefixes, which is the size of the radix tree."""
    return len({hash(tuple(sequence[: n + 1])) for sequence in sequences for n in range(len(sequence))})


if __name__ == "__main__":
    main()
