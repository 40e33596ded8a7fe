"""The trainer: samples in, AdamW steps out, on the model that the engine samples from."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from ajet.types import AjetError, Batch, Loss, Metrics, Sample
from ajet_local.engine import LocalEngine
from ajet_local.modeling import checkpointing, enable_checkpointing
from ajet_local.plan import plan, score
from ajet_local.tokens import TrainedTokens
from ajet_local.trees import enable_trees

log = logging.getLogger("ajet")

STATE_FILE = "trainer.pt"
"""Beside the Hugging Face files: the optimizer's state and the weight version."""


@dataclass(slots=True)
class _Sums:
    """What an update adds up over its mini-batches."""

    loss: float = 0.0
    grad_norm: float = 0.0
    steps: int = 0
    trained: int = 0
    skipped: int = 0
    logprob_diff_max: float = 0.0
    entropy: float = 0.0
    reference_kl: float = 0.0


class LocalTrainer:
    """`ajet.backbone.Trainer` for a Hugging Face causal model, shared with ``engine``; or, for asynchronous
    runs, beside the engine's own, which `publish` brings up to date.

    Serves reinforcement learning and supervised fine-tuning alike: what differs is the batch's
    loss, advantages and weights. AdamW (Loshchilov & Hutter, arXiv:1711.05101); gradients are
    clipped to the global norm ``max_grad_norm``. Samples are computed as trees, every token that they share
    once, where the model can and it pays (`ajet_local.plan`), else as padded rows. ``micro_batch_tokens``
    bounds the tokens of one forward pass, ``gradient_checkpointing`` keeps only each layer's input and
    computes the rest again: both change memory, not results. ``reference`` is a frozen model on the same
    device, which fills `Sample.reference` for losses that need it.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        engine: LocalEngine,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        adam_epsilon: float = 1e-8,
        max_grad_norm: float = 1.0,
        micro_batch_tokens: int = 16384,
        gradient_checkpointing: bool = False,
        reference: Any = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.engine = engine
        self.max_grad_norm = max_grad_norm
        self.micro_batch_tokens = micro_batch_tokens
        self.reference = reference
        for name, network in (("", model), ("the reference model: ", reference)):
            cannot = enable_trees(network) if network is not None else ""
            if cannot:
                log.warning("%ssamples are computed as rows, not as trees: %s.", name, cannot.rstrip("."))
        if gradient_checkpointing:
            enable_checkpointing(model)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            betas=betas,
            weight_decay=weight_decay,
            eps=adam_epsilon,
            fused=model.device.type in ("cpu", "cuda"),
        )

    @property
    def version(self) -> int:
        """Weight version that the engine serves."""
        return self.engine.version

    def update(self, batch: Batch) -> Metrics:
        """One AdamW step per mini-batch on ``Σ weights · loss`` over its trained tokens.

        Samples without credit are not computed (where `Batch.zero_costs_nothing`), and a mini-batch of
        none but such takes no step: not even the optimizer's momentum moves the weights. Returns ``loss``
        and ``grad_norm`` (means over the steps taken), ``optimizer_steps``, ``tokens_trained`` and
        ``tokens_zero_advantage`` (together all masked tokens of the mini-batches), ``logprob_diff_max``:
        max |new − old| in the first mini-batch computed, when the weights are still the sampling ones (0 if
        nothing was sampled), and, where the loss needs them, the means over tokens of ``entropy`` and of
        ``reference_kl``, new − reference. Raises FloatingPointError at a non-finite loss or gradient,
        before the step that it would spoil.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = batch.learning_rate
        sums = _Sums()
        samples = self._prepared(batch)
        for number, indices in enumerate(batch.mini_batches, 1):
            place = f"mini-batch {number} of {len(batch.mini_batches)}"
            self._mini_batch([samples[i] for i in indices], batch, sums, place)
        steps, trained = max(sums.steps, 1), max(sums.trained, 1)
        metrics = {
            "loss": sums.loss / steps,
            "grad_norm": sums.grad_norm / steps,
            "optimizer_steps": float(sums.steps),
            "tokens_trained": float(sums.trained),
            "tokens_zero_advantage": float(sums.skipped),
            "logprob_diff_max": sums.logprob_diff_max,
        }
        if "entropy" in batch.needs:
            metrics["entropy"] = sums.entropy / trained
        if "reference" in batch.needs:
            metrics["reference_kl"] = sums.reference_kl / trained
        return metrics

    def _prepared(self, batch: Batch) -> Sequence[Sample]:
        """The batch's samples, with the logprobs that its loss needs and that they do not bring."""
        samples = list(batch.samples)
        if not {"before", "reference"} & set(batch.needs):
            return samples
        live = [i for i, s in enumerate(samples) if _counts(s, batch)]
        missing = [i for i in live if samples[i].reference is None]
        if "reference" in batch.needs and missing:
            if self.reference is None:
                raise AjetError(
                    "the loss needs a reference model, but this trainer has none: set train.kl or train.reference."
                )
            found = score(self.reference, [samples[i] for i in missing], self.micro_batch_tokens)
            for i, logprobs in zip(missing, found, strict=True):
                samples[i] = replace(samples[i], reference=logprobs)
        if "before" in batch.needs and len(batch.mini_batches) > 1:  # with one step, `new` is just that
            found = score(self.model, [samples[i] for i in live], self.micro_batch_tokens)
            for i, logprobs in zip(live, found, strict=True):
                samples[i] = replace(samples[i], before=logprobs)
        return samples

    def _mini_batch(self, samples: Sequence[Sample], batch: Batch, sums: _Sums, place: str) -> None:
        live = [s for s in samples if _counts(s, batch)]
        trained = sum(int(s.mask.sum()) for s in live)
        sums.trained += trained
        sums.skipped += sum(int(s.mask.sum()) for s in samples) - trained
        if not live:
            return
        self._optimizer.zero_grad(set_to_none=True)
        for micro_batch in plan(self.model, live, self.micro_batch_tokens):
            with checkpointing(self.model):
                tokens = micro_batch.tokens(self.model, batch.needs)
                total = _total_loss(batch.loss, tokens, micro_batch.samples, place)
                total.backward()
            sums.loss += total.item()
            if tokens.entropy is not None:
                sums.entropy += tokens.entropy.sum().item()
            if tokens.reference is not None:
                sums.reference_kl += (tokens.new.detach() - tokens.reference).sum().item()
            if sums.steps == 0:
                sums.logprob_diff_max = max(sums.logprob_diff_max, _largest_difference(tokens))
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.max_grad_norm)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the gradient's norm is {norm.item()} in {place}; no step was taken")
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        sums.steps += 1
        sums.grad_norm += norm.item()

    async def publish(self) -> int:
        """Bring the weights to the engine, on its own loop, if it does not sample from these anyway; the
        version rises."""
        self._copy_to_engine()
        self.engine.version += 1
        return self.engine.version

    def _copy_to_engine(self) -> None:
        if self.engine.model is not self.model:
            with torch.no_grad():
                for theirs, ours in zip(self.engine.model.parameters(), self.model.parameters(), strict=True):
                    theirs.copy_(ours)

    def save(self, path: Path) -> None:
        """Write weights (safetensors), config, tokenizer and `STATE_FILE` into ``path``."""
        path.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        torch.save({"optimizer": self._optimizer.state_dict(), "version": self.version}, path / STATE_FILE)

    def load(self, path: Path) -> None:
        """Restore what `save` wrote, bit for bit, for the engine too.

        Raises `AjetError` when ``path`` was not written by `save`.
        """
        if not (path / STATE_FILE).is_file():
            raise AjetError(f"checkpoint {path}: no {STATE_FILE}. Give a folder written by this backbone.")
        saved = AutoModelForCausalLM.from_pretrained(path, dtype=self.model.dtype)
        self.model.load_state_dict(saved.state_dict())
        self._copy_to_engine()
        state = torch.load(path / STATE_FILE, map_location=self.model.device, weights_only=True)
        self._optimizer.load_state_dict(state["optimizer"])
        self.engine.version = state["version"]


