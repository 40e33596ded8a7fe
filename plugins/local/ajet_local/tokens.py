"""The trained tokens of a micro-batch in the form that losses take, from what a model predicts for rows or a tree."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from ajet.interfaces.backbone import LossTokens, Need, Sample
from ajet.interfaces.engine import Float32
from ajet.learning.pairs import pair_numbers
from ajet_local.critic import ValueHead
from ajet_trees.cost import LOGITS
from ajet_trees.head import Predictions, Support

LIKELIEST = 100
"""How many of the student's likeliest tokens are compared with the teacher's: as in arXiv:2601.20802, app. A.3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTokens(LossTokens):
    """The N trained tokens of some samples, concatenated sample by sample. All tensors are [N]."""

    weights: torch.Tensor
    found: Predictions | None = None
    """The predictions of each token, and their temperatures, float32[N]. They need "teacher"."""
    temperatures: torch.Tensor | None = None

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        predictions: Predictions,
        needs: Collection[Need] = (),
        critic: ValueHead | None = None,
    ) -> Self:
        """The trained tokens of ``samples``, where ``predictions`` are the predictions of each, and ``critic`` that of their values.
        Gradients flow from ``new``, ``entropy`` and ``values`` into the model and the critic.

        ``new[i] = log_softmax(logits / temperature)[token]`` in float32, or in the type of the logits if that is more
        precise, and over the kept tokens alone where a sample has them. Optional tensors that are not in ``needs`` are None. If
        the samples have no ``before``, it is ``new``: the weights have not changed yet.
        """

        device = predictions.states.device

        def flat(arrays: Sequence[np.ndarray]) -> torch.Tensor:
            parts = [array[s.mask] for array, s in zip(arrays, samples, strict=True)]
            return torch.as_tensor(np.concatenate(parts), device=device)

        def optional(arrays: Sequence[Float32 | None]) -> torch.Tensor | None:
            given = [array for array in arrays if array is not None]
            return flat(given) if given else None

        temperatures = flat([_temperatures(s) for s in samples])
        tokens = flat([s.token_ids for s in samples]).long()
        support = _support(samples, device)
        new, entropy = predictions.logprobs(tokens, temperatures, support, entropy="entropy" in needs)
        before = optional([s.before for s in samples]) if "before" in needs else None
        return cls(
            new=new,
            calls=torch.as_tensor(_calls(samples), device=device),
            old=flat([s.logprobs for s in samples]),
            advantages=flat([s.advantages for s in samples]),
            weights=flat([s.weights for s in samples]),
            before=new.detach() if before is None and "before" in needs else before,
            reference=optional([s.reference for s in samples]) if "reference" in needs else None,
            entropy=entropy,
            pairs=torch.as_tensor(pair_numbers(samples), device=device) if "pairs" in needs else None,
            values=None if critic is None else critic(predictions.states),
            old_values=optional([s.values for s in samples]) if "values" in needs else None,
            returns=optional([s.returns for s in samples]) if "values" in needs else None,
            found=predictions if "teacher" in needs else None,
            temperatures=temperatures if "teacher" in needs else None,
        )

    def taught(self, teachers: Sequence[tuple[float, Self]]) -> Self:
        """These tokens with the logprobs of student and teacher. The teacher's are those of ``teachers``, interpolated by their shares
        and normalised. Distributions over the vocabulary exist for half of `LOGITS` bytes of tokens at a time, as three copies, which
        is less than a plan counts for other losses; they are computed again in the backward pass."""
        vocabulary = self.whole(slice(1)).shape[1]
        size = max(1, LOGITS // (2 * vocabulary * self.new.element_size()))
        students, targets = [], []
        for start in range(0, len(self.new), size):
            part = slice(start, start + size)
            with torch.no_grad():
                chosen = self.whole(part).topk(min(LIKELIEST, vocabulary)).indices
                mixed = sum(share * teacher.whole(part) for share, teacher in teachers)
                targets.append(likeliest(torch.log_softmax(mixed, dim=-1), chosen))
            students.append(
                checkpoint(lambda p, c: likeliest(self.whole(p), c), part, chosen, use_reentrant=False)
            )
        return replace(self, student=torch.cat(students), teacher=torch.cat(targets), found=None)

    def whole(self, part: slice) -> torch.Tensor:
        """float32[n, V]: the logprobs of the whole vocabulary where some of the tokens were drawn."""
        assert self.found is not None and self.temperatures is not None
        return self.found[part].whole(self.temperatures[part])

    def describe(self, index: int, samples: Sequence[Sample]) -> str:
        """The episode and position of trained token ``index``, for error messages. Raises IndexError."""
        for sample in samples:
            positions = np.flatnonzero(sample.mask)
            if index < len(positions):
                return f"episode {sample.episode!r}, token {positions[index]} of {len(sample.token_ids)}"
            index -= len(positions)
        raise IndexError(index)


def likeliest(logprobs: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """float32[N, K + 1]: the logprobs of the ``chosen`` tokens, int64[N, K], and that of all others together; without the latter if
    there are no others."""
    picked = logprobs.gather(1, chosen)
    if chosen.shape[1] == logprobs.shape[1]:
        return picked
    together = picked.logsumexp(1, keepdim=True).clamp(max=-torch.finfo(picked.dtype).eps)
    return torch.cat([picked, (-together.expm1()).log()], 1)


def _support(samples: Sequence[Sample], device: torch.device) -> Support | None:
    """The tokens among which the trained tokens were drawn; None: all."""
    if all(s.kept is None for s in samples):
        return None
    counts = [np.zeros(int(s.mask.sum()), np.int64) if s.kept is None else s.kept.counts for s in samples]
    token_ids = [s.kept.token_ids for s in samples if s.kept is not None]
    return Support.of(np.concatenate(counts), np.concatenate(token_ids), device)


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
