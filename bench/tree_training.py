"""Compares training on token trees with training on rows, on call logs: CPU time and exactness.

    python bench/tree_training.py

Each log is trained on in three ways: one row per call, linear rows (timelines) in micro-batches, and the trees that the
local backbone makes of the timelines. Speed-ups are ratios of CPU time, forward and backward, on one thread; each time is
the minimum of several alternating rounds. Also printed: the ratios of tokens, and the differences of loss and gradient
from one row per call. `--exact` compares in float64. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from call_logs import SCENARIOS, VOCABULARY, generations, make_log, recorded
from shape import SHAPE
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from ajet.learning.batch import timeline_sample
from ajet.tracker.timelines import Timeline, timelines
from ajet.types import Float32, Sample
from ajet_local.plan import plan
from ajet_local.rows import micro_batches, trained_tokens
from ajet_local.tokens import TrainedTokens
from ajet_local.trees import enable_trees
from ajet_trees.packing import pack

ARCHITECTURES = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}
SCALES = {"werewolf": 0.08}
SCALE = 0.25
ROW_TOKENS = 2048
"""Tokens in a micro-batch of rows."""
TREE_TOKENS = 16384
"""Tokens in a micro-batch of trees: the backbone's default."""
ROUNDS = 3

Passes = Callable[[], Iterator[TrainedTokens]]
"""Makes the forward passes, one per micro-batch."""


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and return the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", default=",".join(SCENARIOS), help="names of logs, separated by commas")
    parser.add_argument("--scale", type=float, help="factor of all text lengths")
    parser.add_argument("--model", choices=ARCHITECTURES, default="qwen3")
    parser.add_argument("--exact", action="store_true", help="compare in float64, once")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = make_model(options.model, torch.float64 if options.exact else torch.float32)
    print(f"{options.model}, {sum(p.numel() for p in model.parameters()):,} parameters, {model.dtype}")
    print(
        f"{'log':10}{'tokens':>8}{'tree':>10}{'share':>7}{'tokens':>9}{'linear':>10}{'loss':>10}{'gradient':>10}{'linear':>10}"
    )
    found = {}
    for name in options.logs.split(","):
        ways = make_ways(model, name, options.seed, options.scale or SCALES.get(name, SCALE))
        found[name] = compare(model, name, ways, 1 if options.exact else ROUNDS)
    print(json.dumps({"tree": found}))
    return {"tree": found}


def make_model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model with 1.4 M random parameters, of one of `ARCHITECTURES`."""
    config = ARCHITECTURES[name](
        vocab_size=VOCABULARY,
        **SHAPE,
        max_position_embeddings=65536,
        initializer_range=0.05,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    if dtype == torch.float64:
        for norm in (m for m in model.modules() if type(m).__name__.endswith("RMSNorm")):
            # transformers always computes norms in float32
            norm.forward = lambda x, norm=norm: torch.nn.functional.rms_norm(
                x, norm.weight.shape, norm.weight, norm.variance_epsilon
            )
    reason = enable_trees(model)
    assert not reason, reason
    return model


@dataclass(frozen=True, slots=True)
class Ways:
    """The three ways of training on one log."""

    naive: Passes
    linear: Passes
    tree: Passes
    token_ratio: float
    linear_token_ratio: float


def make_ways(model: Any, name: str, seed: int, scale: float) -> Ways:
    """The ways of training on a log."""
    single, merged = make_samples(name, seed, scale)
    tokens = sum(len(s.token_ids) for s in single)

    def planned() -> Iterator[TrainedTokens]:
        return (micro_batch.tokens(model) for micro_batch in plan(model, merged, TREE_TOKENS))

    return Ways(
        naive=lambda: (trained_tokens(model, [s]) for s in single),
        linear=lambda: (trained_tokens(model, group) for group in micro_batches(merged, ROW_TOKENS)),
        tree=planned,
        token_ratio=tokens / len(pack(merged).token_ids),
        linear_token_ratio=tokens / sum(len(s.token_ids) for s in merged),
    )


def make_samples(
    name: str, seed: int, scale: float, calls: int | None = None
) -> tuple[list[Sample], list[Sample]]:
    """One sample per call, and the timelines, of a log's first ``calls``. Each call has a random advantage."""
    log = make_log(SCENARIOS[name], seed, scale)[:calls]
    made = recorded(log, generations(log)).trained_calls
    advantages = np.random.default_rng(seed).normal(size=len(made)).astype(np.float32)
    single = [credited(line, advantages) for call in made for line in timelines([call])]
    return single, [credited(line, advantages) for line in timelines(made)]


def credited(line: Timeline, advantages: Float32) -> Sample:
    """A timeline as a sample; each call's tokens have the call's advantage."""
    ones = [1.0] * len(line.spans)
    sample = timeline_sample(line, ones, ones)
    for span in line.spans:
        sample.advantages[span.start : span.end] = advantages[span.call]
    return sample


def compare(model: Any, name: str, ways: Ways, rounds: int) -> dict[str, float]:
    """The figures of a log. Naive rows take only one round, because they take longest."""
    naive, exact_loss, exact = measured(model, ways.naive)
    linear, _, linear_gradient = measured(model, ways.linear)
    tree, loss, gradient = measured(model, ways.tree)
    for _ in range(rounds - 1):
        linear = min(linear, measured(model, ways.linear)[0])
        tree = min(tree, measured(model, ways.tree)[0])
    speedup = naive / tree
    print(
        f"{name:10}{ways.token_ratio:8.2f}{speedup:10.2f}{speedup / ways.token_ratio:7.2f}"
        f"{ways.linear_token_ratio:9.2f}{naive / linear:10.2f}{abs(loss / exact_loss - 1):10.1e}"
        f"{difference(gradient, exact):10.1e}{difference(linear_gradient, exact):10.1e}",
        flush=True,
    )
    return {
        "speedup": round(speedup, 2),
        "token_ratio": round(ways.token_ratio, 2),
        "linear_speedup": round(naive / linear, 2),
        "grad_rel_diff": float(f"{difference(gradient, exact):.2g}"),
    }


def measured(model: Any, passes: Passes) -> tuple[float, float, torch.Tensor]:
    """(CPU seconds, loss, float64 gradient) of the forward and backward passes."""
    model.zero_grad(set_to_none=True)
    loss = 0.0
    start = time.process_time()
    for tokens in passes():
        total = (tokens.weights * -tokens.new * tokens.advantages).sum()
        total.backward()
        loss += total.item()
    seconds = time.process_time() - start
    return seconds, loss, torch.cat([p.grad.flatten().double() for p in model.parameters()])


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The relative difference, in the Euclidean norm."""
    return float((found - expected).norm() / expected.norm())


if __name__ == "__main__":
    main()