def _counts(sample: Sample, batch: Batch) -> bool:
    """Whether the loss of a sample moves any weight: by zero weight · advantage everywhere, the gradient is 0."""
    credit = sample.mask & (sample.weights * sample.advantages != 0)
    return bool(np.any(credit)) or not batch.zero_costs_nothing


def _total_loss(loss: Loss, tokens: TrainedTokens, samples: Sequence[Sample], place: str) -> torch.Tensor:
    """``Σ weights · loss`` of a micro-batch; FloatingPointError names its first non-finite token."""
    weighted = tokens.weights * loss(torch, tokens)
    bad = torch.nonzero(~torch.isfinite(weighted.detach()))
    if len(bad):
        index = int(bad[0])
        raise FloatingPointError(
            f"non-finite loss ({weighted[index].item()}) in {place}, {tokens.place(index, samples)}: "
            f"logprob {tokens.new[index].item():.4g} new, {tokens.old[index].item():.4g} old, "
            f"advantage {tokens.advantages[index].item():.4g}, weight {tokens.weights[index].item():.4g}"
        )
    return weighted.sum()


def _largest_difference(tokens: TrainedTokens) -> float:
    difference = (tokens.new.detach() - tokens.old).abs()
    sampled = difference[~torch.isnan(tokens.old)]
    return float(sampled.max()) if len(sampled) else 0.0
