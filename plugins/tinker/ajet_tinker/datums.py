"""Samples in the form that Tinker takes, and its logprobs in the form that losses take."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from ajet.interfaces.backbone import LossTokens, Need, Sample
from ajet.interfaces.engine import Float32
from ajet.learning.pairs import pair_numbers

if TYPE_CHECKING:
    from tinker import Datum


def datum(sample: Sample) -> Datum:
    """The inputs and targets of a sample: its tokens without the last one, and without the first one. Tokens after the
    last trained one are left out, because they change nothing and cost time. The weights of Tinker's own loss are 0."""
    from tinker import Datum, ModelInput, TensorData

    ids = sample.token_ids[: length(sample)].astype(np.int64)
    return Datum(
        model_input=ModelInput.from_ints(ids[:-1].tolist()),
        loss_fn_inputs={
            "target_tokens": TensorData.from_numpy(ids[1:]),
            "weights": TensorData.from_numpy(np.zeros(len(ids) - 1, dtype=np.float32)),
        },
    )


def length(sample: Sample) -> int:
    """The number of tokens up to the last trained one."""
    return int(np.flatnonzero(sample.mask)[-1]) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DatumTokens(LossTokens):
    """The N trained tokens of some samples, concatenated sample by sample. All tensors are [N]."""

    weights: torch.Tensor

    @classmethod
    def of(
        cls, samples: Sequence[Sample], logprobs: Sequence[torch.Tensor], needs: Collection[Need] = ()
    ) -> Self:
        """The trained tokens of ``samples``. ``logprobs[i]`` (float32[T_i - 1]) are those of the targets of
        ``datum(samples[i])``; gradients flow into them from ``new``. Without `Sample.before`, ``before`` is ``new``: the
        weights have not changed yet."""

        def flat(arrays: Sequence[np.ndarray]) -> torch.Tensor:
            parts = [array[s.mask] for array, s in zip(arrays, samples, strict=True)]
            return torch.from_numpy(np.concatenate(parts))

        def optional(arrays: Sequence[Float32 | None]) -> torch.Tensor | None:
            given = [array for array in arrays if array is not None]
            return flat(given) if given else None

        # A token is predicted at the position before it.
        new = torch.cat(
            [
                own[torch.from_numpy(np.flatnonzero(s.mask) - 1)]
                for own, s in zip(logprobs, samples, strict=True)
            ]
        )
        before = optional([s.before for s in samples]) if "before" in needs else None
        return cls(
            new=new,
            old=flat([s.logprobs for s in samples]),
            advantages=flat([s.advantages for s in samples]),
            calls=torch.from_numpy(_calls(samples)),
            before=new.detach() if before is None and "before" in needs else before,
            reference=optional([s.reference for s in samples]) if "reference" in needs else None,
            pairs=torch.from_numpy(pair_numbers(samples)) if "pairs" in needs else None,
            weights=flat([s.weights for s in samples]),
        )


def _calls(samples: Sequence[Sample]) -> np.ndarray:
    """int64[N]: the number of each trained token's call, from 0."""
    parts, first = [], 0
    for sample in samples:
        numbers = np.full(len(sample.token_ids), first, dtype=np.int64)
        for number, span in enumerate(sample.spans, first + 1):
            numbers[span.start : span.end] = number
        parts.append(numbers[sample.mask])
        first += len(sample.spans) + 1
    return np.unique(np.concatenate(parts), return_inverse=True)[1]
