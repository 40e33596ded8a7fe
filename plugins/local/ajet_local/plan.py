"""Divides a mini-batch into micro-batches of trees or of rows, whichever is estimated to cost less."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ajet.interfaces.backbone import Need, Sample
from ajet.interfaces.engine import Float32
from ajet_local.critic import ValueHead
from ajet_local.rows import micro_batches, padded_size, shares_prefixes, trained_tokens
from ajet_local.tokens import TrainedTokens
from ajet_local.trees import has_trees, tree_tokens
from ajet_trees.cost import PASS_BLOCKS, Flops
from ajet_trees.models import ComputedTree
from ajet_trees.packing import pack, split

CPU_TOKENS = 2048
"""Target tokens of a forward pass on a CPU for a small model. More tokens overflow its caches, which is slower, and take memory:
training 1.4 M parameters with rows of 16,384 tokens at a time took 4 GB."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples of one forward pass, as their ``tree`` or (None) as padded rows."""

    samples: Sequence[Sample]
    tree: ComputedTree | None = None

    def tokens(
        self, model: Any, needs: Collection[Need] = (), head: ValueHead | None = None
    ) -> TrainedTokens:
        """Their trained tokens, sample by sample, with gradients into the parameters of the model and of ``head``."""
        if self.tree is None:
            return trained_tokens(model, self.samples, needs, head)
        return tree_tokens(model, self.tree, needs, head)

    def hinted(self) -> MicroBatch:
        """The same samples, each with its hint in the place of its first tokens; the trained tokens are the same."""
        samples = [_hinted(sample) for sample in self.samples]
        return MicroBatch(samples, self.tree and ComputedTree(pack(samples)))


def _hinted(sample: Sample) -> Sample:
    hint = sample.hint
    if hint is None:
        return sample
    longer = len(hint.token_ids) - hint.replaces
    arrays: dict[str, Any] = {
        name: np.concatenate([np.zeros(len(hint.token_ids), array.dtype), array[hint.replaces :]])
        for name in ("mask", "logprobs", "advantages", "weights")
        for array in [getattr(sample, name)]
    }
    return replace(
        sample,
        token_ids=np.concatenate([hint.token_ids, sample.token_ids[hint.replaces :]]),
        spans=tuple(replace(s, start=s.start + longer, end=s.end + longer) for s in sample.spans),
        reference=None,
        before=None,
        **arrays,
    )


def plan(model: Any, samples: Sequence[Sample], max_tokens: int) -> list[MicroBatch]:
    """Micro-batches of at most ``max_tokens`` tokens, padding included; a longer sample or pair is alone.

    Samples and pairs are never divided, so all tokens of a call or pair are in one micro-batch. Trees need a model that `enable_trees`
    has prepared.
    """
    target = CPU_TOKENS if model.device.type == "cpu" else max_tokens
    rows = [MicroBatch(group) for group in micro_batches(samples, min(max_tokens, target))]
    if not has_trees(model):
        return rows
    trees = [MicroBatch(group, ComputedTree(pack(group))) for group in split(samples, max_tokens, target)]
    cost = _PassCost(model)
    return trees if sum(map(cost, trees)) <= sum(map(cost, rows)) else rows


def score(model: Any, samples: Sequence[Sample], max_tokens: int) -> list[Float32]:
    """For each sample float32[T]: the logprobs of its trained tokens as in `TrainedTokens`, NaN for other tokens."""
    return _each(model, samples, max_tokens, lambda micro_batch: micro_batch.tokens(model).new)


def values(model: Any, head: ValueHead, samples: Sequence[Sample], max_tokens: int) -> list[Float32]:
    """For each sample float32[T]: the critic's values of its trained tokens, NaN for other tokens."""
    return _each(model, samples, max_tokens, lambda micro_batch: micro_batch.tokens(model, head=head).values)


@torch.no_grad()
def _each(
    model: Any,
    samples: Sequence[Sample],
    max_tokens: int,
    compute: Callable[[MicroBatch], torch.Tensor],
) -> list[Float32]:
    """For each sample float32[T]: what ``compute`` finds for its trained tokens, NaN for other tokens."""
    by_sample: dict[int, Float32] = {}
    for micro_batch in plan(model, samples, max_tokens):
        flat = compute(micro_batch).cpu().numpy()
        ends = np.cumsum([sample.mask.sum() for sample in micro_batch.samples])
        for sample, numbers in zip(micro_batch.samples, np.split(flat, ends[:-1]), strict=True):
            by_sample[id(sample)] = np.full(len(sample.token_ids), np.nan, dtype=np.float32)
            by_sample[id(sample)][sample.mask] = numbers
    return [by_sample[id(sample)] for sample in samples]


class _PassCost:
    """Estimated floating-point operations of a forward pass; the backward pass is proportional to it."""

    def __init__(self, model: Any) -> None:
        self.sharing = shares_prefixes(model)
        self.flops = Flops.of(model)

    def __call__(self, micro_batch: MicroBatch) -> float:
        if micro_batch.tree is None:
            tokens, pairs = padded_size(micro_batch.samples, sharing=self.sharing)
            return self.flops.token * tokens + self.flops.pair * pairs
        work = micro_batch.tree.layout.work
        tokens = len(micro_batch.tree.token_ids)
        blocks = work.blocks + PASS_BLOCKS
        return self.flops.token * tokens + self.flops.pair * work.pairs + self.flops.block * blocks
