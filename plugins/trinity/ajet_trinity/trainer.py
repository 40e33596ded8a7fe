"""The trainer: hands batches to the learner, and its weights to the engine."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ajet import AjetError
from ajet.interfaces.backbone import Batch, CheckpointDamaged, Metrics, Need
from ajet.job.models import generation_config
from ajet_trinity import weights
from ajet_trinity.batches import RowLayout, Rows, rows_of, write_rows
from ajet_trinity.engine import Sampler
from ajet_trinity.learner import LearnerFailed, TrinityLearner
from ajet_trinity.spool import link, measured

if TYPE_CHECKING:
    import torch

STATE = "trinity.json"
"""The file of a checkpoint with Trinity's step and the weight version."""
WEIGHTS = "model.safetensors"
SHARDS = "trinity"
"""The folder of a checkpoint with Trinity's own: shards of weights and of the optimizer's state."""
LATEST = "latest_checkpointed_iteration.txt"
"""The file from which Trinity reads the step to continue from."""
PREFIX = "actor/ajet_"
"""Of what our loss reports, among Trinity's metrics."""
UNTRAINED = ("loss", "grad_norm", "logprob_diff_max", "logprob_diff_mean", "tokens_trained")
"""Metrics that are 0 if nothing had credit."""
WHOLE = ".full_checkpoint"
"""The file by which Trinity knows a checkpoint that it may not remove."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """What the learner reports of an update."""

    tokens: int
    """Those of which it has computed the loss."""
    loss: float
    """The sum over all optimizer steps."""
    norms: Sequence[float]
    """The gradient's norm in each optimizer step."""
    metrics: Metrics

    @classmethod
    def of(
        cls, report: Mapping[str, float], norms: Sequence[float], rows: Rows, needs: Collection[Need]
    ) -> _Taken:
        """``report`` are Trinity's metrics, means over its mini-batches."""

        def total(name: str) -> float:
            return report.get(f"{PREFIX}{name}", math.nan) * rows.chunks

        tokens = total("tokens")
        metrics = {
            "logprob_diff_max": report.get(f"{PREFIX}max_difference", math.nan),
            "logprob_diff_mean": total("difference") / max(total("compared"), 1),
            "seconds_trinity": report.get("time/train_step", math.nan),
        }
        if "reference" in needs:
            metrics["reference_kl"] = total("divergence") / max(tokens, 1)
        reported = (name.removeprefix(PREFIX) for name in report if name.startswith(PREFIX))
        metrics |= {name: total(key) / rows.steps for key in reported if (name := measured(key)) is not None}
        loss = total("objective")
        if "entropy" in needs:
            metrics["entropy"] = total("entropy") / max(tokens, 1)
            loss -= total("bonus")
        return cls(round(tokens) if math.isfinite(tokens) else 0, loss, norms, metrics)


