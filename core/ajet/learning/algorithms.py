"""The algorithms that come with the core. Each is two pure functions."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ajet.algorithm import Algorithm
from ajet.types import Float64


class GRPO(Algorithm):
    """Group relative policy optimization: rewards against their group, PPO's clipped ratio.

    Shao et al., "DeepSeekMath", arXiv:2402.03300, sec. 4.1; clipping from Schulman et al.,
    "Proximal Policy Optimization", arXiv:1707.06347, eq. 7.
    """

    name = "grpo"
    clip_low: float = Field(0.2, gt=0, lt=1, description="The ratio is clipped below at 1 - clip_low.")
    clip_high: float = Field(0.2, gt=0, description="The ratio is clipped above at 1 + clip_high.")

    def advantages(self, rewards: Float64) -> Float64:
        """(r - mean) / std over the group's episodes; exactly 0 if all rewards are equal.

        float64[E] -> float64[E]; the standard deviation is the sample one (E - 1).
        """
        if len(rewards) < 2 or rewards.max() == rewards.min():
            return rewards * 0.0
        advantages: Float64 = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        return advantages

    def loss(self, xp: Any, new: Any, old: Any, advantages: Any) -> Any:
        """-min(ratio · A, clip(ratio) · A) of each token, ratio against the sampling logprobs."""
        ratio = xp.exp(new - old)
        clipped = xp.clip(ratio, 1 - self.clip_low, 1 + self.clip_high)
        return -xp.minimum(ratio * advantages, clipped * advantages)


class SFT(Algorithm):
    """Supervised fine-tuning: the cross-entropy of the assistant's tokens."""

    name = "sft"

    def advantages(self, rewards: Float64) -> Float64:
        """1 for every transcript: all are to be imitated."""
        return rewards * 0.0 + 1.0

    def loss(self, xp: Any, new: Any, old: Any, advantages: Any) -> Any:
        """-logprob · A."""
        return -new * advantages
