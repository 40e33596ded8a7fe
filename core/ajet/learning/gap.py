"""Whether the trainer computes the logprobs that the engine recorded.

Kernels, types and quantization of the two may differ. Ratios of the policy gradient then begin at exp(difference) instead
of 1, so that the update is off-policy although the weights are the same.
"""

from __future__ import annotations

from ajet.types import Metrics

GAP = "logprob_diff_mean"
LARGE = 0.1
"""A mean difference that is worth a warning: ratios are then wrong by 10 %. bfloat16 gives a tenth of it."""


class GapCheck:
    """Warns once in a run."""

    def __init__(self) -> None:
        self._warned = False

    def warning(self, step: int, metrics: Metrics) -> str:
        """What is wrong with the logprobs of a step whose tokens were sampled from the weights that learn from them; "" if
        nothing is, or if it was said before."""
        gap = metrics.get(GAP, 0.0)
        if self._warned or gap <= LARGE:
            return ""
        self._warned = True
        return (
            f"step {step}: the trainer's logprobs of sampled tokens differ from the engine's by {gap:.2f} on average, so "
            "every update is off-policy. Set train.correction=truncated, or let both compute in the same type "
            "(“When to correct” in the documentation, docs/algorithms.md)"
        )