class TrinityTrainer:
    """`ajet.interfaces.backbone.Trainer` over a `TrinityLearner`. ``model`` is the folder of the first weights, ``temperature`` that at
    which all trained tokens are sampled."""

    def __init__(
        self,
        learner: TrinityLearner,
        sampler: Sampler,
        *,
        model: Path,
        layout: RowLayout,
        temperature: float,
    ) -> None:
        self.engine = sampler
        self.learner = learner
        self.spool = learner.spool
        self.model = model
        self.layout = layout
        self.temperature = temperature
        self._step = 0
        """Trinity's steps so far. A batch without credit is none."""
        self._whole = 0
        """The step of which Trinity has a checkpoint."""
        self._norms = 0
        """Lines of the spool's file of that name that have been read."""
        self._files = weights.files_of(model)
        """Of the current weights."""

    @property
    def version(self) -> int:
        """Weight version that the engine serves."""
        return self.engine.version

    def update(self, batch: Batch) -> Metrics:
        """Let Trinity take one AdamW step for each mini-batch, on ``Σ weights · loss`` over its trained tokens. Blocks.

        Samples without credit are not sent (if `Batch.zero_costs_nothing`), and a mini-batch of only such samples takes no
        step. Returns these metrics:

        - ``loss`` and ``grad_norm`` (before clipping): means over the steps taken
        - ``optimizer_steps``, ``tokens_trained`` as Trinity counts them, ``tokens_zero_advantage``
        - ``logprob_diff_max`` and ``logprob_diff_mean``: of |new − old| in the first mini-batch
        - ``reference_kl`` and ``entropy``, if the loss needs them, and those of `Batch.measures`

        Raises LearnerFailed if Trinity does not complete the step, and FloatingPointError for a loss or gradient that is not
        finite.
        """
        rows = rows_of(batch, self.layout, self.temperature)
        return {
            **(self._train(rows, batch.needs) if rows.steps else dict.fromkeys(UNTRAINED, 0.0)),
            "optimizer_steps": float(rows.steps),
            "tokens_zero_advantage": float(rows.skipped),
        }

    def _train(self, rows: Rows, needs: Collection[Need]) -> Metrics:
        step = self._step + 1
        what = f"step {step} of Trinity"
        write_rows(self.spool.update(step), rows)
        self.learner.wait_for(self.spool.ready, "the start of Trinity")
        self.learner.wait_for(self.spool.report(step), what)
        self.learner.wait_for(self.spool.weights(step), f"writing the weights of {what}")
        link(self.spool.weights(step), self.spool.kept(step))
        report = json.loads(self.spool.report(step).read_text())
        taken = _Taken.of(report, self._new_norms(), rows, needs)
        self._check(taken, rows, step)
        self.spool.update(step).unlink()
        self._step, self._files = step, [self.spool.kept(step)]
        self._remove(step - 1)
        return {
            "loss": taken.loss / rows.steps,
            "grad_norm": sum(taken.norms) / rows.steps,
            "tokens_trained": float(taken.tokens),
            **taken.metrics,
        }

    def _check(self, taken: _Taken, rows: Rows, step: int) -> None:
        """Raise unless report, optimizer and weights say that all steps were taken on these rows."""
        if not math.isfinite(taken.loss) or len(taken.norms) != rows.steps:
            raise FloatingPointError(
                f"Trinity's step {step}: the loss is {taken.loss:g}, and {len(taken.norms)} of {rows.steps} optimizer steps were "
                "taken; Trinity leaves one out if the gradient is not finite"
            )
        if taken.tokens != rows.tokens:
            raise LearnerFailed(
                f"backbone trinity: step {step}: {rows.tokens} trained tokens were sent, but Trinity trained {taken.tokens}. This is "
                "a bug in AgentJet: please report it with the run folder.",
                machine=False,
            )
        if any(taken.norms) and self._files and not weights.differ(self._files, [self.spool.kept(step)]):
            raise LearnerFailed(
                f"backbone trinity: step {step} has advantages other than 0 and a gradient of norm {max(taken.norms):g}, but no "
                f"weight has changed. Raise train.learning_rate, or see {self.spool.log}.",
                machine=False,
            )

    def _new_norms(self) -> list[float]:
        """The gradient's norms in the optimizer steps since the last call."""
        lines = self.spool.norms.read_text().split() if self.spool.norms.exists() else []
        new, self._norms = lines[self._norms :], len(lines)
        return [float(line) for line in new]

    async def publish(self) -> int:
        """Load the weights into the engine, and increase the weight version, which it returns."""
        loaded = await asyncio.to_thread(self._weights)
        await self.engine.load(loaded, self.version + 1)
        return self.version

    def _weights(self) -> Mapping[str, torch.Tensor]:
        return weights.read(self._files)

    def save(self, path: Path) -> None:
        """Write a model folder with the current weights, and Trinity's own checkpoint below it, from which training continues.
        Blocks. Raises LearnerFailed and OSError."""
        from transformers import AutoConfig

        path.mkdir(parents=True, exist_ok=True)
        AutoConfig.from_pretrained(self.model, trust_remote_code=False).save_pretrained(path)
        self.engine.tokenizer.save_pretrained(path)
        if config := generation_config(str(self.model)):  # it names tokens that end an answer
            shutil.copyfile(config, path / config.name)
        if self._step:
            shutil.copyfile(self.spool.kept(self._step), path / WEIGHTS)
            self._save_shards(path / SHARDS)
        else:
            for file in (*self._files, self.model / "model.safetensors.index.json"):
                if file.exists():
                    shutil.copyfile(file, path / file.name)
        (path / STATE).write_text(json.dumps({"step": self._step, "version": self.version}))

    def _save_shards(self, path: Path) -> None:
        """Let Trinity write a checkpoint, unless it has this one, and copy it to ``path``."""
        step = self._step
        if self._whole != step:
            self.spool.save_request(step).touch()
            self.learner.wait_for(self.spool.saved(step), f"the checkpoint of step {step} of Trinity")
            self._whole = step
        not_twice = shutil.ignore_patterns(self.spool.weights(step).name)
        shutil.copytree(self.spool.actor(step), path / "actor", ignore=not_twice)
        (path / WHOLE).touch()

    def load(self, path: Path) -> None:
        """Continue from what `save` wrote: the learner, which must not have been started, and the engine. Raises
        CheckpointDamaged if a file cannot be read, and AjetError if the checkpoint is another backbone's."""
        if not (path / STATE).is_file():
            raise AjetError(f"checkpoint {path}: no {STATE}. Give a folder written by this backbone.")
        try:
            state = json.loads((path / STATE).read_text())
            step, version = int(state["step"]), int(state["version"])
            loaded = weights.read([path / WEIGHTS] if step else self._files)
        except Exception as error:  # of the libraries, for damaged files
            raise CheckpointDamaged(f"{path}: {error}") from error
        self._step, self.engine.version, self.engine.restored = step, version, loaded
        if step:
            # Not the files themselves, as the run removes old checkpoints. Trinity only reads these.
            link(path / WEIGHTS, self.spool.kept(step))
            shutil.copytree(path / SHARDS, self.spool.actor(step).parent, copy_function=link)
            (self.spool.checkpoints / LATEST).write_text(str(step))
            self._files, self._whole = [self.spool.kept(step)], step

    def _remove(self, step: int) -> None:
        """Remove the files of an earlier step."""
        self.spool.kept(step).unlink(missing_ok=True)
        shutil.rmtree(self.spool.actor(step).parent, ignore_errors=True)
