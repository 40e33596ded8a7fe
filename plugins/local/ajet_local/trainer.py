"""The trainer: samples in, AdamW steps out, on the model that the engine samples from."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from ajet.types import AjetError, Batch, Loss, Metrics, Sample
from ajet_local.engine import LocalEngine
from ajet_local.modeling import checkpointing, enable_checkpointing
from ajet_local.rows import TrainedTokens, has_credit
from ajet_local.trees import enable_trees, plan

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


class LocalTrainer:
    """`ajet.backbone.Trainer` for a Hugging Face causal model, shared with ``engine``.

    Serves reinforcement learning and supervised fine-tuning alike: what differs is the batch's
    loss, advantages and weights. AdamW (Loshchilov & Hutter, arXiv:1711.05101); gradients are
    clipped to the global norm ``max_grad_norm``. Samples are computed as trees, every token that they share
    once, where the model can and it pays (`ajet_local.trees`), else as padded rows. ``micro_batch_tokens``
    bounds the tokens of one forward pass, ``gradient_checkpointing`` keeps only each layer's input and
    computes the rest again: both change memory, not results.
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
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.engine = engine
        self.max_grad_norm = max_grad_norm
        self.micro_batch_tokens = micro_batch_tokens
        cannot = enable_trees(model)
        if cannot:
            log.warning("samples are trained as rows, not as trees: %s.", cannot.rstrip("."))
        self._trees = not cannot
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

        Samples without credit are not computed, and a mini-batch of none but such takes no step: not
        even the optimizer's momentum moves the weights. Returns ``loss`` and ``grad_norm`` (means over
        the steps taken), ``optimizer_steps``, ``tokens_trained`` and ``tokens_zero_advantage`` (together
        all masked tokens of the mini-batches), and ``logprob_diff_max``: max |new − old| in the first
        mini-batch computed, when the weights are still the sampling ones (0 if nothing was sampled).
        Raises FloatingPointError at a non-finite loss or gradient, before the step that it would spoil.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = batch.learning_rate
        sums = _Sums()
        for number, indices in enumerate(batch.mini_batches, 1):
            place = f"mini-batch {number} of {len(batch.mini_batches)}"
            self._mini_batch([batch.samples[i] for i in indices], batch.loss, sums, place)
        steps = max(sums.steps, 1)
        return {
            "loss": sums.loss / steps,
            "grad_norm": sums.grad_norm / steps,
            "optimizer_steps": float(sums.steps),
            "tokens_trained": float(sums.trained),
            "tokens_zero_advantage": float(sums.skipped),
            "logprob_diff_max": sums.logprob_diff_max,
        }

    def _mini_batch(self, samples: Sequence[Sample], loss: Loss, sums: _Sums, place: str) -> None:
        live = [s for s in samples if has_credit(s)]
        trained = sum(int(s.mask.sum()) for s in live)
        sums.trained += trained
        sums.skipped += sum(int(s.mask.sum()) for s in samples) - trained
        if not live:
            return
        self._optimizer.zero_grad(set_to_none=True)
        work = plan(self.model, live, self.micro_batch_tokens, self._trees)
        for group in work.groups:
            with checkpointing(self.model):
                tokens = work.tokens(self.model, group)
                total = _total_loss(loss, tokens, group, place)
                total.backward()
            sums.loss += total.item()
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
        """The engine samples from the same weights and keeps no cache between requests: only the
        version rises."""
        self.engine.version += 1
        return self.engine.version

    def save(self, path: Path) -> None:
        """Write weights (safetensors), config, tokenizer and `STATE_FILE` into ``path``."""
        path.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        torch.save({"optimizer": self._optimizer.state_dict(), "version": self.version}, path / STATE_FILE)

    def load(self, path: Path) -> None:
        """Restore what `save` wrote, bit for bit, into the model that engine and trainer share.

        Raises `AjetError` when ``path`` was not written by `save`.
        """
        if not (path / STATE_FILE).is_file():
            raise AjetError(f"checkpoint {path}: no {STATE_FILE}. Give a folder written by this backbone.")
        saved = AutoModelForCausalLM.from_pretrained(path, dtype=self.model.dtype)
        self.model.load_state_dict(saved.state_dict())
        state = torch.load(path / STATE_FILE, map_location=self.model.device, weights_only=True)
        self._optimizer.load_state_dict(state["optimizer"])
        self.engine.version = state["version"]


def _total_loss(loss: Loss, tokens: TrainedTokens, samples: Sequence[Sample], place: str) -> torch.Tensor:
    """``Σ weights · loss`` of a micro-batch; FloatingPointError names its first non-finite token."""
    weighted = tokens.weights * loss(torch, tokens.new, tokens.old, tokens.advantages)
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
