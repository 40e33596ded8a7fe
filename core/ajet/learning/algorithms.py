"""The algorithms that come with the core, each with its paper. docs/algorithms.md compares them.

A ratio is the current probability of a token divided by the one that it was sampled with, or, with
`train.correction`, by the trainer's own before the update (`ajet.learning.objective`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ajet.interfaces.algorithm import (
    ActorCritic,
    Algorithm,
    SelfTaught,
    constant,
    mean_over_calls,
    sum_over_calls,
)
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
    relative: ClassVar[bool] = True
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
    relative: ClassVar[bool] = True

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
    variant, for which the paper subtracts k1 from advantages instead (`ajet docs algorithms`).
    """

    name = "reinforce++"
    relative: ClassVar[bool] = True
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
    teacher: ClassVar[bool] = True

    def advantages(self, rewards: Float64) -> Float64:
        """1 for every episode: `loss` takes the value of a token from the teacher."""
        return rewards * 0.0 + 1.0

    def loss(self, xp: Any, tokens: LossTokens) -> Any:
        """-ratio · A · (log teacher - log sampled): in expectation the gradient of the reverse KL."""
        worth = tokens.advantages * (tokens.reference - tokens.old)
        return -xp.exp(tokens.new - tokens.old) * worth


class DPO(Algorithm):
    """Direct preference optimization: the best episode of a group is to become likelier than the worst, relative to a
    reference model.

    Rafailov et al., "Direct Preference Optimization", arXiv:2305.18290, eq. 7. ``label_smoothing`` is the conservative
    loss of Mitchell, "A note on DPO with noisy preferences & relationship to IPO", 2023, eq. 3.
    """

    name = "dpo"
    needs: ClassVar[frozenset[Need]] = frozenset({"reference", "pairs"})
    beta: float = Field(
        0.1, gt=0, description="How fast a preference saturates; larger values stay closer to the reference."
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="Share of the preferences that are assumed to be the wrong way round."
    )

    def advantages(self, rewards: Float64) -> Float64:
        """1 for the first of the best, -1 for the first of the worst, 0 for the rest; all 0 if all rewards are equal."""
        advantages = np.zeros(len(rewards))
        if rewards.max() > rewards.min():
            advantages[rewards.argmax()], advantages[rewards.argmin()] = 1.0, -1.0
        return advantages

    def normalize(self, advantages: Float64) -> Float64:
        """1 becomes E / (number of pairs), so that the loss is the mean over the pairs of the batch."""
        pairs = (advantages > 0).sum()
        normalized: Float64 = advantages * (len(advantages) / pairs) if pairs else advantages
        return normalized

    def weights(self, tokens: Float64) -> Float64:
        """1 / E."""
        weights: Float64 = np.full(len(tokens), 1 / len(tokens))
        return weights

    def loss(self, xp: Any, tokens: LossTokens) -> Any:
        """|A| · -log σ(β m) of each pair, divided evenly among its tokens. The margin m is the sum of log π / π_reference
        over the chosen tokens, minus that over the rejected ones."""
        margin, share = self._margin(xp, tokens)
        none = xp.zeros_like(margin)
        kept, reversed_ = xp.logaddexp(none, -margin), xp.logaddexp(none, margin)
        return share * ((1 - self.label_smoothing) * kept + self.label_smoothing * reversed_)

    def measures(self, xp: Any, tokens: LossTokens) -> Mapping[str, Any]:
        """The mean of β m over the pairs, and the share of pairs where it is positive."""
        margin, share = self._margin(xp, tokens)
        return {"preference_margin": share * margin, "preference_accuracy": share * (margin > 0)}

    def _margin(self, xp: Any, tokens: LossTokens) -> tuple[Any, Any]:
        """[N], [N]: β m of each token's pair, and the token's share of the pair's loss."""
        sides = xp.sign(tokens.advantages)
        margin = sum_over_calls(xp, sides * (tokens.new - tokens.reference), tokens.pairs)
        size = sum_over_calls(xp, abs(sides), tokens.pairs)
        return self.beta * margin, abs(tokens.advantages) / xp.clip(size, 1, None)


