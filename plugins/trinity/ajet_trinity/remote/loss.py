"""The job's objective on the rows of a micro-batch, as a policy loss of Trinity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from trinity.algorithm.entropy_loss_fn import EntropyLossFn
from trinity.algorithm.policy_loss_fn import PolicyLossFn
from verl.utils.metric import AggregationType, Metric

from ajet.interfaces.algorithm import Algorithm
from ajet.interfaces.backbone import LossTokens
from ajet.job.config import Layers
from ajet.job.parts import build_plugin
from ajet.learning.objective import Objective, objective
from ajet.learning.settings import TrainSettings
from ajet_trinity.remote.optimizer import set_rate
from ajet_trinity.spool import measure

_FIELDS = ("before", "old", "mask", "advantages", "weights", "calls", "rate", "first")


class _Rows:
    """``Σ weights · loss`` over the trained tokens of a micro-batch.

    ``train`` are the keys of the job's section of that name on which the loss depends. ``ranks`` is the number of
    data-parallel workers: verl averages their gradients, but we need the sum. ``fresh`` means that an update is a single
    optimizer step, so that the logprobs of its pass are also those before the update.
    """

    def __init__(self, backend: str = "verl", *, train: Mapping[str, Any], ranks: int, fresh: bool) -> None:
        super().__init__(backend)  # type: ignore[call-arg]
        self.objective = objective_of(train)
        self.ranks = ranks
        self.fresh = fresh

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {}

    def _total(
        self, logprob: torch.Tensor, reference: torch.Tensor | None, *fields: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The loss, and its sums as metrics; ``fields`` are those of `_FIELDS`. Raises FloatingPointError for a non-finite loss."""
        rows = dict(zip(_FIELDS, fields, strict=True))
        mask = rows["mask"].bool()
        set_rate(float(rows["rate"].max()))
        new = logprob[mask].float()
        numbers = (
            torch.arange(len(mask), device=mask.device)[:, None] * (rows["calls"].max() + 1) + rows["calls"]
        )
        before = new.detach() if self.fresh else rows["before"][mask]
        tokens = LossTokens(
            new=new,
            old=rows["old"][mask],
            advantages=rows["advantages"][mask],
            calls=torch.unique(numbers[mask], return_inverse=True)[1],
            before=before if "before" in self.objective.needs else None,
            reference=reference[mask] if reference is not None else None,
        )
        weights = rows["weights"][mask]
        total = (weights * self.objective(torch, tokens)).sum() if len(new) else logprob.sum() * 0
        if not torch.isfinite(total):
            raise FloatingPointError(f"the loss is {total.item()}; no step was taken")
        first = rows["first"].bool()[:, None].expand_as(mask)[mask]
        differences = (new.detach() - tokens.old)[first].abs()
        sums = {
            "tokens": float(len(new)),
            "objective": float(total.detach()),
            "difference": float(differences.sum()),
            "compared": float(len(differences)),
        }
        sums |= {measure(name): value for name, value in self._measured(tokens, weights).items()}
        if reference is not None:
            sums["divergence"] = float((new.detach() - reference[mask]).sum())
        largest = float(differences.max()) if len(differences) else 0.0
        return total * self.ranks, {
            **{
                f"ajet_{name}": Metric(AggregationType.SUM, value * self.ranks)
                for name, value in sums.items()
            },
            "ajet_max_difference": Metric(AggregationType.MAX, largest),
        }

    @torch.no_grad()
    def _measured(self, tokens: LossTokens, weights: torch.Tensor) -> dict[str, float]:
        """The weighted sums of what the algorithm measures. verl takes means over ranks and chunks, so also those without tokens
        report each name."""
        measures = self.objective.measures
        if measures is None:
            return {}
        if not len(weights):
            return {name: 0.0 for name in measures(torch, _one_token())}
        return {name: float((weights * numbers).sum()) for name, numbers in measures(torch, tokens).items()}


def _one_token() -> LossTokens:
    """A token that stands for any, to find the names of what is measured."""
    zero = torch.zeros(1)
    return LossTokens(
        new=zero,
        old=zero,
        advantages=zero,
        calls=torch.zeros(1, dtype=torch.int64),
        before=zero,
        reference=zero,
    )


class RowLoss(_Rows, PolicyLossFn):
    """The loss without a reference model. Trinity passes the fields that `__call__` names."""

    def __call__(
        self,
        logprob: torch.Tensor,
        old_logprob: torch.Tensor,
        rollout_log_probs: torch.Tensor,
        action_mask: torch.Tensor,
        advantages: torch.Tensor,
        ajet_weights: torch.Tensor,
        ajet_calls: torch.Tensor,
        ajet_rate: torch.Tensor,
        ajet_first: torch.Tensor,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """See `_Rows`. Arrays are [rows, tokens], ``ajet_rate`` and ``ajet_first`` [rows]."""
        given = (old_logprob, rollout_log_probs, action_mask, advantages)
        return self._total(logprob, None, *given, ajet_weights, ajet_calls, ajet_rate, ajet_first)


class RowLossWithReference(_Rows, PolicyLossFn):
    """The loss with the logprobs of the initial weights."""

    def __call__(
        self,
        logprob: torch.Tensor,
        ref_logprob: torch.Tensor,
        old_logprob: torch.Tensor,
        rollout_log_probs: torch.Tensor,
        action_mask: torch.Tensor,
        advantages: torch.Tensor,
        ajet_weights: torch.Tensor,
        ajet_calls: torch.Tensor,
        ajet_rate: torch.Tensor,
        ajet_first: torch.Tensor,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """See `RowLoss`."""
        given = (old_logprob, rollout_log_probs, action_mask, advantages)
        return self._total(logprob, ref_logprob, *given, ajet_weights, ajet_calls, ajet_rate, ajet_first)


class EntropyBonus(EntropyLossFn):
    """``coefficient · Σ weights · entropy``, which Trinity subtracts from the loss."""

    def __init__(self, coefficient: float, ranks: int) -> None:
        self.coefficient = coefficient
        self.ranks = ranks

    def __call__(
        self, entropy: torch.Tensor, action_mask: torch.Tensor, **fields: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """``entropy`` and ``action_mask`` are [rows, tokens]; ``fields`` are those of the policy loss."""
        mask = action_mask.bool()
        values = entropy[mask].float()
        bonus = self.coefficient * self.ranks * (fields["ajet_weights"][mask] * values).sum()
        sums = {"entropy": float(values.detach().sum()) * self.ranks, "bonus": float(bonus.detach())}
        return bonus, {f"ajet_{name}": Metric(AggregationType.SUM, value) for name, value in sums.items()}


def objective_of(train: Mapping[str, Any]) -> Objective:
    """The objective of a job from those keys of its ``train`` section on which it depends, without the entropy bonus, which
    `EntropyBonus` adds. Raises ConfigError."""
    settings = TrainSettings(**{**train, "entropy": 0.0})
    return objective(build_plugin(Layers(), Algorithm, settings.algorithm, "train.algorithm"), settings)
