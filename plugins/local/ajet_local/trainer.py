"""The trainer: AdamW steps on samples, for the model that the engine samples from, or for its adapters."""

from __future__ import annotations

import logging
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError

from ajet import AjetError
from ajet.interfaces.backbone import Batch, CheckpointDamaged, Loss, Measures, Metrics, Sample
from ajet.interfaces.engine import Float32
from ajet_local.critic import ValueHead
from ajet_local.engine import LocalEngine
from ajet_local.fused import fuse
from ajet_local.memory import out_of_memory, return_freed
from ajet_local.modeling import (
    UNREADABLE,
    checkpointed_layers,
    checkpointing,
    enable_checkpointing,
    first_line,
)
from ajet_local.one_pass import check_rows
from ajet_local.optimizers import OptimizerName, make_optimizer, show_small_updates
from ajet_local.plan import MicroBatch, plan, score, values
from ajet_local.shared import SharedSampler
from ajet_local.sight import vision_of_model
from ajet_local.tokens import TrainedTokens
from ajet_local.trees import enable_trees
from ajet_lora.adapters import Adapters
from ajet_lora.folders import FOLDER
from ajet_trees.head import head_of

log = logging.getLogger("ajet")
Computed = TypeVar("Computed")

STATE_FILE = "trainer.pt"
"""The file of a checkpoint with the optimizers' and critics' states and the weight version."""
SETTINGS = ("weight_decay", "eps", "betas")
"""What the job says of an optimizer's parameters beside the learning rate, which each batch sets."""
HEAD_RATE = 10.0
"""The learning rate of a critic's head, as a multiple of the model's: the head begins at 0, the model is trained already."""


@dataclass(slots=True)
class _Sums:
    """Sums over the mini-batches of an update, for the weights of one optimizer."""

    loss: float = 0.0
    grad_norm: float = 0.0
    steps: int = 0
    trained: int = 0
    skipped: int = 0
    logprob_diff_max: float = 0.0
    logprob_diff: float = 0.0
    """Sum of |new − old| over the `compared` tokens, those of the first mini-batch that were sampled."""
    compared: int = 0
    entropy: float = 0.0
    reference_kl: float = 0.0
    measures: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Iterable[_Sums]) -> _Sums:
        """The sums of several optimizers combined."""
        combine: dict[str, Callable[[Any, Any], Any]] = {"logprob_diff_max": max, "measures": added}
        total = cls()
        for part in parts:
            for name in cls.__slots__:
                one, other = getattr(total, name), getattr(part, name)
                setattr(total, name, combine.get(name, operator.add)(one, other))
        return total


