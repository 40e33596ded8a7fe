"""Algorithms for feedback on single replies, which no other reply to the same request can be compared with."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from ajet.interfaces.algorithm import Algorithm, Float64, sum_over_calls
from ajet.interfaces.backbone import LossTokens, Need
from ajet.learning.algorithms import GRPO


class Reinforce(GRPO):
    """REINFORCE with a baseline, and PPO's clipped ratio against the recorded logprobs.

    Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning", 1992; clipping from
    Schulman et al., "Proximal Policy Optimization", arXiv:1707.06347, eq. 7.
    """

    name = "reinforce"
    baseline: float = Field(
        0.0,
        description="What is subtracted from each reward; online training sets the running mean of rewards.",
    )

    def advantages(self, rewards: Float64) -> Float64:
        """r - baseline."""
        advantages: Float64 = rewards - self.baseline
        return advantages


class KTO(Algorithm):
    """Kahneman-Tversky optimization: learns from single replies that were liked or disliked.

    Ethayarajh et al., "KTO: Model Alignment as Prospect Theoretic Optimization", arXiv:2402.01306, eq. 7 and 8. The paper
    estimates the reference point, the KL divergence from the reference model, from mismatched pairs of the batch; here it is
    a number, which online training takes from the model's own replies to the previous batch.
    """

    name = "kto"
    needs: ClassVar[frozenset[Need]] = frozenset({"reference"})
    beta: float = Field(
        0.1, gt=0, description="How fast the value saturates; larger values stay closer to the reference."
    )
    liked: float = Field(0.5, description="The reward from which a reply was liked.")
    liked_weight: float = Field(1.0, gt=0, description="Weight of replies that were liked.")
    disliked_weight: float = Field(1.0, gt=0, description="Weight of replies that were disliked.")
    reference_point: float = Field(
        0.0,
        ge=0,
        description="The log ratio of a whole reply to the reference model, in nats, that is neither a gain nor a loss.",
    )

    def advantages(self, rewards: Float64) -> Float64:
        """The weight of a liked reply, minus the weight of a disliked one."""
        return np.where(rewards >= self.liked, self.liked_weight, -self.disliked_weight)

    def loss(self, xp: Any, tokens: LossTokens) -> Any:
        """|A| · (1 - σ(± β (r - z))) for each token, where r = log π / π_reference of its reply, and z is the reference point."""
        ratio = sum_over_calls(xp, tokens.new - tokens.reference, tokens.calls)
        gain = xp.sign(tokens.advantages) * self.beta * (ratio - self.reference_point)
        # 1 - σ(gain), without an exponential that overflows and then has no gradient.
        return abs(tokens.advantages) * (1 - xp.tanh(gain / 2)) / 2
