"""The algorithms that come with the core, each with its paper. docs/algorithms.md compares them.

A ratio is the current probability of a token divided by the one that it was sampled with, or, with
`train.correction`, by the trainer's own before the update (`ajet.learning.objective`).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ajet.interfaces.algorithm import Algorithm, constant, mean_over_calls
from ajet.types import Float64, LossTokens, Need


def centred(rewards: Float64) -> Float64:
    """float64[E]: rewards minus their mean; exactly 0 if all are equal."""
    if len(rewards) < 2 or rewards.max() == rewards.min():
        return rewards * 0.0
    deviations: Float64 = rewards - rewards.mean()
    return deviations


def clipped(xp: Any, ratio: Any, advantages: Any, low: float, high: float) -> Any:
    """-min(ratio · A, clip(ratio, 1 - low, 1 + high) · A) of each token: PPO's loss."""
    bounded = xp.clip(ratio, 1 - low, 1 + high)
    return -xp.minimum(ratio * advantages, bounded * advantages)


def token_mean(tokens: Float64) -> Float64:
    """1 / Σ T: every token of the mini-batch counts alike, so long episodes count more."""
    weights: Float64 = np.full(len(tokens), 1 / tokens.sum())
    return weights


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

    def loss(self, xp: Any, tokens: LossTokens) -> Any:
        """-min(ratio · A, clip(ratio) · A) of each token."""
        ratio = xp.exp(tokens.new - tokens.old)
        return clipped(xp, ratio, tokens.advantages, self.clip_low, self.clip_high)


class DAPO(GRPO):
    """GRPO with a higher upper clip, so that rare tokens can become likelier, and a mean over tokens.

    Yu et al., "DAPO", arXiv:2503.14476, sec. 3.1 (clip-higher) and 3.3 (token-level loss). Its dynamic
    sampling is `train.dynamic_sampling`, its filter of cut-off answers is the filter `over_long`.
    """

    name = "dapo"
    clip_high: float = Field(0.28, gt=0, description="The ratio is clipped above at 1 + clip_high.")

    def weights(self, tokens: Float64) -> Float64:
        """1 / Σ T."""
        return token_mean(tokens)


class DrGRPO(GRPO):
    """GRPO without division by the standard deviation or by an episode's length.

    Liu et al., "Understanding R1-Zero-Like Training", arXiv:2503.20783, sec. 3.2. The paper divides
    sums over tokens by a constant, which only scales the gradient.
    """

    name = "dr_grpo"
    divisor: int = Field(
        128, ge=1, description="The sum over an episode's tokens is divided by this, whatever its length."
    )

    def advantages(self, rewards: Float64) -> Float64:
        """r - mean over the group's episodes."""
        return centred(rewards)

    def weights(self, tokens: Float64) -> Float64:
        """1 / (E · divisor)."""
        weights: Float64 = np.full(len(tokens), 1 / (len(tokens) * self.divisor))
        return weights


class RLOO(Algorithm):
    """REINFORCE; the baseline of each episode is the mean of the others in its group.

    Ahmadian et al., "Back to Basics", arXiv:2402.14740; Kool et al., "Buy 4 REINFORCE Samples,
    Get a Baseline for Free!", 2019. Nothing is clipped; an episode's loss is the sum over its tokens.
    """

    name = "rloo"

    def advantages(self, rewards: Float64) -> Float64:
        """r - mean of the others = (r - mean) · E / (E - 1); exactly 0 if all rewards are equal."""
        return centred(rewards) * (len(rewards) / max(len(rewards) - 1, 1))

    def weights(self, tokens: Float64) -> Float64:
        """1 / E: the logprob of an episode is the sum over its tokens."""
        weights: Float64 = np.full(len(tokens), 1 / len(tokens))
        return weights

    def loss(self, xp: Any, tokens: LossTokens) -> Any:
        """-ratio · A: at the weights that sampled, the gradient equals that of -log π · A."""
        return -xp.exp(tokens.new - tokens.old) * tokens.advantages


class ReinforcePlusPlus(Algorithm):
    """REINFORCE with PPO's clip, its advantages normalized over the whole batch, not over groups.

    Hu et al., "REINFORCE++", arXiv:2501.03262, sec. 3. With ``group_baseline`` it is the paper's
    variant for groups of samples ("w/ Baseline"), whose KL penalty is k2 in the loss; without it, it is the plain
    variant, for which the paper subtracts k1 from advantages instead (docs/algorithms.md).
    """

    name = "reinforce++"
    kl: ClassVar[Literal["k2", "k3"]] = "k2"
    clip_low: float = Field(0.2, gt=0, lt=1, description="The ratio is clipped below at 1 - clip_low.")
    clip_high: float = Field(0.2, gt=0, description="The ratio is clipped above at 1 + clip_high.")
    group_baseline: bool = Field(
        True,
        description="Subtract the mean of the group before normalizing; otherwise only that of the batch, so a group of "
        "equal rewards still contributes.",
    )

    def advantages(self, rewards: Float64) -> Float64:
        """r - mean over the group's episodes, or r."""
        return centred(rewards) if self.group_baseline else rewards

    def normalize(self, advantages: Float64) -> Float64:
        """(A - mean) / std over the batch; the mean of centred groups is 0 already, so equal rewards stay
        at exactly 0. The standard deviation is the sample one (E - 1)."""
        if len(advantages) < 2 or advantages.max() == advantages.min():
            return advantages * 0.0
        mean = 0.0 if self.group_baseline else advantages.mean()
        normalized: Float64 = (advantages - mean) / (advantages.std(ddof=1) + 1e-6)
        return normalized

    def weights(self, tokens: Float64) -> Float64:
        """1 / Σ T."""
        return token_mean(tokens)

    def loss(self, xp: Any, tokens: LossTokens) -> Any:
        """-min(ratio · A, clip(ratio) · A) of each token."""
        ratio = xp.exp(tokens.new - tokens.old)
        return clipped(xp, ratio, tokens.advantages, self.clip_low, self.clip_high)


