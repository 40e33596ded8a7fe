"""The job's ``train`` section, ``task.selector`` and adapters."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from ajet.interfaces.base import AlgorithmSpec, FilterSpec, PathOrName, Settings

FINAL_SHARE = 0.1
"""Default of `TrainSettings.final_share`: with 0 the last step would learn nothing."""

CreditKind = Literal["episode", "tree"]


class TrainSettings(Settings):
    """What is learned, how fast, and how often it is saved."""

    algorithm: AlgorithmSpec = Field(
        {"type": "grpo"}, description="Algorithm by name, or {type: name, …} with its fields."
    )
    targets: tuple[str, ...] | None = Field(
        None, description="Names of the targets to train; default: all that have no frozen_model."
    )
    credit: CreditKind = Field(
        "episode",
        description="What a call is compared with: `episode`, its whole group; `tree`, the episodes that share the calls before "
        "the last fork. The same where rollout.fork makes no forks.",
    )
    call_discount: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Discount, for each call in between, of the rewards that follow a call: those of later calls (call_rewards) and "
        "that of the episode.",
    )
    filters: tuple[FilterSpec, ...] = Field(
        (), description="Calls that are not trained: filters by name, or {type: name, …} with their fields."
    )
    max_timelines: int | None = Field(
        None,
        ge=1,
        description="Maximum timelines of an episode to train, by a seeded choice; default: all.",
    )
    steps: int = Field(100, ge=0, description="Training steps; 0 only validates.")
    batch_size: int = Field(8, ge=1, description="Tasks per step; each is run rollout.group_size times.")
    mini_batches: int = Field(
        1, ge=1, description="Optimizer steps per training step, each on its share of the groups."
    )
    epochs: int = Field(
        1, ge=1, description="Passes over each batch; every pass takes mini_batches optimizer steps."
    )
    kl: float = Field(
        0.0,
        ge=0,
        description="Weight of the KL penalty (k3; with reinforce++ k2) against a reference model: the initial weights, kept as a "
        "second copy in memory (with a lora: the model without it, which takes none), or those of train.reference.",
    )
    reference: PathOrName | None = Field(
        None,
        description="Model of the KL penalty, or teacher of the algorithms distillation and sdpo: folder or Hugging Face id.",
    )
    entropy: float = Field(0.0, ge=0, description="Weight of the entropy bonus.")
    correction: Literal["off", "truncated"] = Field(
        "off",
        description="truncated: importance weights for engines whose logprobs differ from the trainer's; ratios are then "
        "against the trainer's own logprobs. Not needed for the local engine.",
    )
    correction_cap: float = Field(
        2.0, ge=1, description="Importance weights of the correction are at most this."
    )
    max_staleness: int | None = Field(
        None,
        ge=0,
        description="Drop episodes with a token sampled more than this many weight versions ago; default: none.",
    )
    asynchronous: bool = Field(
        False,
        description="Run the next step's episodes during the update of a step; their tokens are then up to one weight "
        "version older. They use new weights as soon as these are available.",
    )
    dynamic_sampling: float = Field(
        1.0,
        ge=1,
        description="Above 1: groups of equal rewards are replaced by further groups, up to this many times batch_size groups.",
    )
    learning_rate: float = Field(1e-5, gt=0, description="AdamW learning rate.")
    warmup_steps: int = Field(
        0, ge=0, description="Steps over which the learning rate rises linearly from 0."
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="Learning rate after the warm-up: `constant` keeps it, `linear` and `cosine` lower it until the last step.",
    )
    final_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Learning rate of the last step as a fraction of `learning_rate`. Only with `linear` or `cosine`. Default: 0.1.",
    )
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay.")
    adam_epsilon: float = Field(
        1e-8,
        gt=0,
        description="AdamW's epsilon: gradients well below it change a weight little, larger ones by about the learning rate.",
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this norm.")
    save_every: int = Field(
        10,
        ge=1,
        description="Write a checkpoint every this many steps, unless the reward has collapsed, and after the last.",
    )
    save_minutes: float | None = Field(
        None,
        gt=0,
        description="Also write a checkpoint after a step if the last one is older than so many minutes.",
    )
    keep_last: int = Field(2, ge=1, description="Number of newest checkpoints to keep.")
    keep_best: bool = Field(
        False,
        description="Also keep the checkpoint with the highest validation reward, written whenever a validation is the best so far.",
    )

    @model_validator(mode="after")
    def _a_constant_rate_has_no_end(self) -> Self:
        if self.schedule == "constant" and self.final_share is not None:
            raise ValueError("final_share needs schedule: linear or cosine; a constant rate does not change")
        return self

    @property
    def last_share(self) -> float:
        """The last step's share of the learning rate."""
        given = FINAL_SHARE if self.final_share is None else self.final_share
        return 1.0 if self.schedule == "constant" else given

    @property
    def most_stale(self) -> int:
        """By how many weight versions a trained token may be older than the weights that learn from it, as far as the job says."""
        return int(self.asynchronous) if self.max_staleness is None else self.max_staleness

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 1: a function of only the step and ``steps``, so that resuming needs
        no other state. The warm-up's last step (without a warm-up, the first step) has the full rate, the last step its
        final share."""
        if step < self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        whole = max(self.warmup_steps, 1)
        passed = min((step - whole) / max(self.steps - whole, 1), 1.0)
        left = (1 + math.cos(math.pi * passed)) / 2 if self.schedule == "cosine" else 1 - passed
        return self.learning_rate * (self.last_share + (1 - self.last_share) * left)


class SelectorSettings(Settings):
    """Which tasks a training step takes, and in which order."""

    type: Literal["shuffle", "sequential", "easy_to_hard", "difficulty"] = Field(
        "shuffle",
        description="shuffle: a random order for each epoch; sequential: the reader's order; easy_to_hard: falling `pass_rates`; "
        "difficulty: tasks whose estimated pass rate is near `target_pass_rate`.",
    )
    pass_rates: tuple[str, ...] = Field(
        (),
        max_length=2,
        description="Metadata fields with known pass rates, from 0 to 1: of the model itself, or of a weaker and a stronger one.",
    )
    target_pass_rate: float = Field(0.5, ge=0, le=1, description="The pass rate that `difficulty` looks for.")
    forgetting: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Share of what is known of each task that `difficulty` forgets after each step.",
    )
    known_weight: float = Field(
        0.1,
        ge=0,
        le=1,
        description="What `pass_rates` count after each step, as a fraction of a group, for the tasks that were not in the step.",
    )
    softmax_temperature: float = Field(
        0.0, ge=0, description="0 takes the tasks nearest to the target; above 0 they are drawn by a softmax."
    )
    thompson_sampling: bool = Field(
        True,
        description="Draw pass rates from their estimates, so that tasks of which little is known are tried.",
    )

    @model_validator(mode="after")
    def _keys_have_an_effect(self) -> Self:
        for name, info in type(self).model_fields.items():
            used = self.type == "difficulty" or (name == "pass_rates" and self.type == "easy_to_hard")
            if name != "type" and not used and getattr(self, name) != info.default:
                raise ValueError(f"{name} has no effect with type: {self.type}; remove it")
        if self.type == "easy_to_hard" and not self.pass_rates:
            raise ValueError("easy_to_hard needs pass_rates: [FIELD]")
        return self


class LoraSettings(Settings):
    """A low-rank adapter over the job's model (Hu et al., arXiv:2106.09685)."""

    rank: int = Field(16, ge=1, description="Rank of the adapter's matrices.")
    alpha: float | None = Field(
        None, gt=0, description="The adapter is scaled by alpha / rank; default: twice the rank."
    )
    modules: tuple[str, ...] | None = Field(
        None,
        description="Name endings of the linear layers to adapt; default: all but the head.",
    )
