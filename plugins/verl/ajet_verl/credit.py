"""Credit in verl's trainer: computes the credit of verl's batch as the local backbone does, and writes it into the rows.

    _balance_batch   rows -> episodes -> `batch_of`: advantages and weights; arranges rows so that mini-batches stay whole
    _update_actor    takes as many optimizer steps as the job says, with the job's objective (`WorkerLoss`)

Rows without advantage are not computed, as on the local backbone.
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

from ajet import AjetError, Job
from ajet.interfaces.backbone import Metrics, Sample
from ajet.learning.batch import Learnable, RolloutBatch, batch_of
from ajet.learning.objective import Objective, objective
from ajet.rollout.batch_record import packed
from ajet_verl.alignment import router_replay
from ajet_verl.layout import PADDING, TREE, choice, lay_out
from ajet_verl.lengths import at_once
from ajet_verl.lora import ADAPTER, of
from ajet_verl.loss import VERSION, WorkerLoss
from ajet_verl.recorder import Pulse, read_spec, recorder_of
from ajet_verl.rows import READ, TOKENS, key, learnables, padding, read
from ajet_verl.settings import VerlSettings

POLL_SECONDS = 0.25
"""Minimum interval at which verl polls the queue; its default of 2 s is longer than a step of a small model."""
POLL_SECONDS_AN_EPISODE = 1e-4
"""The same for each episode of a batch. A look costs the queue's controller, a single process, about 5 µs for each row."""
Array = np.ndarray[Any, Any]


