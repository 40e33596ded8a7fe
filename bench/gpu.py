"""The local backbone on a CUDA device: tokens per second and memory, trees compared with rows, share of the peak.

    make bench-gpu

The model has the shape of Qwen3-0.6B and random weights. Training is forward and backward in bfloat16 with float32
weights, on groups of members that share a prompt: the same samples alternately as rows and as a tree. The share of the
peak is relative to one large matrix product; it counts 6 operations per weight and token, and none for attention.
Generation is the engine's, with its prompt cache. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from ajet.types import GenerateRequest, Sample, Sampling, Span
from ajet_local.engine import LocalEngine
from ajet_local.plan import MicroBatch
from ajet_local.rows import micro_batches
from ajet_local.trees import enable_trees
from ajet_trees.models import ComputedTree
from ajet_trees.packing import pack

ROW_TOKENS = 16384
"""Tokens in a micro-batch of rows: the backbone's default."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is computed."""

    groups: int = 2
    members: int = 16
    prompt: int = 1024
    answer: int = 256
    rounds: int = 5
    completions: int = 64
    """Of each group's prompt, in generation."""


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench/gpu.py measures a CUDA device, but torch finds none here.")
    device = torch.device("cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    with device:
        model = AutoModelForCausalLM.from_config(qwen3_06b(), dtype=torch.float32).eval()
    peak = matmul_flops(device)
    print(f"a matrix product of 8192³ in bfloat16: {peak / 1e12:.0f} TFLOP/s")
    figures = training(model, Sizes(), peak)
    figures |= asyncio.run(generation(model.to(torch.bfloat16), Sizes()))
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


def qwen3_06b() -> Qwen3Config:
    """The shape of Qwen/Qwen3-0.6B."""
    return Qwen3Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def make_samples(vocabulary: int, sizes: Sizes) -> list[list[Sample]]:
    """Groups of members, each with a different answer to the group's prompt."""
    rng = np.random.default_rng(0)
    groups = []
    for _ in range(sizes.groups):
        prompt = rng.integers(0, vocabulary, sizes.prompt)
        answers = rng.integers(0, vocabulary, (sizes.members, sizes.answer))
        groups.append([_sample([*prompt, *answer], sizes.prompt) for answer in answers])
    return groups


def _sample(ids: Sequence[int], prompt: int) -> Sample:
    on = (np.arange(len(ids)) >= prompt).astype(np.float32)
    spans = (Span(prompt, len(ids), 0, "agent", "policy"),)
    return Sample(np.array(ids, np.int32), on > 0, on, on, on / on.sum(), spans)


def training(model: Any, sizes: Sizes, peak: float) -> dict[str, float]:
    """Train on rows and trees alternately, `Sizes.rounds` times; a first round is not counted. ``peak``: operations that the
    device does in a second."""
    groups = make_samples(model.config.vocab_size, sizes)
    reason = enable_trees(model)
    assert not reason, reason
    rows = [MicroBatch(part) for group in groups for part in micro_batches(group, ROW_TOKENS)]
    trees = [MicroBatch(group, ComputedTree(pack(group))) for group in groups]
    given = sum(len(s.token_ids) for group in groups for s in group)
    unique = sum(len(tree.tree.token_ids) for tree in trees if tree.tree)
    took: dict[str, list[float]] = {"rows": [], "tree": []}
    memory: dict[str, float] = {}
    for _ in range(sizes.rounds + 1):
        for name, parts in (("rows", rows), ("tree", trees)):
            took[name].append(_seconds(model.device, lambda parts=parts: _step(model, parts)))
            memory[name] = _peak_memory(model.device)
    seconds = {name: statistics.median(times[1:]) for name, times in took.items()}
    weights = sum(p.numel() for p in model.parameters())
    share = 6 * weights * unique / seconds["tree"] / peak
    for name, tokens in (("rows", given), ("tree", unique)):
        print(
            f"{name}: {given / seconds[name]:10,.0f} tokens of samples a second, {tokens / seconds[name]:10,.0f} computed; "
            f"peak {memory[name] / 2**30:.1f} GiB"
        )
    print(f"tree: {seconds['rows'] / seconds['tree']:.2f} times as fast, {share:.0%} of the peak")
    return {
        "train_tokens_per_second": given / seconds["tree"],
        "tree_speedup": seconds["rows"] / seconds["tree"],
        "token_ratio": given / unique,
        "tree_memory_ratio": memory["tree"] / max(memory["rows"], 1),
        "peak_gib": memory["tree"] / 2**30,
        "share_of_peak": share,
    }


def _step(model: Any, parts: Sequence[MicroBatch]) -> None:
    model.zero_grad(set_to_none=True)
    for part in parts:
        with torch.autocast(model.device.type, dtype=torch.bfloat16):
            tokens = part.tokens(model)
        (tokens.weights * -tokens.new * tokens.advantages).sum().backward()


async def generation(model: Any, sizes: Sizes) -> dict[str, float]:
    """Tokens per second for `Sizes.groups` prompts with `Sizes.completions` each."""
    at_once = sizes.groups * sizes.completions
    engine = LocalEngine(model, None, max_batch=at_once)
    await engine.start()
    rng = np.random.default_rng(1)
    vocabulary = model.config.vocab_size
    prompts = [rng.integers(0, vocabulary, sizes.prompt).astype(np.int32) for _ in range(sizes.groups)]
    rates = []
    try:
        for version in range(3):
            engine.version = version  # drops the cache
            started = time.perf_counter()
            requests = [
                GenerateRequest(prompt, Sampling(max_tokens=sizes.answer, seed=n))
                for prompt in prompts
                for n in range(sizes.completions)
            ]
            got = await asyncio.gather(*(engine.generate(r) for r in requests))
            rates.append(sum(len(g.token_ids) for g in got) / (time.perf_counter() - started))
    finally:
        await engine.close()
    print(f"generation: {max(rates):,.0f} tokens a second, {at_once} at once")
    return {"generated_tokens_per_second": max(rates)}


def matmul_flops(device: torch.device, size: int = 8192, dtype: torch.dtype = torch.bfloat16) -> float:
    """Operations per second of a product of two square matrices; the best of ten."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / min(_seconds(device, lambda: a @ b) for _ in range(10))


def _seconds(device: torch.device, work: Callable[[], Any]) -> float:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _peak_memory(device: torch.device) -> float:
    return float(torch.cuda.max_memory_allocated()) if device.type == "cuda" else 0.0


if __name__ == "__main__":
    main()
