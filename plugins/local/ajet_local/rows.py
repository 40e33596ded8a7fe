"""Samples as padded rows: micro-batches, and the logprobs of their trained tokens with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from ajet.learning.packing import temperatures
from ajet.types import Float32, Sample
from ajet_local.modeling import checkpointed_layers
from ajet_local.prefix import common_prefix


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """The trained tokens of a micro-batch, flattened row by row. All tensors are float32[N]."""

    new: torch.Tensor
    """Logprobs under the current weights, at each token's sampling temperature; with gradients."""
    old: torch.Tensor
    """Sampling logprobs; NaN where the token was not sampled."""
    advantages: torch.Tensor
    weights: torch.Tensor

    def place(self, index: int, samples: Sequence[Sample]) -> str:
        """Where trained token ``index`` lies, for error messages."""
        for sample in samples:
            positions = np.flatnonzero(sample.mask)
            if index < len(positions):
                return f"episode {sample.episode!r}, token {positions[index]} of {len(sample.token_ids)}"
            index -= len(positions)
        raise IndexError(index)


def has_credit(sample: Sample) -> bool:
    """Whether any trained token of the sample has weight · advantage ≠ 0; if none has, its gradient is 0."""
    return bool(np.any(sample.mask & (sample.weights * sample.advantages != 0)))


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    """Split into groups of at most ``max_tokens`` tokens, padding included; a longer sample is alone.

    Sorted by length (stable), so padding is small and the split is the same every time.
    """
    groups: list[list[Sample]] = []
    for sample in sorted(samples, key=lambda s: len(s.token_ids)):
        if groups and (len(groups[-1]) + 1) * len(sample.token_ids) <= max_tokens:
            groups[-1].append(sample)
        else:
            groups.append([sample])
    return groups


def padded_size(samples: Sequence[Sample]) -> tuple[int, int]:
    """How many tokens `trained_tokens` computes for these samples, and pairs of query and key."""
    longest = max(len(s.token_ids) for s in samples)
    first_trained = min(int(s.mask.argmax()) for s in samples)
    shared = common_prefix([s.token_ids for s in samples], first_trained - 1)
    own = len(samples) * (longest - shared)
    if shared:  # attention to a cache has a mask, whose pairs are computed all
        return shared + own, _causal_pairs(shared) + own * longest
    return own, len(samples) * _causal_pairs(longest)


def _causal_pairs(length: int) -> int:
    """Of a row without a mask. The kernel skips later keys in blocks, so it computes some of them."""
    return length * (length // 2 + min(length // 2, 300))


def trained_tokens(model: Any, samples: Sequence[Sample]) -> TrainedTokens:
    """Run ``model`` over ``samples``; gradients flow from ``new`` into its parameters.

    ``new[i] = log_softmax(logits / temperature)[token]`` in float32. The prefix that all rows share
    is computed once, with gradients, through the key-value cache. Logits exist only at positions
    that predict a trained token of some row.
    """
    device = model.device
    rows, columns = np.nonzero(_padded([s.mask for s in samples]))
    ids = _padded([s.token_ids for s in samples])
    shared = 0  # checkpointing layers have no cache
    if not checkpointed_layers(model):
        shared = common_prefix([s.token_ids for s in samples], int(columns.min()) - 1)
    cache = None
    if shared:
        prefix = torch.as_tensor(ids[:1, :shared], dtype=torch.long, device=device)
        cache = DynamicCache(config=model.config)
        model(input_ids=prefix, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache.batch_repeat_interleave(len(samples))
    wanted, index = np.unique(columns - 1 - shared, return_inverse=True)
    logits = model(
        input_ids=torch.as_tensor(ids[:, shared:], dtype=torch.long, device=device),
        past_key_values=cache,
        use_cache=cache is not None,
        logits_to_keep=torch.as_tensor(wanted, device=device),
    ).logits

    def flat(arrays: Sequence[Float32]) -> torch.Tensor:
        return torch.as_tensor(_padded(arrays)[rows, columns], device=device)

    temperature = flat([temperatures(s) for s in samples])
    chosen = logits[torch.as_tensor(rows, device=device), torch.as_tensor(index, device=device)]
    targets = torch.as_tensor(ids[rows, columns], dtype=torch.long, device=device)
    return TrainedTokens(
        new=chosen_logprobs(chosen, temperature, targets),
        old=flat([s.logprobs for s in samples]),
        advantages=flat([s.advantages for s in samples]),
        weights=flat([s.weights for s in samples]),
    )


def chosen_logprobs(logits: torch.Tensor, temperatures: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """``log_softmax(logits / temperature)[target]`` of N predictions (``logits [N, V]``), in float32 at least."""
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperatures[:, None]
    return torch.log_softmax(exact, dim=-1).gather(1, targets[:, None])[:, 0]


def _padded(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """[B, max T], padded with zeros on the right; causal attention keeps padding out of what counts."""
    out = np.zeros((len(arrays), max(map(len, arrays))), dtype=arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out
