"""The trainer: AdamW steps at Tinker on losses that are computed here."""

from __future__ import annotations

import secrets
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ajet.interfaces.backbone import Batch, CheckpointDamaged, Metrics, Sample
from ajet.interfaces.engine import Float32
from ajet.job.models import generation_config
from ajet_tinker.datums import DatumTokens, datum, length
from ajet_tinker.engine import TinkerEngine
from ajet_tinker.probe import gradients
from ajet_tinker.saved import Saved
from ajet_tinker.service import TinkerFailed, TinkerService

if TYPE_CHECKING:
    from tinker import SamplingClient, TrainingClient
    from tinker.types import AdamParams

BETAS = (0.9, 0.999)
"""Of AdamW, as in the backbone `local`."""


@dataclass(slots=True)
class _UpdateSums:
    """Sums over the mini-batches of an update."""

    loss: float = 0.0
    steps: int = 0
    trained: int = 0
    skipped: int = 0
    logprob_diff_max: float = 0.0
    reference_kl: float = 0.0
    measures: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """The settings of AdamW, besides the learning rate."""

    weight_decay: float
    epsilon: float
    max_grad_norm: float

    def at(self, learning_rate: float) -> AdamParams:
        """The parameters of one step."""
        from tinker.types import AdamParams

        return AdamParams(
            learning_rate=learning_rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            eps=self.epsilon,
            weight_decay=self.weight_decay,
            grad_clip_norm=self.max_grad_norm,
        )


