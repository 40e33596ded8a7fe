"""The trained tokens of a micro-batch in the form that losses take, from the logits of rows or of a tree."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from ajet.backbones import Float32, LossTokens, Need, Sample, pair_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTokens(LossTokens):
    """The N trained tokens of some samples, concatenated sample by sample. All tensors are [N]."""

    weights: torch.Tensor

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        logits: torch.Tensor,
        needs: Collection[Need] = (),
        values: torch.Tensor | None = None,
    ) -> Self:
        """The trained tokens of ``samples``, where ``logits`` (float[N, V]) predict them, and a critic ``values`` (float32[N]).
        Gradients flow into ``logits`` from ``new`` and ``entropy``.

        ``new[i] = log_softmax(logits / temperature)[token]`` in float32, or in the type of the logits if that is more
        precise. Optional tensors that are not in ``needs`` are None. If the samples have no ``before``, it is ``new``: the
        weights have not changed yet.
        """

        def flat(arrays: Sequence[np.ndarray]) -> torch.Tensor:
            parts = [array[s.mask] for array, s in zip(arrays, samples, strict=True)]
            return torch.as_tensor(np.concatenate(parts), device=logits.device)

        def optional(arrays: Sequence[Float32 | None]) -> torch.Tensor | None:
            given = [array for array in arrays if array is not None]
            return flat(given) if given else None

        temperatures = flat([_temperatures(s) for s in samples])
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperatures[:, None]
        logprobs = torch.log_softmax(exact, dim=-1)
        new = logprobs.gather(1, flat([s.token_ids for s in samples]).long()[:, None])[:, 0]
        before = optional([s.before for s in samples]) if "before" in needs else None
        return cls(
            new=new,
            calls=torch.as_tensor(_calls(samples), device=logits.device),
            old=flat([s.logprobs for s in samples]),
            advantages=flat([s.advantages for s in samples]),
            weights=flat([s.weights for s in samples]),
            before=new.detach() if before is None and "before" in needs else before,
            reference=optional([s.reference for s in samples]) if "reference" in needs else None,
            entropy=-(logprobs.exp() * logprobs).sum(-1) if "entropy" in needs else None,
            pairs=torch.as_tensor(pair_numbers(samples), device=logits.device) if "pairs" in needs else None,
            values=values,
            old_values=optional([s.values for s in samples]) if "values" in needs else None,
            returns=optional([s.returns for s in samples]) if "values" in needs else None,
        )

    def describe(self, index: int, samples: Sequence[Sample]) -> str:
        """The episode and position of trained token ``index``, for error messages. Raises IndexError."""
        for sample in samples:
            positions = np.flatnonzero(sample.mask)
            if index < len(positions):
                return f"episode {sample.episode!r}, token {positions[index]} of {len(sample.token_ids)}"
            index -= len(positions)
        raise IndexError(index)


def _temperatures(sample: Sample) -> Float32:
    """float32[T]: the temperature of each token's span; 1 outside spans and in greedy spans."""
    temperatures = np.ones(len(sample.token_ids), dtype=np.float32)
    for span in sample.spans:
        temperatures[span.start : span.end] = span.temperature or 1.0
    return temperatures


def _calls(samples: Sequence[Sample]) -> np.ndarray:
    """int64[N]: the call of each trained token. Calls are numbered from 0 in the order of the tokens."""
    keys = []
    first = 0
    for sample in samples:
        key = np.full(len(sample.token_ids), first, dtype=np.int64)
        for number, span in enumerate(sample.spans, first + 1):
            key[span.start : span.end] = number
        keys.append(key[sample.mask])
        first += len(sample.spans) + 1
    key = np.concatenate(keys)
    return np.cumsum(np.diff(key, prepend=key[:1]) != 0)