class GSPO(GRPO):
    """GRPO with one ratio for a whole answer: the geometric mean over its tokens, clipped as one.

    Zheng et al., "Group Sequence Policy Optimization", arXiv:2507.18071, eq. 5-7 and sec. 5.1. An
    answer is a call: an episode of several calls has one ratio for each.
    """

    name = "gspo"
    clip_low: float = Field(3e-4, gt=0, lt=1, description="The ratio is clipped below at 1 - clip_low.")
    clip_high: float = Field(4e-4, gt=0, description="The ratio is clipped above at 1 + clip_high.")

    def loss(self, xp: Any, tokens: LossTokens) -> Any:
        """-min(s · A, clip(s) · A), s = exp(mean over the call of new - old), for each token of the call."""
        ratio = xp.exp(mean_over_calls(xp, tokens.new - tokens.old, tokens.calls))
        return clipped(xp, ratio, tokens.advantages, self.clip_low, self.clip_high)


class CISPO(GRPO):
    """REINFORCE with truncated importance weights: every token keeps its gradient.

    MiniMax, "MiniMax-M1", arXiv:2506.13585, sec. 3.1: weights are bounded above only. The bound of 5
    is that of Khatri et al., "The Art of Scaling Reinforcement Learning Compute", arXiv:2510.13786.
    """

    name = "cispo"
    clip_low: float = Field(1.0, gt=0, le=1, description="Weights are at least 1 - clip_low; 1: no bound.")
    clip_high: float = Field(4.0, gt=0, description="Weights are at most 1 + clip_high.")

    def weights(self, tokens: Float64) -> Float64:
        """1 / Σ T."""
        return token_mean(tokens)

    def loss(self, xp: Any, tokens: LossTokens) -> Any:
        """-clip(ratio) · A · log π, the clipped ratio held constant."""
        ratio = xp.clip(xp.exp(tokens.new - tokens.old), 1 - self.clip_low, 1 + self.clip_high)
        return -constant(ratio) * tokens.advantages * tokens.new


class SFT(Algorithm):
    """Supervised fine-tuning: the cross-entropy of the assistant's tokens."""

    name = "sft"

    def advantages(self, rewards: Float64) -> Float64:
        """1 for every transcript: all are imitated."""
        return rewards * 0.0 + 1.0

    def loss(self, xp: Any, tokens: LossTokens) -> Any:
        """-logprob · A."""
        return -tokens.new * tokens.advantages


class RejectionSampling(SFT):
    """Supervised fine-tuning on the model's own best episodes; the others are left out.

    Dong et al., "RAFT", arXiv:2304.06767 (the best of each group); Yuan et al., "Scaling Relationship
    on Learning Mathematical Reasoning", arXiv:2308.01825 (all that succeeded).
    """

    name = "rejection_sampling"
    threshold: float | None = Field(
        None,
        description="Imitate episodes with at least this reward; default: the best of each group, none if all are equal.",
    )

    def advantages(self, rewards: Float64) -> Float64:
        """1 for imitated episodes, 0 for the rest."""
        best = (rewards == rewards.max()) & (rewards.max() > rewards.min())
        return np.where(best if self.threshold is None else rewards >= self.threshold, 1.0, 0.0)

    def normalize(self, advantages: Float64) -> Float64:
        """1 becomes E / (number imitated), so that the loss is the mean over the imitated episodes of the batch and the
        step size does not follow the acceptance rate."""
        accepted = advantages.sum()
        normalized: Float64 = advantages * (len(advantages) / accepted) if accepted else advantages
        return normalized


class Distillation(Algorithm):
    """On-policy distillation: a teacher judges each token of the student's own samples.

    Agarwal et al., "On-Policy Distillation of Language Models", arXiv:2306.13649; the reverse KL per
    token as advantage: Lu et al., "On-Policy Distillation", Thinking Machines, 2025. The teacher is
    `train.reference`; rewards are measured, but not learned from.
    """

    name = "distillation"
    needs: ClassVar[frozenset[Need]] = frozenset({"reference"})

    def advantages(self, rewards: Float64) -> Float64:
        """1 for every episode: `loss` takes the value of a token from the teacher."""
        return rewards * 0.0 + 1.0

    def loss(self, xp: Any, tokens: LossTokens) -> Any:
        """-ratio · A · (log teacher - log sampled): in expectation the gradient of the reverse KL."""
        worth = tokens.advantages * (tokens.reference - tokens.old)
        return -xp.exp(tokens.new - tokens.old) * worth