@dataclass(frozen=True, slots=True)
class _Learner:
    """The weights of one optimizer: all of the model, or those of one adapter; and those of their critic."""

    parameters: Sequence[torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    head: ValueHead | None


class LocalTrainer:
    """`ajet.interfaces.backbone.Trainer` for a Hugging Face causal model. ``engine`` samples from the same model or, in
    asynchronous runs, from its own copy, which `publish` updates. A `SharedSampler` may sleep during updates.

    Reinforcement learning and supervised fine-tuning differ only in the batch's loss, advantages and weights.
    ``optimizer`` is AdamW (`make_optimizer`); gradients are clipped to the global norm ``max_grad_norm``. Samples are
    computed as trees, each shared token once, if the model supports that and it costs less (`ajet_local.plan`), else as
    padded rows. ``micro_batch_tokens`` bounds the tokens of one forward pass; ``gradient_checkpointing`` stores only each
    layer's input and recomputes the rest. Both affect memory, not results. ``reference`` is a frozen model on the same
    device, which fills `Sample.reference` for losses that need it, and is a part of the teacher of those that need one.

    With ``adapters``, those of ``model``, the model's own weights are frozen. Each adapter in ``trained`` (default:
    all) learns from the samples that name it, as if it were alone: it has its own gradient norm and optimizer state,
    and takes no step in a mini-batch without credit for it. The default reference is then the model without an adapter.
    ``autocast`` is the type of computations if the trained weights have a more precise one. In bfloat16, each
    step moves the policy (`ajet_local.optimizers`).

    With ``critic``, each optimizer also trains a head that predicts values, for losses that need them (`ajet_local.critic`).
    Policy and values share the model: a critic of its own would take as much memory again as the model and its optimizer.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        engine: LocalEngine | SharedSampler,
        *,
        optimizer: OptimizerName = "adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        adam_epsilon: float = 1e-8,
        max_grad_norm: float = 1.0,
        micro_batch_tokens: int = 16384,
        gradient_checkpointing: bool = False,
        reference: Any = None,
        adapters: Adapters | None = None,
        trained: Collection[str] | None = None,
        autocast: torch.dtype | None = None,
        critic: bool = False,
    ) -> None:
        self.model = model
        self.adapters = adapters
        self.autocast = autocast
        self.tokenizer = tokenizer
        self.engine = engine
        self.optimizer: OptimizerName = optimizer
        self.max_grad_norm = max_grad_norm
        self.micro_batch_tokens = micro_batch_tokens
        self.reference = reference
        for name, network in (("", model), ("the reference model: ", reference)):
            if network is None:
                continue
            with self._computing():
                reason = enable_trees(network)
                head_of(network)  # reports what it does not know
                check_rows(network)
            if reason:
                log.warning("%ssamples are computed as rows, not as trees: %s.", name, reason.rstrip("."))
        if auxiliary := getattr(model.config.get_text_config(), "router_aux_loss_coef", 0.0):
            log.warning("the routers' auxiliary loss (router_aux_loss_coef: %g) is not added.", auxiliary)
        if gradient_checkpointing:
            enable_checkpointing(model)

        def learner(parameters: Iterable[torch.nn.Parameter]) -> _Learner:
            head = ValueHead.on(model) if critic else None
            groups: list[dict[str, Any]] = [{"params": [p for p in parameters if p.requires_grad]}]
            if head is not None:
                groups.append({"params": list(head.parameters()), "rate": HEAD_RATE, "weight_decay": 0.0})
            trainable = [p for group in groups for p in group["params"]]
            own = groups[0]["params"]
            stepper = make_optimizer(
                optimizer, groups, betas=betas, weight_decay=weight_decay, epsilon=adam_epsilon
            )
            if autocast == torch.bfloat16 and adapters is None:
                show_small_updates(stepper, own)
            return _Learner(trainable, stepper, head)

        self._learners: dict[str | None, _Learner] = {}
        if adapters is None:
            self._learners[None] = learner(model.parameters())
        else:
            names = adapters.names if trained is None else [n for n in adapters.names if n in trained]
            adapters.train(names)
            self._learners |= {name: learner(adapters.parameters(name)) for name in names}

    def fuse(self) -> str:
        """Compile the parts of the model's layers (`ajet_local.fused`). Returns why that is not possible, or ""."""
        if isinstance(self.engine, LocalEngine) and self.engine.model is self.model:
            return "the engine samples from the same model"
        self._activate(next(iter(self._learners), None))
        return fuse(self.model, self._computing)

    @property
    def version(self) -> int:
        """Weight version that the engine serves."""
        return self.engine.version

    def update(self, batch: Batch) -> Metrics:
        """Take one AdamW step for each mini-batch and adapter in it, on ``Σ weights · loss`` over its trained tokens.

        Samples without credit are not computed (if `Batch.zero_costs_nothing`). A mini-batch of only such samples takes
        no step, so that the optimizer's momentum does not change the weights either. Returns these metrics:

        - ``loss`` and ``grad_norm``: means over the steps taken; with several adapters also ``loss/<adapter>`` and
          ``grad_norm/<adapter>``
        - ``optimizer_steps``, ``tokens_trained`` and ``tokens_zero_advantage``; the latter two add up to all masked
          tokens of the mini-batches
        - ``logprob_diff_max`` and ``logprob_diff_mean``: of |new − old| in the first computed mini-batch, before the weights
          change; 0 if nothing was sampled
        - ``entropy`` and ``reference_kl`` (new − reference), if the loss needs them: means over tokens
        - those of `Batch.measures`, means over the steps taken, and of `Batch.estimate`

        Raises FloatingPointError for a non-finite loss or gradient, before any step of its mini-batch, and ValueError
        for a sample whose adapter is not trained.
        """
        if isinstance(self.engine, SharedSampler):
            self.engine.sleep()
        else:
            self.engine.make_room()
        for learner in self._learners.values():
            for group in learner.optimizer.param_groups:
                group["lr"] = batch.learning_rate * group.get("rate", 1.0)
        sums_of: dict[str | None, _Sums] = {name: _Sums() for name in self._learners}
        samples, estimated = self._estimated(self._prepared(batch), batch)
        for number, indices in enumerate(batch.mini_batches, 1):
            title = f"mini-batch {number} of {len(batch.mini_batches)}"
            self._mini_batch([samples[i] for i in indices], batch, sums_of, title)
        sums = _Sums.of(sums_of.values())
        trained = max(sums.trained, 1)
        metrics = {
            **_means("", sums),
            "optimizer_steps": float(sums.steps),
            "tokens_trained": float(sums.trained),
            "tokens_zero_advantage": float(sums.skipped),
            "logprob_diff_max": sums.logprob_diff_max,
            "logprob_diff_mean": sums.logprob_diff / max(sums.compared, 1),
            **estimated,
            **{name: total / max(sums.steps, 1) for name, total in sums.measures.items()},
        }
        if "entropy" in batch.needs:
            metrics["entropy"] = sums.entropy / trained
        if "reference" in batch.needs:
            metrics["reference_kl"] = sums.reference_kl / trained
        if len(sums_of) > 1:
            for name, part in sums_of.items():
                metrics |= _means(f"/{name}", part)
        return metrics

    def _prepared(self, batch: Batch) -> Sequence[Sample]:
        """The batch's samples, with the logprobs added that its loss needs and they lack."""
        samples = list(batch.samples)
        for unknown in {s.adapter for s in samples} - self._learners.keys():
            raise ValueError(f"a sample trains {_named(unknown)}, which this trainer does not train")
        if not {"before", "reference"} & set(batch.needs):
            return samples
        live = [i for i, s in enumerate(samples) if batch.has_credit(s)]
        missing = [i for i in live if samples[i].reference is None]
        if "reference" in batch.needs and missing:
            lacking = [samples[i] for i in missing]
            scored = self._of_reference(lambda network: score(network, lacking, self.micro_batch_tokens))
            for i, logprobs in zip(missing, scored, strict=True):
                samples[i] = replace(samples[i], reference=logprobs)
        if "before" in batch.needs and len(batch.mini_batches) > 1:  # with one step, `before` is `new`
            for adapter in self._learners:
                own = [i for i in live if samples[i].adapter == adapter]
                self._activate(adapter)
                with self._computing():
                    scored = score(self.model, [samples[i] for i in own], self.micro_batch_tokens)
                for i, logprobs in zip(own, scored, strict=True):
                    samples[i] = replace(samples[i], before=logprobs)
        return samples

    def _estimated(self, samples: Sequence[Sample], batch: Batch) -> tuple[Sequence[Sample], Metrics]:
        """The samples with advantages that the critic's values before the update give, and metrics of the critic. Raises
        AjetError if there is no critic."""
        if batch.estimate is None:
            return samples, {}
        valued = list(samples)
        for adapter, learner in self._learners.items():
            own = [i for i, s in enumerate(samples) if s.adapter == adapter]
            if learner.head is None:
                raise AjetError("the loss needs a critic, but this trainer has none. Give it `needs`.")
            self._activate(adapter)
            with self._computing():
                estimates = values(
                    self.model, learner.head, [samples[i] for i in own], self.micro_batch_tokens
                )
            for i, numbers in zip(own, estimates, strict=True):
                valued[i] = replace(samples[i], values=numbers)
        return batch.estimate(valued)

    def _of_reference(self, compute: Callable[[Any], Computed]) -> Computed:
        """What ``compute`` finds with the reference model."""
        if self.reference is not None:
            return compute(self.reference)
        if self.adapters is None:
            raise AjetError(
                "the loss needs a reference model, but this trainer has none. Set train.kl or train.reference."
            )
        active = self.adapters.active
        self._activate(None)
        try:
            return compute(self.model)
        finally:
            self._activate(active)

    @torch.no_grad()
    def _teachers(self, hinted: MicroBatch, share: float) -> list[tuple[float, TrainedTokens]]:
        """What the current weights and those of the reference say of the tokens, with their shares of the teacher
        (arXiv:2601.20802, eq. 10); one without a share is not computed."""

        def read(network: Any) -> TrainedTokens:
            return hinted.tokens(network, {"teacher"})

        current = [(share, read(self.model))] if share > 0 else []
        return current + ([(1 - share, self._of_reference(read))] if share < 1 else [])

    def _computing(self) -> AbstractContextManager[None]:
        if self.autocast is None:
            return nullcontext()
        # Autocast's cache would keep all converted weights, which checkpointing frees layer by layer.
        cached = not checkpointed_layers(self.model)
        return torch.autocast(self.model.device.type, dtype=self.autocast, cache_enabled=cached)

    def _activate(self, adapter: str | None) -> None:
        if self.adapters is not None:
            self.adapters.activate(adapter)

    def _mini_batch(
        self, samples: Sequence[Sample], batch: Batch, sums_of: dict[str | None, _Sums], title: str
    ) -> None:
        """Compute the gradients of all adapters before any step, so that an error leaves all of them unchanged."""
        stepping = []
        for adapter, learner in self._learners.items():
            own = [s for s in samples if s.adapter == adapter]
            live = [s for s in own if batch.has_credit(s)]
            sums = sums_of[adapter]
            trained = sum(int(s.mask.sum()) for s in live)
            sums.trained += trained
            sums.skipped += sum(int(s.mask.sum()) for s in own) - trained
            learner.optimizer.zero_grad(set_to_none=True)
            if live:
                self._activate(adapter)
                self._gradients(learner, live, batch, sums, title)
                stepping.append(learner)
        for learner in stepping:
            learner.optimizer.step()
            learner.optimizer.zero_grad(set_to_none=True)

    def _gradients(
        self, learner: _Learner, samples: Sequence[Sample], batch: Batch, sums: _Sums, title: str
    ) -> None:
        """Compute the clipped gradients of samples that all train the active adapter."""
        for micro_batch in plan(self.model, samples, self.micro_batch_tokens):
            return_freed(self.model.device)
            with checkpointing(self.model):
                with self._computing():
                    tokens = micro_batch.tokens(self.model, batch.needs, learner.head)
                    if "teacher" in batch.needs:
                        tokens = tokens.taught(self._teachers(micro_batch.hinted(), batch.teacher_share))
                total = _total_loss(batch.loss, tokens, micro_batch.samples, title)
                total.backward()
            sums.loss += total.item()
            if batch.measures is not None:
                sums.measures = added(sums.measures, _measured(batch.measures, tokens))
            if tokens.entropy is not None:
                sums.entropy += tokens.entropy.sum().item()
            if tokens.reference is not None:
                sums.reference_kl += (tokens.new.detach() - tokens.reference).sum().item()
            if sums.steps == 0:
                differences = _differences(tokens)
                sums.logprob_diff_max = max(sums.logprob_diff_max, float(differences.max(initial=0.0)))
                sums.logprob_diff += float(differences.sum())
                sums.compared += len(differences)
        return_freed(self.model.device)
        norm = torch.nn.utils.clip_grad_norm_(learner.parameters, self.max_grad_norm)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the gradient's norm is {norm.item()} in {title}; no step was taken")
        sums.steps += 1
        sums.grad_norm += norm.item()

    async def publish(self) -> int:
        """Copy the weights to the engine's model, unless it is the same model, and increase the weight version. Call it
        on the engine's loop. Weights that both models share are not copied."""
        if isinstance(self.engine, SharedSampler):
            return await self.engine.renew()
        self._copy_to_engine()
        self.engine.version += 1
        return self.engine.version

    def _copy_to_engine(self) -> None:
        if self.engine.model is not self.model:
            with torch.no_grad():
                for theirs, ours in zip(self.engine.model.parameters(), self.model.parameters(), strict=True):
                    if theirs is not ours:
                        theirs.copy_(ours)

    def save(self, path: Path) -> None:
        """Write the tokenizer, `STATE_FILE` and the model (Hugging Face layout) into the folder ``path``; if adapters are
        trained, all adapters (peft's layout, one folder each) instead of the model. Raises OSError."""
        path.mkdir(parents=True, exist_ok=True)
        optimizers = {name: learner.optimizer.state_dict() for name, learner in self._learners.items()}
        critics = {
            name: learner.head.state_dict() for name, learner in self._learners.items() if learner.head
        }
        with _system_errors():
            self.tokenizer.save_pretrained(path)
            if vision := vision_of_model(self.model):
                vision.processor.save_pretrained(path)
            if self.adapters is None:
                self.model.save_pretrained(path)
            else:
                for name in self.adapters.names:
                    self.adapters.save(name, path / FOLDER / name)
            with (path / STATE_FILE).open("wb") as file:
                state = {"optimizer": self.optimizer, "optimizers": optimizers, "critics": critics}
                torch.save(state | {"version": self.version}, file)

    def load(self, path: Path) -> None:
        """Restore what `save` wrote, bit for bit, also in the engine.

        Raises `AjetError` if ``path`` was not written by `save`, or has other adapters or another optimizer, and
        `CheckpointDamaged` if a file cannot be read.
        """
        if not (path / STATE_FILE).is_file():
            raise AjetError(f"checkpoint {path}: no {STATE_FILE}. Give a folder written by this backbone.")
        with _reading(path / STATE_FILE):
            state = torch.load(path / STATE_FILE, map_location=self.model.device, weights_only=True)
            optimizers, version, critics = state["optimizers"], state["version"], state.get("critics", {})
        if optimizers.keys() != self._learners.keys():
            trained, stored = (", ".join(map(_named, names)) for names in (self._learners, optimizers))
            raise AjetError(
                f"checkpoint {path}: contains the training of {stored}, but the job trains {trained}."
            )
        kind = state.get("optimizer", "adamw")
        if kind != self.optimizer:
            raise AjetError(
                f"checkpoint {path}: contains the state of {kind}, but the job sets backbone.local.optimizer: {self.optimizer}."
            )
        if bool(critics) != any(learner.head for learner in self._learners.values()):
            stored, wanted = ("a critic" if has else "no critic" for has in (critics, not critics))
            raise AjetError(f"checkpoint {path}: contains {stored}, but the job's algorithm needs {wanted}.")
        if self.adapters is None:
            with _reading(path):
                saved = type(self.model).from_pretrained(path, dtype=self.model.dtype)
            self.model.load_state_dict(saved.state_dict())
        else:
            for adapter in self.adapters.names:
                with _reading(path / FOLDER / adapter):
                    self.adapters.restore(adapter, path / FOLDER / adapter)
        self._copy_to_engine()
        for name, learner in self._learners.items():
            # The job's settings, which a resumed run may change, are not those of the checkpoint.
            own = [{n: g[n] for n in SETTINGS if n in g} for g in learner.optimizer.param_groups]
            learner.optimizer.load_state_dict(optimizers[name])
            for group, settings in zip(learner.optimizer.param_groups, own, strict=True):
                group.update(settings)
            if learner.head is not None:
                learner.head.load_state_dict(critics[name])
        self.engine.version = version


@contextmanager
def _system_errors() -> Iterator[None]:
    """A block whose libraries wrap errors of the system when they write files; raises the OSError itself."""
    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):  # torch
            cause = cause.__cause__ or cause.__context__
        number = re.search(r"\(os error (\d+)\)", str(error))  # safetensors
        if cause is None and number:
            cause = OSError(int(number[1]), os.strerror(int(number[1])))
        if cause is None:
            raise
        raise cause from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """A block that reads a part of a checkpoint. Raises CheckpointDamaged if that fails for another reason than memory
    or the file system."""
    try:
        yield
    except UNREADABLE as error:
        if out_of_memory(error) or (isinstance(error, OSError) and error.errno):
            raise
        raise CheckpointDamaged(f"{path}: {first_line(error)}") from error


