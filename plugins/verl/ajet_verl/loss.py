"""The loss in verl's workers: the job's objective on the tokens of a micro-batch of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ajet.interfaces.backbone import LossTokens
from ajet.learning.objective import Objective
from ajet_verl.recorder import Pulse

FIELDS = ("response_mask", "rollout_log_probs", "advantages", "weights", "calls", "weight_versions")
"""Fields of rows that the loss always reads."""
VERSION = "weight_version"
"""Name, among the arguments of an update, of the version of the weights before it."""


@dataclass(frozen=True, slots=True)
class WorkerLoss:
    """The loss function of verl's workers, given by `set_loss_fn`. ``fresh`` means that the update is a single optimizer
    step, so the logprobs of its pass are also the ones before the update."""

    objective: Objective
    fresh: bool
    pulse: Pulse

    def __call__(
        self, model_output: Any, data: Any, dp_group: Any = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """``Σ weights · loss`` over the trained tokens of a micro-batch, and its metrics. ``logprob_diff…`` are of tokens
        sampled with the weights before the update: others differ because the weights have changed.

        verl averages gradients over data-parallel ranks, but we need their sum, so the loss is multiplied by the number
        of ranks. Raises FloatingPointError for a non-finite loss.
        """
        from verl.utils.metric import AggregationType, Metric

        self.pulse.beat()
        ranks = data["dp_size"]
        tokens, weights, versions = self._tokens(model_output, data)
        if not len(weights):
            total = tokens.new.sum()  # depends on the model, which must take part in the backward pass
        else:
            weighted = weights * self.objective(torch, tokens)
            if not torch.isfinite(weighted.detach()).all():
                raise FloatingPointError(_first_bad(weighted.detach(), tokens))
            total = weighted.sum()
        sums = self._sums(tokens, weights)
        differences = (tokens.new.detach() - tokens.old).abs()[versions == data[VERSION]]
        largest = differences.max().item() if len(differences) else 0.0
        sums |= {"logprob_diff": differences.sum().item(), "logprobs_compared": float(len(differences))}
        summed = {name: Metric(AggregationType.SUM, value * ranks) for name, value in sums.items()}
        return total * ranks, {**summed, "logprob_diff_max": Metric(AggregationType.MAX, largest)}

    def _tokens(self, model_output: Any, data: Any) -> tuple[LossTokens, torch.Tensor, torch.Tensor]:
        """The trained tokens, row by row, their weights, and the versions of the model that sampled them."""
        from verl.workers.utils.padding import no_padding_2_padding

        needs = self.objective.needs
        rows = data.select(*[name for name in (*FIELDS, "old_log_probs", "ref_log_prob") if name in data])
        rows = rows.to_padded_tensor()
        mask = rows["response_mask"].bool()
        numbers = (
            torch.arange(len(mask), device=mask.device)[:, None] * (rows["calls"].max() + 1) + rows["calls"]
        )
        new = no_padding_2_padding(model_output["log_probs"], data)[mask].float()
        before = new.detach() if self.fresh else rows.get("old_log_probs", None)
        tokens = LossTokens(
            new=new,
            old=rows["rollout_log_probs"][mask],
            advantages=rows["advantages"][mask],
            calls=torch.unique(numbers[mask], return_inverse=True)[1],
            before=None if "before" not in needs else before if self.fresh else before[mask],
            reference=rows["ref_log_prob"][mask] if "reference" in needs else None,
            entropy=no_padding_2_padding(model_output["entropy"], data)[mask].float()
            if "entropy" in needs
            else None,
        )
        return tokens, rows["weights"][mask], rows["weight_versions"][mask]

    def _sums(self, tokens: LossTokens, weights: torch.Tensor) -> dict[str, float]:
        """Sums of metrics over the trained tokens. Credit divides them by ``tokens_trained``."""
        sums = {"tokens_trained": float(len(weights))}
        if tokens.entropy is not None:
            sums["entropy"] = tokens.entropy.detach().sum().item()
        if tokens.reference is not None:
            sums["reference_kl"] = (tokens.new.detach() - tokens.reference).sum().item()
        if tokens.before is not None and self.objective.cap is not None:
            ratios = torch.exp(tokens.before - tokens.old)
            sums["correction_weight"] = ratios.clamp(max=self.objective.cap).sum().item()
            sums["correction_capped"] = float((ratios > self.objective.cap).sum())
        return sums


def _first_bad(weighted: torch.Tensor, tokens: LossTokens) -> str:
    index = int(torch.nonzero(~torch.isfinite(weighted))[0])
    return (
        f"non-finite loss ({weighted[index].item()}): logprob {tokens.new[index].item():.4g} new, "
        f"{tokens.old[index].item():.4g} old, advantage {tokens.advantages[index].item():.4g}"
    )