class PPO(ActorCritic):
    """Proximal policy optimization with a critic: a token's advantage is what it adds to the expected reward.

    Schulman et al., "Proximal Policy Optimization Algorithms", arXiv:1707.06347, eq. 7 and 9; advantages: Schulman et al.,
    "High-Dimensional Continuous Control Using Generalized Advantage Estimation", arXiv:1506.02438, eq. 16; the clipped
    loss of values and the scaling of advantages: Huang et al., "The 37 Implementation Details of Proximal Policy
    Optimization", 2022.
    """

    name = "ppo"
    clip_low: float = Field(0.2, gt=0, lt=1, description="The ratio is clipped below at 1 - clip_low.")
    clip_high: float = Field(0.2, gt=0, description="The ratio is clipped above at 1 + clip_high.")
    gamma: float = Field(1.0, gt=0, le=1, description="Discount of the reward for each token before it.")
    lam: float = Field(
        0.95,
        ge=0,
        le=1,
        description="λ of the estimate: 1 trusts the reward alone, 0 the critic's value of the next token.",
    )
    value_clip: float = Field(
        0.2,
        gt=0,
        description="Beyond this distance from its value before the update a value is not moved further.",
    )
    value_weight: float = Field(0.1, ge=0, description="Weight of the critic's loss.")

    def estimate(self, rewards: Float64, values: Float64) -> Float64:
        """A_t = Σ_k (γλ)^k δ_{t+k} with δ_t = r_t + γ V_{t+1} - V_t, where V is 0 after the last token."""
        deltas = rewards + self.gamma * np.append(values[1:], 0.0) - values
        advantages, following = np.empty(len(deltas)), 0.0
        for t in range(len(deltas) - 1, -1, -1):
            advantages[t] = following = deltas[t] + self.gamma * self.lam * following
        return advantages

    def scale(self, advantages: Float64) -> Float64:
        """(A - mean) / std over the tokens of the batch; the standard deviation is the sample one (N - 1)."""
        if len(advantages) < 2:
            return advantages * 0.0
        scaled: Float64 = (advantages - advantages.mean()) / np.sqrt(advantages.var(ddof=1) + 1e-8)
        return scaled

    def weights(self, tokens: Float64) -> Float64:
        """1 / Σ T."""
        return token_mean(tokens)

    def loss(self, xp: Any, tokens: LossTokens) -> Any:
        """-min(ratio · A, clip(ratio) · A) + value_weight · (the loss of its value) of each token."""
        return self._of_policy(xp, tokens) + self.value_weight * self._of_values(xp, tokens)

    def measures(self, xp: Any, tokens: LossTokens) -> Mapping[str, Any]:
        """The two parts of the loss."""
        return {"policy_loss": self._of_policy(xp, tokens), "value_loss": self._of_values(xp, tokens)}

    def _of_policy(self, xp: Any, tokens: LossTokens) -> Any:
        ratio = xp.exp(tokens.new - tokens.old)
        return clipped(xp, ratio, tokens.advantages, self.clip_low, self.clip_high)

    def _of_values(self, xp: Any, tokens: LossTokens) -> Any:
        """max((V - R)², (V near its old value - R)²) / 2."""
        near = tokens.old_values + xp.clip(
            tokens.values - tokens.old_values, -self.value_clip, self.value_clip
        )
        return xp.maximum((tokens.values - tokens.returns) ** 2, (near - tokens.returns) ** 2) / 2


class SDPO(SelfTaught):
    """Self-distillation from feedback: the model that has read what the judge says of an episode teaches the model that has not.

    Hübotter et al., "Reinforcement Learning via Self-Distillation", arXiv:2601.20802: the loss is eq. 1, over the likeliest
    tokens as in app. A.3, or its symmetric form (sec. 2.3); the teacher is that of eq. 10, the mean over tokens that of eq. 13.
    Rewards are measured, but not learned from, except that ``solution`` chooses by them.
    """

    name = "sdpo"
    divergence: Literal["js", "kl"] = Field(
        "js", description="js: the Jensen-Shannon divergence, which is symmetric; kl: KL(student || teacher)."
    )

    def weights(self, tokens: Float64) -> Float64:
        """1 / Σ T, over the episodes that have feedback."""
        return token_mean(tokens)

    def loss(self, xp: Any, tokens: LossTokens) -> Any:
        """A · the divergence between the next-token distributions of student and teacher, at each sampled token."""
        student, teacher = tokens.student, tokens.teacher
        if self.divergence == "kl":
            return tokens.advantages * divergence(xp, student, teacher)
        middle = xp.logaddexp(student, teacher) - math.log(2)
        return tokens.advantages * (divergence(xp, student, middle) + divergence(xp, teacher, middle)) / 2

    def measures(self, xp: Any, tokens: LossTokens) -> Mapping[str, Any]:
        """KL(student || teacher)."""
        return {"teacher_kl": tokens.advantages * divergence(xp, tokens.student, tokens.teacher)}


def divergence(xp: Any, one: Any, other: Any) -> Any:
    """[N]: KL(one || other) of distributions that are given by their logprobs, [N, K]."""
    return (xp.exp(one) * (one - other)).sum(-1)
