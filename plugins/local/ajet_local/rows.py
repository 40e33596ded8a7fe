"""Samples as padded rows: micro-batches, and the logprobs of their trained tokens with gradients."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from ajet.types import Float32, LossTokens, Need, Sample
from ajet_local.prefix import common_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTokens(LossTokens):
    """The trained tokens of a micro-batch, flattened row by row. All tensors are [N]."""

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


def trained_tokens(model: Any, samples: Sequence[Sample], needs: Collection[Need] = ()) -> TrainedTokens:
    """Run ``model`` over ``samples``; gradients flow from ``new`` and ``entropy`` into its parameters.

    ``new[i] = log_softmax(logits / temperature)[token]`` in float32. Of the optional arrays those in
    ``needs`` are there; where samples do not bring ``before``, these still are the weights before. The prefix that all rows share
    is computed once, with gradients, through the key-value cache. Logits exist only at positions
    that predict a trained token of some row.
    """
    device = model.device
    rows, columns = np.nonzero(_padded([s.mask for s in samples]))
    ids = _padded([s.token_ids for s in samples])
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

    def flat(arrays: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.as_tensor(_padded(arrays)[rows, columns], device=device)

    def brought(arrays: Sequence[Float32 | None]) -> torch.Tensor | None:
        there = [array for array in arrays if array is not None]
        return flat(there) if there else None

    temperature = flat([_temperatures(s) for s in samples])
    chosen = logits[torch.as_tensor(rows, device=device), torch.as_tensor(index, device=device)]
    logprobs = torch.log_softmax(chosen.float() / temperature[:, None], dim=-1)
    targets = torch.as_tensor(ids[rows, columns], dtype=torch.long, device=device)
    new = logprobs.gather(1, targets[:, None])[:, 0]
    before = brought([s.before for s in samples])
    return TrainedTokens(
        new=new,
        calls=torch.as_tensor(_calls(samples, rows, columns), device=device),
        old=flat([s.logprobs for s in samples]),
        advantages=flat([s.advantages for s in samples]),
        weights=flat([s.weights for s in samples]),
        before=(new.detach() if before is None else before) if "before" in needs else None,
        reference=brought([s.reference for s in samples]) if "reference" in needs else None,
        entropy=-(logprobs.exp() * logprobs).sum(-1) if "entropy" in needs else None,
    )


def score(model: Any, samples: Sequence[Sample], max_tokens: int) -> list[Float32]:
    """For each sample float32[T]: the logprobs of its trained tokens as in `trained_tokens`, else NaN."""
    found: dict[int, Float32] = {}
    with torch.no_grad():
        for rows in micro_batches(samples, max_tokens):
            flat = trained_tokens(model, rows).new.cpu().numpy()
            ends = np.cumsum([sample.mask.sum() for sample in rows])
            for sample, logprobs in zip(rows, np.split(flat, ends[:-1]), strict=True):
                found[id(sample)] = np.full(len(sample.token_ids), np.nan, dtype=np.float32)
                found[id(sample)][sample.mask] = logprobs
    return [found[id(sample)] for sample in samples]


def _temperatures(sample: Sample) -> Float32:
    """float32[T]: the temperature of each token's span; 1 outside of spans and in greedy ones."""
    temperatures = np.ones(len(sample.token_ids), dtype=np.float32)
    for span in sample.spans:
        temperatures[span.start : span.end] = span.temperature or 1.0
    return temperatures


def _calls(samples: Sequence[Sample], rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """int64[N]: the calls of the trained tokens, numbered from 0 in their order."""
    calls = [np.zeros(len(s.token_ids), dtype=np.int64) for s in samples]
    for sample, numbers in zip(samples, calls, strict=True):
        for number, span in enumerate(sample.spans, 1):
            numbers[span.start : span.end] = number
    key = rows * (1 + max(len(s.spans) for s in samples)) + _padded(calls)[rows, columns]
    return np.cumsum(np.diff(key, prepend=key[:1]) != 0)


def _padded(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """[B, max T], padded with zeros on the right; causal attention keeps padding out of what counts."""
    out = np.zeros((len(arrays), max(map(len, arrays))), dtype=arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out