def _means(suffix: str, sums: _Sums) -> Metrics:
    """The metrics that are means over the steps taken."""
    steps = max(sums.steps, 1)
    return {f"loss{suffix}": sums.loss / steps, f"grad_norm{suffix}": sums.grad_norm / steps}


def _named(adapter: str | None) -> str:
    return "all weights" if adapter is None else f"the adapter {adapter!r}"


def _total_loss(loss: Loss, tokens: TrainedTokens, samples: Sequence[Sample], title: str) -> torch.Tensor:
    """``Σ weights · loss`` of a micro-batch. Raises FloatingPointError, which names the first non-finite token."""
    weighted = tokens.weights * loss(torch, tokens)
    bad = torch.nonzero(~torch.isfinite(weighted.detach()))
    if len(bad):
        index = int(bad[0])
        raise FloatingPointError(
            f"non-finite loss ({weighted[index].item()}) in {title}, {tokens.describe(index, samples)}: "
            f"logprob {tokens.new[index].item():.4g} new, {tokens.old[index].item():.4g} old, "
            f"advantage {tokens.advantages[index].item():.4g}, weight {tokens.weights[index].item():.4g}"
        )
    return weighted.sum()


def added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The sums of two metrics of each name."""
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


@torch.no_grad()
def _measured(measures: Measures, tokens: TrainedTokens) -> dict[str, float]:
    """The weighted sums of what is measured of each token."""
    figures = measures(torch, tokens)
    return {name: (tokens.weights * numbers).sum().item() for name, numbers in figures.items()}


def _differences(tokens: TrainedTokens) -> Float32:
    """|new − old| of the tokens that were sampled."""
    differences: Float32 = (tokens.new.detach() - tokens.old).abs().cpu().numpy()
    return differences[~np.isnan(differences)]