class Credit:
    """A mixin before a trainer of verl, which replaces how credit is computed and used."""

    config: Any
    global_steps: int
    local_trigger_step: int
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
        """The job's loss, and the logprobs that it needs."""
        return objective(self.job.algorithm, self.job.config.train)

    @property
    def loss(self) -> WorkerLoss:
        """The loss function of the workers."""
        return WorkerLoss(self.objective, fresh=not self.scores_before, pulse=self.pulse)

    @cached_property
    def pulse(self) -> Pulse:
        """Reports progress of long updates; also in the workers, with `loss`."""
        return Pulse(self.config.ajet.recorder)

    @cached_property
    def adapters(self) -> list[str]:
        """The targets with an adapter, in the workers' order."""
        return list(of(self.config.actor_rollout_ref.model))

    @property
    def scores_before(self) -> bool:
        """Whether the workers compute logprobs before an update in an extra pass: not if the update is a single optimizer step,
        except to record which experts they use."""
        train = self.job.config.train
        if router_replay(self.config) == "R2":
            return True
        return "before" in self.objective.needs and train.mini_batches * train.epochs > 1

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()  # type: ignore[misc]
        config = self.job.config
        episodes = config.train.batch_size * config.rollout.group_size
        buffer.poll_interval = max(POLL_SECONDS, POLL_SECONDS_AN_EPISODE * episodes)
        return buffer

    def _setup(self) -> None:
        self.learned = Learned()
        super()._setup()  # type: ignore[misc]
        self.actor_rollout_wg.set_loss_fn(self.loss)
        backbone = self.job.backbone
        assert isinstance(backbone, VerlSettings)
        self.trees = choice(
            self.config, backbone.trees, self.actor_rollout_wg, recorder_of(self.config).say.remote
        )

    def _step_once(
        self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int
    ) -> Any:
        try:
            return super()._step_once(metrics, timing_raw, sample_batch_size)  # type: ignore[misc]
        except RuntimeError as error:  # the remedy in verl's message does not apply
            if "no materializable trajectories" not in str(error):
                raise
            why = self.agent_loop_manager.failure()
            raise AjetError(f"step {self.global_steps}: nothing to train on: {why}") from error

    def on_sample_end(self) -> None:
        """See verl's trainer. In colocate_async, an update pauses the episodes that are running."""
        super().on_sample_end()  # type: ignore[misc]
        if self.trainer_mode == "colocate_async":
            self.agent_loop_manager.pause(True)

    def on_step_end(self) -> None:
        """See verl's trainer. In colocate_async, the servers sample again."""
        super().on_step_end()  # type: ignore[misc]
        if self.trainer_mode == "colocate_async":
            self.agent_loop_manager.pause(False)

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **_: Any) -> KVBatchMeta:
        """The batch with advantages and weights in its rows, in the order in which the workers process them."""
        self.pulse.beat()
        train = self.job.config.train
        single = self.parameter_sync_step > 1  # verl has sampled the share of one mini-batch
        with_credit = credited(
            batch,
            self.job,
            self.global_steps,
            1 if single else train.mini_batches,
            with_tokens=self.trees.flops is not None,
        )
        self.learned.batch(with_credit, batch, self.global_steps, train.epochs)
        if self.job.config.run.record_batches and not single:
            record = packed(
                self.global_steps, with_credit.whole.batch, with_credit.whole.account, with_tokens=False
            )
            recorder_of(self.config).batch.remote(self.global_steps, record)
        learning = [[i for i in mini if with_credit.has_credit(i)] for mini in with_credit.mini_batches]
        learning = [mini for mini in learning if mini]
        self._update = _Update(len(learning), sum(with_credit.trained(i) for mini in learning for i in mini))
        if not learning:
            credit = [_as_fields(*with_credit.credit(i)) for i in range(len(with_credit.keys))]
            _put(with_credit.keys, credit, batch.partition_id)
            return batch
        return self._laid_out(batch, with_credit, learning)

    def _laid_out(
        self, batch: KVBatchMeta, with_credit: Credited, learning: Sequence[Sequence[int]]
    ) -> KVBatchMeta:
        """The batch with its learning rows arranged for the workers, and with padding rows."""
        lengths = [len(sample.token_ids) for sample in with_credit.samples]
        limit = at_once(self.config, max(lengths[i] for mini in learning for i in mini))
        rows, trees = self._order(with_credit, learning, lengths, limit)
        fill, tag = padding(self.tokenizer.eos_token_id, batch.tags[0])
        nothing = np.zeros(1, np.float32)
        keys = [key(f"pad{uuid4().hex}", 0, 0) if i == PADDING else with_credit.keys[i] for i in rows]
        fields = [
            {**fill, **_as_fields(nothing, nothing)} if i == PADDING else _as_fields(*with_credit.credit(i))
            for i in rows
        ]
        for place, number in enumerate(trees):
            fields[place][TREE] = torch.tensor([number])
        if len(self.adapters) > 1:
            for place, i in enumerate(rows):
                adapter = None if i == PADDING else with_credit.samples[i].adapter
                fields[place][ADAPTER] = torch.tensor([self.adapters.index(adapter) if adapter else 0])
        taken = [place for place, i in enumerate(rows) if i != PADDING]
        added = [place for place, i in enumerate(rows) if i == PADDING]
        _put([keys[n] for n in taken], [fields[n] for n in taken], batch.partition_id)
        if added:
            _put([keys[n] for n in added], [fields[n] for n in added], batch.partition_id, [tag] * len(added))
        unused = list(set(batch.keys) - set(keys))
        if unused:  # verl clears only the rows of the returned batch after the step
            tq.kv_clear(keys=unused, partition_id=batch.partition_id)
        tags = dict(zip(batch.keys, batch.tags, strict=True))
        return KVBatchMeta(
            keys=keys,
            tags=[tags.get(name, tag) for name in keys],
            partition_id=batch.partition_id,
            extra_info=batch.extra_info | ({} if limit is None else {"max_token_len_per_gpu": limit}),
        )

    def _order(
        self,
        with_credit: Credited,
        learning: Sequence[Sequence[int]],
        lengths: Sequence[int],
        limit: int | None,
    ) -> tuple[list[int], list[int]]:
        """The learning rows in the order of the workers, with `PADDING`; and the field `TREE` of each, if they are computed as
        trees."""
        trees = self.trees.rows(learning, with_credit.samples, self._ranks(), limit)
        if trees is not None:
            self.learned.trees(sum(lengths[i] for mini in learning for i in mini), trees.tokens)
            return trees.rows, trees.trees
        shares = lay_out(learning, lengths, self._ranks(), self._rows_at_once())
        return [i for rank in shares for mini in rank for i in mini], []

    def _ranks(self) -> int:
        """Number of data-parallel ranks of the actor."""
        group = self.actor_rollout_wg
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        return max(group._dispatch_info["actor"]) + 1

    def _rows_at_once(self) -> int:
        """The number of a rank's rows in a mini-batch must be a multiple of this in verl."""
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        if actor.use_dynamic_bsz:
            return 1
        return math.lcm(actor.ppo_micro_batch_size_per_gpu, rollout.log_prob_micro_batch_size_per_gpu or 1)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if not self._update.steps or not self.scores_before:
            return batch
        if not self.learned.updates:  # also where earlier mini-batches of the step had no advantage
            # separate_async keeps these weights for the step's other mini-batches.
            self.local_trigger_step = 0
        super()._compute_old_log_prob(batch, metrics=metrics)  # type: ignore[misc]
        return batch  # verl's own names the fields that rows have now, so workers would not read later ones

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if not self._update.steps:
            return batch
        return super()._compute_ref_log_prob(batch, metrics=metrics)  # type: ignore[misc]

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return batch  # `_balance_batch` has written them

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Take one optimizer step for each mini-batch and epoch; none if there is nothing to learn."""
        update, actor = self._update, self.config.actor_rollout_ref.actor
        if not update.steps:
            return batch
        self.pulse.beat()
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
            VERSION: self.global_steps - 1,
        }
        output = self.actor_rollout_wg.update_actor(batch)
        each = dict(tu.get(output, "metrics"))
        # Of the first mini-batch only, before the weights change.
        gap, compared = each.pop("logprob_diff")[0], each.pop("logprobs_compared")[0]
        figures = reduce_metrics(dict(each)) | {
            "logprob_diff_max": each["logprob_diff_max"][0],
            "logprob_diff_mean": gap / max(compared, 1.0),
        }
        self.learned.update(figures, update, actor.ppo_epochs, self.global_steps)
        mfu = figures.pop("mfu", None)
        metrics |= {"perf/mfu/actor": mfu} if mfu is not None else {}
        metrics |= {f"actor/{name}": value for name, value in figures.items()}
        return batch

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()  # type: ignore[misc]
        if self.trainer_mode != "sync":  # verl saves its queue too
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
        """Validate with our own plan, because verl would treat each row as a whole episode."""
        metrics: dict[str, Any] = self.agent_loop_manager.validate(self.global_steps)
        return {f"validation/{name}": value for name, value in metrics.items()}


@dataclass(frozen=True, slots=True)
class Credited:
    """A batch of rows with the credit that the local backbone would give them: sample i is row ``keys[i]``."""

    keys: Sequence[str]
    whole: RolloutBatch

    @property
    def samples(self) -> Sequence[Sample]:
        return self.whole.batch.samples

    @property
    def mini_batches(self) -> Sequence[Sequence[int]]:
        return self.whole.batch.mini_batches

    def credit(self, i: int) -> tuple[Array, Array]:
        """Advantages and weights, float32[R] each, of a row's R tokens from its first trained one on."""
        sample = self.samples[i]
        first = int(sample.mask.argmax())
        return sample.advantages[first:], sample.weights[first:]

    def has_credit(self, i: int) -> bool:
        """Whether a row must be computed: see `Batch.has_credit`."""
        return self.whole.batch.has_credit(self.samples[i])

    def trained(self, i: int) -> int:
        """Number of trained tokens of a row."""
        return int(self.samples[i].mask.sum())