class TinkerTrainer:
    """`ajet.interfaces.backbone.Trainer` for a LoRA at Tinker.

    Each mini-batch is one `forward_backward_custom`: Tinker computes the logprobs of the trained tokens, this process the
    loss and its gradient for each logprob, and Tinker the gradient of the weights from these. So every loss of logprobs
    has its exact gradient. The training client is created with its first use: a run that is resumed loads one instead.
    """

    def __init__(
        self,
        service: TinkerService,
        tokenizer: Any,
        *,
        base_model: str,
        rank: int,
        model_type: str,
        context_length: int,
        create: Callable[[], TrainingClient],
        optimizer: Optimizer,
        ttl_seconds: int | None = None,
    ) -> None:
        self.service = service
        self.tokenizer = tokenizer
        self.base_model = base_model
        self.rank = rank
        self.optimizer = optimizer
        self.ttl_seconds = ttl_seconds
        self.averaged = False
        """See `ajet_tinker.probe.gradients`."""
        self.engine = TinkerEngine(service, tokenizer, model_type, context_length, self._sampler)
        self._create = create
        self._created: TrainingClient | None = None
        self._base: SamplingClient | None = None

    @property
    def version(self) -> int:
        """Weight version that the engine serves."""
        return self.engine.version

    def update(self, batch: Batch) -> Metrics:
        """Take one AdamW step for each mini-batch, on ``Σ weights · loss`` over its trained tokens. Blocks.

        Samples without credit are not sent (if `Batch.zero_costs_nothing`), and a mini-batch of only such samples takes no
        step. Returns ``loss`` (mean over the steps taken), ``optimizer_steps``, ``tokens_trained``,
        ``tokens_zero_advantage``, ``logprob_diff_max`` (max |new − old| in the first step, before the weights change) and,
        if the loss needs it, ``reference_kl``. Raises FloatingPointError for a non-finite loss, before the step, and
        ServiceFailed; after either, training continues only from a checkpoint.
        """
        sums = _UpdateSums()
        samples = self._prepared(batch)
        for number, indices in enumerate(batch.mini_batches, 1):
            chosen = [samples[i] for i in indices]
            live = [s for s in chosen if batch.has_credit(s)]
            trained = sum(int(s.mask.sum()) for s in live)
            sums.trained += trained
            sums.skipped += sum(int(s.mask.sum()) for s in chosen) - trained
            if live:
                self._step(live, batch, sums, f"mini-batch {number} of {len(batch.mini_batches)}")
        metrics = {
            "loss": sums.loss / max(sums.steps, 1),
            "optimizer_steps": float(sums.steps),
            "tokens_trained": float(sums.trained),
            "tokens_zero_advantage": float(sums.skipped),
            "logprob_diff_max": sums.logprob_diff_max,
            **{name: total / max(sums.steps, 1) for name, total in sums.measures.items()},
        }
        if "reference" in batch.needs:
            metrics["reference_kl"] = sums.reference_kl / max(sums.trained, 1)
        return metrics

    def _step(self, samples: Sequence[Sample], batch: Batch, sums: _UpdateSums, title: str) -> None:
        def loss(data: object, logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
            tokens = DatumTokens.of(samples, logprobs, batch.needs)
            total = (tokens.weights * batch.loss(torch, tokens)).sum()
            if not torch.isfinite(total):
                raise FloatingPointError(f"the loss is {total.item()} in {title}; no step was taken")
            sums.loss += total.item()
            for name, numbers in (batch.measures(torch, tokens) if batch.measures else {}).items():
                sums.measures[name] += (tokens.weights * numbers).sum().item()
            if tokens.reference is not None:
                sums.reference_kl += (tokens.new.detach() - tokens.reference).sum().item()
            if sums.steps == 0:
                sums.logprob_diff_max = _largest_difference(tokens)
            return total, {}

        client = self._client()
        # Both are sent at once, because the service works in cycles. It takes no step if the loss fails.
        data = [datum(sample) for sample in samples]
        asked = gradients(self.service, client, data, loss, averaged=self.averaged)
        step = client.optim_step(self.optimizer.at(batch.learning_rate))
        self.service.wait(asked, f"forward_backward of {title}")
        self.service.wait(step, f"optim_step of {title}")
        sums.steps += 1

    def _prepared(self, batch: Batch) -> Sequence[Sample]:
        """The batch's samples, with the logprobs added that its loss needs and they lack."""
        samples = list(batch.samples)
        live = [i for i, sample in enumerate(samples) if batch.has_credit(sample)]
        missing = [i for i in live if samples[i].reference is None]
        if "reference" in batch.needs and missing:
            scored = self._reference_logprobs([samples[i] for i in missing])
            for i, logprobs in zip(missing, scored, strict=True):
                samples[i] = replace(samples[i], reference=logprobs)
        if "before" in batch.needs and len(batch.mini_batches) > 1 and live:  # else `before` is `new`
            scored = self._own_logprobs([samples[i] for i in live])
            for i, logprobs in zip(live, scored, strict=True):
                samples[i] = replace(samples[i], before=logprobs)
        return samples

    def _own_logprobs(self, samples: Sequence[Sample]) -> list[Float32]:
        """Logprobs under the current weights, float32[T] for each sample, NaN where there are none."""
        asked = self._client().forward([datum(sample) for sample in samples], "cross_entropy")
        outputs = self.service.wait(asked, "forward").loss_fn_outputs
        return [
            _whole(sample, output["logprobs"].to_numpy())
            for sample, output in zip(samples, outputs, strict=True)
        ]

    def _reference_logprobs(self, samples: Sequence[Sample]) -> list[Float32]:
        """Logprobs under the base model, as in `_own_logprobs`."""
        from tinker import ModelInput

        if self._base is None:
            self._base = self.service.sampler(base_model=self.base_model)
        asked = [
            self._base.compute_logprobs(ModelInput.from_ints(s.token_ids[: length(s)].tolist()))
            for s in samples
        ]
        scored = [self.service.wait(future, "scoring with the base model") for future in asked]
        return [
            _whole(sample, np.array(logprobs[1:], dtype=np.float32))
            for sample, logprobs in zip(samples, scored, strict=True)
        ]

    async def publish(self) -> int:
        """Let the engine sample from the new weights, and increase the weight version. Raises ServiceFailed."""
        saving = self._client().save_weights_and_get_sampling_client()
        sampler = await self.service.result(saving, "publishing the weights")
        self.engine.load(sampler, self.version + 1)
        return self.version

    def save(self, path: Path) -> None:
        """Save weights and optimizer state at Tinker, and write their paths and the tokenizer into the folder ``path``.
        Raises OSError and ServiceFailed."""
        client = self._client()
        name = f"ajet-{self.version:06d}-{secrets.token_hex(4)}"  # a name that is taken would be refused
        saving = client.save_state(name, ttl_seconds=self.ttl_seconds)
        for_sampling = client.save_weights_for_sampler(name, ttl_seconds=self.ttl_seconds)
        saved = Saved(
            base_model=self.base_model,
            rank=self.rank,
            model_type=self.engine.model_type,
            version=self.version,
            state=self.service.wait(saving, "save_state").path,
            sampler=self.service.wait(for_sampling, "save_weights_for_sampler").path,
        )
        path.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save_pretrained(path)
        if config := generation_config(self.tokenizer.name_or_path):  # it names tokens that end an answer
            shutil.copyfile(config, path / config.name)
        saved.write(path)

    def load(self, path: Path) -> None:
        """Continue from what `save` wrote: weights, optimizer state and version, also in the engine. Raises
        CheckpointDamaged if the file cannot be read or Tinker no longer has the weights, and ServiceFailed."""
        saved = Saved.read(path)
        try:
            client = self.service.restore(saved.state, optimizer=True)
            sampler = self.service.sampler(path=saved.sampler)
        except TinkerFailed as error:
            if not error.refused:
                raise
            raise CheckpointDamaged(f"{path}: {error}") from error
        self._created = client
        self.engine.load(sampler, saved.version)

    def _client(self) -> TrainingClient:
        if self._created is None:
            self._created = self._create()
        return self._created

    def _sampler(self) -> SamplingClient:
        """What samples from the weights before the first step."""
        saving = self._client().save_weights_and_get_sampling_client()
        return self.service.wait(saving, "publishing the weights")


def _whole(sample: Sample, targets: np.ndarray) -> Float32:
    """float32[T]: the logprobs of a sample's targets (see `datum`) at the positions of their tokens, else NaN."""
    logprobs = np.full(len(sample.token_ids), np.nan, dtype=np.float32)
    logprobs[1 : len(targets) + 1] = targets
    return logprobs


def _largest_difference(tokens: DatumTokens) -> float:
    difference = (tokens.new.detach() - tokens.old).abs()
    sampled = difference[~torch.isnan(tokens.old)]
    return float(sampled.max()) if len(sampled) else 0.0
