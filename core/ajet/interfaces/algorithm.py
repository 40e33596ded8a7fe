"""An algorithm turns rewards into advantages and defines the loss and the weight of each token.

Its methods are pure functions, listed here in the order in which they are called:

    advantages   rewards of one group          -> advantages of its episodes
    normalize    advantages of the whole batch -> the same, on another scale
    weights      tokens of each episode        -> the weight of one of them in the sum
    loss         logprobs and advantages       -> loss of each token
    measures     the same                      -> numbers of each token to report

An `ActorCritic` has a critic, which predicts the reward while an episode goes on. Its advantages are those of tokens:

    estimate     rewards and values of the tokens of one timeline -> advantages of the tokens
    scale        advantages of all tokens of the batch            -> the same, on another scale

A `SelfTaught` one has a teacher instead of rewards.

A trainer does not depend on the algorithm: it sums ``weights · loss``. What the job adds to any algorithm (a KL penalty
against a reference model, an entropy bonus, a correction) is in `ajet.learning.objective`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from ajet.interfaces.base import Plugin
from ajet.types import Float64 as Float64
from ajet.types import LossTokens as LossTokens
from ajet.types import Need


class Algorithm(Plugin):
    """Base of algorithms: pure functions. Trainers only sum weighted token losses."""

    kind = "algorithm"
    needs: ClassVar[frozenset[Need]] = frozenset()
    """The optional arrays of `LossTokens` that `loss` reads."""
    teacher: ClassVar[bool] = False
    """Whether the reference is a teacher, which the job must name; otherwise it is by default the run's first weights."""
    relative: ClassVar[bool] = False
    """Whether advantages are rewards that are shifted and scaled: then they can be those of single calls, from
    `train.credit: tree` and rewards of calls."""
    kl: ClassVar[Literal["k2", "k3"]] = "k3"
    """The estimator of the penalty that `train.kl` adds: see `ajet.learning.objective`."""

    @abstractmethod
    def advantages(self, rewards: Float64) -> Float64:
        """float64[E] rewards of one group's episodes -> float64[E] advantages. An advantage of 0 trains nothing."""

    def normalize(self, advantages: Float64) -> Float64:
        """float64[E] advantages of all episodes of the batch that are trained -> float64[E]; default: as they are."""
        return advantages

    def weights(self, tokens: Float64) -> Float64:
        """float64[E] trained tokens of each episode of a mini-batch -> float64[E] weight of each of them.

        Default: 1 / (E · T_e), the mean over episodes of the means over their tokens.
        """
        weights: Float64 = 1 / (len(tokens) * tokens)
        return weights

    @abstractmethod
    def loss(self, xp: Any, tokens: LossTokens) -> Any:
        """Loss of each token, [N]; ``xp`` is torch or numpy."""

    def measures(self, xp: Any, tokens: LossTokens) -> Mapping[str, Any]:
        """Numbers of each token to report, [N] by name. A metric is their sum with the weights of the loss; default: none."""
        return {}


class ActorCritic(Algorithm):
    """Base of algorithms with a critic: the trainer adds a head to the model that predicts a value for each token."""

    needs: ClassVar[frozenset[Need]] = frozenset({"values"})

    def advantages(self, rewards: Float64) -> Float64:
        """The rewards as they are: `estimate` turns them into advantages."""
        return rewards

    @abstractmethod
    def estimate(self, rewards: Float64, values: Float64) -> Float64:
        """The advantages of an agent's tokens in one timeline, float64[N]. ``rewards[t]`` follows token t, and ``values[t]``
        is the value of the state in which it was drawn. What the critic learns are advantages + values."""

    def scale(self, advantages: Float64) -> Float64:
        """float64[N] advantages of all tokens of the batch -> float64[N]; default: as they are."""
        return advantages


class SelfTaught(Algorithm):
    """Base of algorithms whose teacher is the model itself, after it has read feedback on the episode (`ajet.learning.self_teacher`).
    ``loss`` reads the distributions of both, `LossTokens.student` and `LossTokens.teacher`."""

    needs: ClassVar[frozenset[Need]] = frozenset({"teacher"})
    teacher_share: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of the current weights in the teacher's logprobs; the rest is that of the reference: the initial weights "
        "or train.reference. 0 freezes the teacher.",
    )
    template: str = Field(
        "\n\nAn earlier attempt at this was reviewed. The review says:\n\n{feedback}\n\nTake it into account.",
        description="What the teacher reads after the user's message, with {feedback} in it.",
    )
    solution: float | None = Field(
        None,
        description="An episode without feedback gets the answer of the best other episode of its group as feedback, if the "
        "reward of that is at least this; default: such episodes teach nothing.",
    )
    solution_template: str = Field(
        "This answer was right:\n\n{answer}",
        description="The feedback that such an answer is, with {answer} in it.",
    )

    @field_validator("template", "solution_template")
    @classmethod
    def _has_its_place(cls, text: str, field: ValidationInfo) -> str:
        place = "{feedback}" if field.field_name == "template" else "{answer}"
        if place not in text:
            raise ValueError(f"expected a text with {place} in it")
        return text

    def advantages(self, rewards: Float64) -> Float64:
        """1 for every episode; the tokens of those without feedback get 0."""
        return rewards * 0.0 + 1.0


def constant(values: Any) -> Any:
    """The values without their gradient."""
    return values.detach() if hasattr(values, "detach") else values


def mean_over_calls(xp: Any, values: Any, calls: Any) -> Any:
    """[N]: for each token the mean of ``values`` over the tokens of its call, with gradients."""
    return sum_over_calls(xp, values, calls) / sum_over_calls(xp, xp.ones_like(values), calls)


def sum_over_calls(xp: Any, values: Any, calls: Any) -> Any:
    """[N]: for each token the sum of ``values`` over the tokens of its call (or pair), with gradients."""
    if hasattr(values, "index_add"):  # torch
        return values.new_zeros(int(calls.max()) + 1).index_add(0, calls, values)[calls]
    return xp.bincount(calls, values)[calls]
