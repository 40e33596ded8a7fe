"""Credit in verl's trainer: the batch that verl has sampled becomes the local backbone's batch, written back into its rows.

    _balance_batch   rows -> episodes -> `batch_of`: advantages and weights; rows laid out so that mini-batches stay whole
    _update_actor    as many optimizer steps as the job says, with the job's own objective (`RowLoss`)

Rows of no advantage are not computed, as on the local backbone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from ajet.job.prepare import Job
from ajet.learning.batch import RolloutBatch, batch_of
from ajet.learning.objective import Objective, objective
from ajet.types import AjetError, Metrics, Sample
from ajet_verl.layout import PADDING, lay_out
from ajet_verl.loss import RowLoss
from ajet_verl.rows import READ, key, learnables, padding, read
from ajet_verl.spec import read_spec

POLL_SECONDS = 0.25
"""Between verl's looks at the queue; its own 2 s are longer than a step of a small model."""
Array = np.ndarray[Any, Any]


class Credit:
    """Goes before a trainer of verl, whose steps it changes where credit is concerned."""

    config: Any
    global_steps: int
    actor_rollout_wg: Any
    agent_loop_manager: Any
    tokenizer: Any
    parameter_sync_step: int
    trainer_mode: str

    @cached_property
    def job(self) -> Job:
        """The job, without its tasks."""
        return read_spec(self.config).open()

    @cached_property
    def objective(self) -> Objective:
        """The loss that the workers compute, and what it needs."""
        return objective(self.job.algorithm, self.job.config.train)

    @property
    def loss(self) -> RowLoss:
        """What the workers compute."""
        return RowLoss(self.objective, fresh=not self.scores_before)

    @property
    def scores_before(self) -> bool:
        """Whether the logprobs before an update need a pass of their own: not if the update is one optimizer step."""
        train = self.job.config.train
        return "before" in self.objective.needs and train.mini_batches * train.epochs > 1

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()  # type: ignore[misc]
        buffer.poll_interval = POLL_SECONDS
        return buffer

    def _setup(self) -> None:
        self.learned = Learned()
        super()._setup()  # type: ignore[misc]
        self.actor_rollout_wg.set_loss_fn(self.loss)

    def _step_once(
        self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int
    ) -> Any:
        try:
            return super()._step_once(metrics, timing_raw, sample_batch_size)  # type: ignore[misc]
        except RuntimeError as error:  # verl's own remedy would not help
            if "no materializable trajectories" not in str(error):
                raise
            why = self.agent_loop_manager.failure()
            raise AjetError(f"step {self.global_steps}: nothing to train on: {why}") from error

    def on_sample_end(self) -> None:
        """See verl's trainer; an update where episodes are under way holds them up."""
        super().on_sample_end()  # type: ignore[misc]
        if self.trainer_mode == "colocate_async":
            self.agent_loop_manager.pause(True)

    def on_step_end(self) -> None:
        """See verl's trainer; the servers sample again."""
        super().on_step_end()  # type: ignore[misc]
        if self.trainer_mode == "colocate_async":
            self.agent_loop_manager.pause(False)

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **_: Any) -> KVBatchMeta:
        """The batch with advantages and weights in its rows, in the order in which the workers take them."""
        train = self.job.config.train
        local = self.parameter_sync_step > 1  # then verl has sampled the share of one mini-batch
        found = credited(
            batch, self.job, self.objective, self.global_steps, 1 if local else train.mini_batches
        )
        self.learned.batch(found, batch.tags, self.global_steps, train.epochs)
        learning = [[i for i in mini if found.counts(i)] for mini in found.mini_batches]
        learning = [mini for mini in learning if mini]
        self._update = _Update(len(learning), sum(found.trained(i) for mini in learning for i in mini))
        if not learning:
            write(found.keys, [found.credit(i) for i in range(len(found.keys))], batch.partition_id)
            return batch
        return self._laid_out(batch, found, learning)

    def _laid_out(
        self, batch: KVBatchMeta, found: Credited, learning: Sequence[Sequence[int]]
    ) -> KVBatchMeta:
        lengths = [len(sample.token_ids) for sample in found.samples]
        shares = lay_out(learning, lengths, self._ranks(), self._rows_at_once())
        order = [i for rank in shares for mini in rank for i in mini]
        taken = [i for i in order if i != PADDING]
        write([found.keys[i] for i in taken], [found.credit(i) for i in taken], batch.partition_id)
        fill, tag = padding(self.tokenizer.eos_token_id)
        filled = [key(f"pad{uuid4().hex}", 0, 0) for _ in range(len(order) - len(taken))]
        if filled:
            fields = {**fill, **_as_fields(np.zeros(1, np.float32), np.zeros(1, np.float32))}
            tq.kv_batch_put(
                keys=filled,
                partition_id=batch.partition_id,
                fields=list_of_dict_to_tensordict([fields] * len(filled)),
                tags=[tag] * len(filled),
            )
        unused = list(set(batch.keys) - {found.keys[i] for i in taken})
        if unused:  # verl clears the rows of the batch after the step
            tq.kv_clear(keys=unused, partition_id=batch.partition_id)
        tags, pads = dict(zip(batch.keys, batch.tags, strict=True)), iter(filled)
        keys = [next(pads) if i == PADDING else found.keys[i] for i in order]
        return KVBatchMeta(
            keys=keys,
            tags=[tags.get(name, tag) for name in keys],
            partition_id=batch.partition_id,
            extra_info=batch.extra_info,
        )

    def _ranks(self) -> int:
        """Data-parallel ranks of the actor."""
        group = self.actor_rollout_wg
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        return max(group._dispatch_info["actor"]) + 1

    def _rows_at_once(self) -> int:
        """What verl wants a rank's rows of a mini-batch to be a multiple of."""
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        if actor.use_dynamic_bsz:
            return 1
        return math.lcm(actor.ppo_micro_batch_size_per_gpu, rollout.log_prob_micro_batch_size_per_gpu or 1)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if not self._update.steps or not self.scores_before:
            return batch
        return super()._compute_old_log_prob(batch, metrics=metrics)  # type: ignore[misc]

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if not self._update.steps:
            return batch
        return super()._compute_ref_log_prob(batch, metrics=metrics)  # type: ignore[misc]

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return batch  # `_balance_batch` has written them

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """One optimizer step for each mini-batch and epoch; none where there is nothing to learn."""
        update, actor = self._update, self.config.actor_rollout_ref.actor
        if not update.steps:
            return batch
        rows = len(batch) // update.steps
        batch.extra_info |= {
            "calculate_entropy": "entropy" in self.objective.needs,
            "global_batch_size": rows,
            "mini_batch_size": rows,
            "epochs": actor.ppo_epochs,
            "seed": actor.data_loader_seed,
            "dataloader_kwargs": {"shuffle": False},
            "temperature": self.config.actor_rollout_ref.rollout.temperature,
            "distillation_use_topk": False,
            "distillation_only": False,
        }
        output = self.actor_rollout_wg.update_actor(batch)
        each = dict(tu.get(output, "metrics"))
        # Of the first mini-batch, when the weights still are the sampling ones.
        found = {**reduce_metrics(dict(each)), "logprob_diff_max": each["logprob_diff_max"][0]}
        self.learned.update(found, update, actor.ppo_epochs, self.global_steps)
        mfu = found.pop("mfu", None)
        metrics |= {"perf/mfu/actor": mfu} if mfu is not None else {}
        metrics |= {f"actor/{name}": value for name, value in found.items()}
        return batch

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()  # type: ignore[misc]
        if self.trainer_mode != "sync":  # then verl saves its queue, too
            folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
            self.agent_loop_manager.keep(str(folder))

    def _compute_metrics(
        self,
        batch: KVBatchMeta,
        metrics: dict[str, Any],
        timing_raw: dict[str, float],
        global_steps: int,
        epoch: int,
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)  # type: ignore[misc]
        metrics |= self.agent_loop_manager.learned(self.learned.uids, global_steps)
        metrics |= {**self.learned.metrics(), "weight_version": global_steps}
        self.learned = Learned()

    def _validate(self) -> dict[str, Any]:
        """Validation by our own plan: verl's would take one row of an episode for its whole."""
        found: dict[str, Any] = self.agent_loop_manager.validate(self.global_steps)
        return {f"validation/{name}": value for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class Credited:
    """A batch of rows with the credit of the local backbone's batch: sample i is row ``keys[i]``."""

    keys: Sequence[str]
    whole: RolloutBatch

    @property
    def samples(self) -> Sequence[Sample]:
        return self.whole.batch.samples

    @property
    def mini_batches(self) -> Sequence[Sequence[int]]:
        return self.whole.batch.mini_batches

    def credit(self, i: int) -> tuple[Array, Array]:
        """Advantages and weights, float32[R], of a row's tokens from the first trained one on."""
        sample = self.samples[i]
        first = int(sample.mask.argmax())
        return sample.advantages[first:], sample.weights[first:]

    def counts(self, i: int) -> bool:
        """Whether a row's loss moves any weight."""
        sample = self.samples[i]
        return not self.whole.batch.zero_costs_nothing or bool(
            np.any(sample.weights * sample.advantages != 0)
        )

    def trained(self, i: int) -> int:
        """Trained tokens of a row."""
        return int(self.samples[i].mask.sum())


def credited(batch: KVBatchMeta, job: Job, loss: Objective, step: int, mini_batches: int) -> Credited:
    """The credit of the rows that verl has sampled for a step, exactly that of the local backbone. Raises AjetError if
    there is nothing to train on."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(READ))
    rows = [read({name: data[name][i] for name in READ}) for i in range(len(batch.keys))]
    uids = {row.episode.id: name.rsplit("_", 2)[0] for name, (row, _) in zip(batch.keys, rows, strict=True)}
    config = job.config
    whole = batch_of(
        learnables(rows),
        job.algorithm,
        mini_batches=mini_batches,
        learning_rate=config.train.rate_at(step),
        seed=f"{config.run.seed}:{step}",
        objective=loss,
    )
    if whole is None:
        raise AjetError(f"step {step}: nothing to train on: no group has a row.")
    members = {row.episode.id: row.episode.member for row, _ in rows}
    numbers: Counter[str] = Counter()
    keys = []
    for sample in whole.batch.samples:
        keys.append(key(uids[sample.episode], members[sample.episode], numbers[sample.episode]))
        numbers[sample.episode] += 1
    trained = sum(int(sample.mask.sum()) for sample in whole.batch.samples)
    if trained != whole.sampled_tokens or sorted(keys) != sorted(batch.keys):
        raise AjetError(
            f"step {step}: {whole.sampled_tokens} tokens in {len(batch)} rows were to be trained, but {trained} in {len(keys)} "
            "would be. This is a bug in AgentJet: please report it with the run folder."
        )
    return Credited(keys, whole)


def write(keys: Sequence[str], credit: Sequence[tuple[Array, Array]], partition: str | None) -> None:
    """Put advantages and weights into rows of the queue."""
    fields = [_as_fields(advantages, weights) for advantages, weights in credit]
    tq.kv_batch_put(keys=list(keys), partition_id=partition, fields=list_of_dict_to_tensordict(fields))


def _as_fields(advantages: Array, weights: Array) -> dict[str, torch.Tensor]:
    """``returns`` are what verl's metrics want beside advantages."""
    advantage = torch.from_numpy(advantages.copy())
    return {"advantages": advantage, "returns": advantage, "weights": torch.from_numpy(weights.copy())}


@dataclass(frozen=True, slots=True)
class _Update:
    """What one call of the workers is to do: optimizer steps an epoch, and the trained tokens in them."""

    steps: int
    tokens: int


@dataclass(slots=True)
class Learned:
    """What one step has learned, of one update or, in separate_async, of several."""

    uids: list[str] = field(default_factory=list)
    batches: list[Metrics] = field(default_factory=list)
    updates: list[Metrics] = field(default_factory=list)
    staleness: int = 0
    zero: int = 0
    """Tokens of rows without advantage."""

    def batch(self, found: Credited, tags: Sequence[Mapping[str, Any]], step: int, epochs: int) -> None:
        """Note what verl has sampled."""
        self.uids += sorted({name.rsplit("_", 2)[0] for name in found.keys})
        self.batches.append(found.whole.metrics)
        self.staleness = max(self.staleness, *(step - 1 - tag["min_global_steps"] for tag in tags))
        skipped = [i for i in range(len(found.keys)) if not found.counts(i)]
        self.zero += epochs * sum(found.trained(i) for i in skipped)

    def update(self, found: Metrics, update: _Update, epochs: int, step: int) -> None:
        """Note what the workers report, means over mini-batches. Raises AjetError if they saw other tokens."""
        steps = update.steps * epochs
        seen = round(found["tokens_trained"] * steps)
        if seen != update.tokens * epochs:
            raise AjetError(
                f"step {step}: {update.tokens * epochs} tokens were to be trained, but verl's workers saw {seen}. "
                "This is a bug in AgentJet: please report it with the run folder."
            )
        if not math.isfinite(found["grad_norm"]):
            raise FloatingPointError(f"step {step}: the gradient's norm is {found['grad_norm']}")
        self.updates.append({**found, "optimizer_steps": steps})

    def metrics(self) -> Metrics:
        """Under the names of the local backbone."""
        summed = ("groups", "unmatched_reward_names")
        metrics: Metrics = {"staleness": self.staleness, "tokens_zero_advantage": self.zero}
        for name in {name for batch in self.batches for name in batch}:
            values = [batch.get(name, 0.0) for batch in self.batches]
            total = name in summed or name.startswith("dropped_tokens/")
            metrics[name] = sum(values) / (1 if total else len(values))
        steps = sum(update["optimizer_steps"] for update in self.updates)
        metrics |= {
            "optimizer_steps": steps,
            "loss": 0.0,
            "grad_norm": 0.0,
            "tokens_trained": 0.0,
            "logprob_diff_max": 0.0,
        }

        def over_steps(name: str) -> float:
            return sum(update[name] * update["optimizer_steps"] for update in self.updates)

        if self.updates:
            tokens = over_steps("tokens_trained")
            metrics |= {name: over_steps(name) / steps for name in ("loss", "grad_norm")}
            metrics |= {
                "tokens_trained": tokens,
                "logprob_diff_max": max(u["logprob_diff_max"] for u in self.updates),
            }
            for name in ("entropy", "reference_kl", "correction_weight", "correction_capped"):
                if name in self.updates[0]:
                    metrics[name] = over_steps(name) / tokens
        return metrics