def credited(batch: KVBatchMeta, job: Job, step: int, mini_batches: int, *, with_tokens: bool) -> Credited:
    """The credit of the rows that verl has sampled for a step, exactly as on the local backbone. Only trees need the samples'
    token ids. Raises AjetError if there is nothing to train on."""
    names = [*READ, *(TOKENS if with_tokens else ())]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
    columns = [_values(data[name]) for name in names]
    rows = [read(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    uids = {row.episode.id: name.rsplit("_", 2)[0] for name, (row, _) in zip(batch.keys, rows, strict=True)}
    config = job.config
    episodes = learnables(rows)
    if config.train.dynamic_sampling > 1:  # groups that could not be replaced
        episodes = with_different_rewards(episodes)
    whole = batch_of(
        episodes,
        job.learning,
        mini_batches=mini_batches,
        learning_rate=config.train.rate_at(step),
        seed=f"{config.run.seed}:{step}",
    )
    if whole is None:
        raise AjetError(f"step {step}: nothing to train on: no group has rows.")
    members = {row.episode.id: row.episode.member for row, _ in rows}
    numbers: Counter[str] = Counter()
    keys = []
    for sample in whole.batch.samples:
        keys.append(key(uids[sample.episode], members[sample.episode], numbers[sample.episode]))
        numbers[sample.episode] += 1
    trained = sum(int(sample.mask.sum()) for sample in whole.batch.samples)
    used = {episode.id for episode in episodes}
    chosen = [name for name, (row, _) in zip(batch.keys, rows, strict=True) if row.episode.id in used]
    if trained != whole.sampled_tokens or sorted(keys) != sorted(chosen):
        raise AjetError(
            f"step {step}: {whole.sampled_tokens} tokens in {len(batch)} rows should be trained, but {trained} in {len(keys)} "
            "would be. This is a bug in AgentJet: please report it with the run folder."
        )
    return Credited(keys, whole)


def with_different_rewards(episodes: Sequence[Learnable]) -> list[Learnable]:
    """The episodes of groups with different rewards; all, if there is no such group."""
    rewards: dict[int, set[Any]] = {}
    for episode in episodes:
        if episode.sampled_tokens:
            outcome = episode.reward, *sorted(episode.rewards.items()), *sorted(episode.call_rewards.items())
            rewards.setdefault(episode.group, set()).add(outcome)
    return [e for e in episodes if len(rewards.get(e.group, ())) > 1] or list(episodes)


def _values(column: Any) -> Sequence[Any]:
    """A field of all rows, one value a row. Reading single values from the column would go through all of it each time."""
    values: Sequence[Any] = column.unbind() if isinstance(column, torch.Tensor) else list(column)
    return values


def _put(
    keys: Sequence[str],
    fields: Sequence[Mapping[str, Any]],
    partition: str | None,
    tags: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write fields into rows of the queue, which are new if they have tags."""
    tagged = {"tags": list(tags)} if tags else {}
    values = list_of_dict_to_tensordict(list(fields))
    tq.kv_batch_put(keys=list(keys), partition_id=partition, fields=values, **tagged)


def _as_fields(advantages: Array, weights: Array) -> dict[str, torch.Tensor]:
    """A row's fields for its credit. verl's metrics need ``returns`` too."""
    advantage = torch.from_numpy(advantages.copy())
    return {"advantages": advantage, "returns": advantage, "weights": torch.from_numpy(weights.copy())}


@dataclass(frozen=True, slots=True)
class _Update:
    """One call of the workers: its optimizer steps per epoch, and the trained tokens in them."""

    steps: int
    tokens: int


@dataclass(slots=True)
class Learned:
    """What one step has learned, from one update or, in separate_async, from several."""

    uids: list[str] = field(default_factory=list)
    batches: list[Metrics] = field(default_factory=list)
    updates: list[Metrics] = field(default_factory=list)
    staleness: int = 0
    zero: int = 0
    """Masked tokens of rows without advantage."""
    of_rows: int = 0
    """Tokens of the rows that were computed as trees."""
    of_trees: int = 0
    """Tokens of these trees."""

    def batch(self, with_credit: Credited, batch: KVBatchMeta, step: int, epochs: int) -> None:
        """Record a batch that verl has sampled."""
        self.uids += sorted({name.rsplit("_", 2)[0] for name in batch.keys})
        self.batches.append(with_credit.whole.metrics)
        self.staleness = max(self.staleness, *(step - 1 - tag["min_global_steps"] for tag in batch.tags))
        skipped = [i for i in range(len(with_credit.keys)) if not with_credit.has_credit(i)]
        self.zero += epochs * sum(with_credit.trained(i) for i in skipped)

    def trees(self, of_rows: int, of_trees: int) -> None:
        """Record that rows are computed as trees; numbers of tokens."""
        self.of_rows += of_rows
        self.of_trees += of_trees

    def update(self, metrics: Metrics, update: _Update, epochs: int, step: int) -> None:
        """Record the workers' metrics, which are means over mini-batches. Raises AjetError if they trained another number of
        tokens, FloatingPointError for a non-finite gradient."""
        steps = update.steps * epochs
        seen = round(metrics["tokens_trained"] * steps)
        if seen != update.tokens * epochs:
            raise AjetError(
                f"step {step}: {update.tokens * epochs} tokens should be trained, but verl's workers trained {seen}. "
                "This is a bug in AgentJet: please report it with the run folder."
            )
        for name in ("loss", "grad_norm"):
            if not math.isfinite(metrics[name]):
                raise FloatingPointError(f"step {step}: the {name} is {metrics[name]}")
        self.updates.append({**metrics, "optimizer_steps": steps})

    def metrics(self) -> Metrics:
        """The step's metrics under the local backbone's names."""
        summed = ("groups", "unmatched_reward_names")
        metrics: Metrics = {"staleness": self.staleness, "tokens_zero_advantage": self.zero}
        if self.of_trees:
            metrics["tree_token_ratio"] = self.of_rows / self.of_trees
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
            "logprob_diff_mean": 0.0,
        }

        def over_steps(name: str) -> float:
            return sum(update[name] * update["optimizer_steps"] for update in self.updates)

        if self.updates:
            tokens = over_steps("tokens_trained")
            metrics |= {name: over_steps(name) / steps for name in ("loss", "grad_norm")}
            metrics |= {
                "tokens_trained": tokens,
            }
            gaps = ("logprob_diff_max", "logprob_diff_mean")
            metrics |= {name: self.updates[0][name] for name in gaps}  # later updates have other weights
            for name in ("entropy", "reference_kl", "correction_weight", "correction_capped"):
                if name in self.updates[0]:
                    metrics[name] = over_steps(name) / tokens
        return metrics
