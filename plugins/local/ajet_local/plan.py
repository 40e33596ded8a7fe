"""A mini-batch as micro-batches: as trees or as rows, whichever is estimated to cost less."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ajet.learning.packing import pack, split
from ajet.types import Float32, Need, Sample
from ajet_local.rows import micro_batches, padded_size, shares_prefixes, trained_tokens
from ajet_local.tokens import TrainedTokens
from ajet_local.trees import ComputedTree, has_trees, tree_tokens

ENOUGH = 2048
"""Tokens of a forward pass after which more of them only make a CPU slower, as its caches overflow, and
take memory: 1.4 M parameters trained on rows of 16,384 tokens at a time took 4 GB."""
BLOCK_FLOPS = 3e6
"""What a block of attention costs besides its matrix products, in the work that a core does meanwhile."""
PASS_BLOCKS = 2
"""A forward pass over a tree costs so many blocks more than one over rows."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples that go through the model together: as their ``tree``, or as padded rows."""

    samples: Sequence[Sample]
    tree: ComputedTree | None = None

    def tokens(self, model: Any, needs: Collection[Need] = ()) -> TrainedTokens:
        """Their trained tokens, sample by sample, with gradients into the model's parameters."""
        if self.tree is None:
            return trained_tokens(model, self.samples, needs)
        return tree_tokens(model, self.tree, needs)


def plan(model: Any, samples: Sequence[Sample], max_tokens: int) -> list[MicroBatch]:
    """Micro-batches of at most ``max_tokens`` tokens, padding included; a longer sample is alone.

    A sample is never divided, so that all tokens of a call are in one micro-batch. Trees are considered for
    models that `enable_trees` has prepared.
    """
    enough = ENOUGH if model.device.type == "cpu" else max_tokens
    rows = [MicroBatch(group) for group in micro_batches(samples, min(max_tokens, enough))]
    if not has_trees(model):
        return rows
    trees = [MicroBatch(group, ComputedTree(pack(group))) for group in split(samples, max_tokens, enough)]
    cost = _Cost(model)
    return trees if sum(map(cost, trees)) <= sum(map(cost, rows)) else rows


@torch.no_grad()
def score(model: Any, samples: Sequence[Sample], max_tokens: int) -> list[Float32]:
    """For each sample float32[T]: the logprobs of its trained tokens as in `TrainedTokens`, else NaN."""
    found: dict[int, Float32] = {}
    for micro_batch in plan(model, samples, max_tokens):
        flat = micro_batch.tokens(model).new.cpu().numpy()
        ends = np.cumsum([sample.mask.sum() for sample in micro_batch.samples])
        for sample, logprobs in zip(micro_batch.samples, np.split(flat, ends[:-1]), strict=True):
            found[id(sample)] = np.full(len(sample.token_ids), np.nan, dtype=np.float32)
            found[id(sample)][sample.mask] = logprobs
    return [found[id(sample)] for sample in samples]


class _Cost:
    """Estimates in floating-point operations of a forward pass; the backward pass goes along with it."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        embedded = model.get_input_embeddings().weight.numel()
        self.sharing = shares_prefixes(model)
        self.layers = config.num_hidden_layers
        self.token = 2 * max(sum(p.numel() for p in model.parameters()) - embedded, embedded)
        self.pair = 4 * self.layers * config.num_attention_heads * size

    def __call__(self, micro_batch: MicroBatch) -> float:
        if micro_batch.tree is None:
            tokens, pairs = padded_size(micro_batch.samples, sharing=self.sharing)
            return self.token * tokens + self.pair * pairs
        work = micro_batch.tree.layout.work
        blocks = BLOCK_FLOPS * self.layers * (work.blocks + PASS_BLOCKS)
        return self.token * len(micro_batch.tree.token_ids) + self.pair * work.pairs + blocks
