"""What a job adds to any algorithm's loss: importance correction, a KL penalty, an entropy bonus.

The whole loss of a token, with the settings of `TrainSettings`:

    min(exp(before - old), cap) · loss(old := before)  +  kl · penalty(new, reference)  -  entropy · H

Each term exists only if its setting enables it; without any, the loss is the algorithm's own. The penalty is `k3`, or
`k2` if the algorithm's paper uses it (`Algorithm.kl`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ajet.interfaces.algorithm import Algorithm
from ajet.learning.settings import TrainSettings
from ajet.types import Loss, LossTokens, Measures, Need


@dataclass(frozen=True, slots=True)
class Objective:
    """An algorithm's loss with the terms of the job. A `Loss`."""

    loss: Loss
    needs: frozenset[Need]
    kl: float = 0.0
    entropy: float = 0.0
    cap: float | None = None
    penalty: Literal["k2", "k3"] = "k3"
    measures: Measures | None = None

    def __call__(self, xp: Any, tokens: LossTokens) -> Any:
        """The loss of each token; see the module's docstring."""
        total = self.loss(xp, tokens) if self.cap is None else corrected(xp, tokens, self.loss, self.cap)
        if self.kl:
            penalty = k2 if self.penalty == "k2" else k3
            total = total + self.kl * penalty(xp, tokens.new, tokens.reference)
        if self.entropy:
            total = total - self.entropy * tokens.entropy
        return total

    @property
    def zero_costs_nothing(self) -> bool:
        """Whether a token of advantage 0 has no loss. A critic learns from every token."""
        return not (self.kl or self.entropy or "values" in self.needs)


def objective(algorithm: Algorithm, settings: TrainSettings) -> Objective:
    """The loss of a job's batches, with the inputs that it needs."""
    needs = set(algorithm.needs)
    if settings.kl:
        needs.add("reference")
    if settings.entropy:
        needs.add("entropy")
    cap = settings.correction_cap if settings.correction == "truncated" else None
    if cap is not None:
        needs.add("before")
    return Objective(
        algorithm.loss,
        frozenset(needs),
        settings.kl,
        settings.entropy,
        cap,
        algorithm.kl,
        algorithm.measures,
    )


def corrected(xp: Any, tokens: LossTokens, loss: Loss, cap: float) -> Any:
    """Token-level truncated importance sampling: the loss against the trainer's own logprobs before the
    update, times min(before / sampled, cap), for engines that compute other probabilities than the trainer.

    Yao et al., "On the Rollout-Training Mismatch in Modern RL Systems", 2025; Ionides, "Truncated
    Importance Sampling", 2008.
    """
    weight = xp.clip(xp.exp(tokens.before - tokens.old), 0.0, cap)
    return weight * loss(xp, replace(tokens, old=tokens.before))


def k2(xp: Any, new: Any, reference: Any) -> Any:
    """(new - reference)² / 2: its gradient, (new - reference) · ∇new, is in expectation that of KL(new || reference).

    Schulman, "Approximating KL Divergence", 2020; as a loss term: arXiv:2501.03262, sec. 3.2.
    """
    difference = new - reference
    return difference * difference / 2


def k3(xp: Any, new: Any, reference: Any) -> Any:
    """exp(d) - d - 1 with d = reference - new: never negative, in expectation KL(new || reference).

    Schulman, "Approximating KL Divergence", 2020; as a loss term: arXiv:2402.03300, eq. 4.
    """
    difference = reference - new
    return xp.exp(difference) - difference - 1
