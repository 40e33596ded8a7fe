"""Decides whether the rows of an update are computed as trees or as verl's rows, and lays them out for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ajet.types import AjetError, ConfigError, Sample
from ajet_verl import lengths, machine
from ajet_verl.engines import ACTOR, REF
from ajet_verl.tree_layout import TreeRows, lay_out_trees, pairs

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet_trees.cost import Flops
    from ajet_verl.settings import VerlSettings

TREE_PAIR = 2
"""On a GPU, a pair of a tree takes so many times as long as a pair of a row: rows use the kernels of flash attention, and the
blocks of a tree are partly masked. Not measured."""
BRANCH_BLOCKS = 2
"""Blocks of attention that a branch adds: among its tokens, and with its ancestors."""
Wanted = Literal["auto"] | bool


@dataclass(frozen=True, slots=True)
class TreeChoice:
    """What one job's updates depend on. ``wanted`` is the key ``backbone.verl.trees``; ``flops`` is None if there are no
    trees."""

    wanted: Wanted
    flops: Flops | None
    limit: int
    """Most tokens of a micro-batch."""
    pair: float = 1
    """How many times as long as a pair of a row a pair of a tree takes."""

    def rows(
        self, mini_batches: Sequence[Sequence[int]], samples: Sequence[Sample], ranks: int
    ) -> TreeRows | None:
        """The samples of ``mini_batches`` laid out as trees; None if they are to be computed as rows."""
        if self.flops is None:
            return None
        found = lay_out_trees(mini_batches, samples, ranks, self.limit)
        if self.wanted == "auto":
            used = [len(samples[i].token_ids) for mini_batch in mini_batches for i in mini_batch]
            if of_trees(found, self.flops, self.pair) >= of_rows(used, self.flops):
                return None
        return found


def of_rows(tokens: Sequence[int], flops: Flops) -> float:
    """Estimated cost of a forward pass over rows of so many tokens, as if verl padded none."""
    return flops.token * sum(tokens) + flops.pair * sum(map(pairs, tokens))


def of_trees(found: TreeRows, flops: Flops, pair: float = 1) -> float:
    """Estimated cost of a forward pass over trees, in which a pair takes ``pair`` times as long as in rows."""
    blocks = flops.block * BRANCH_BLOCKS * found.branches
    return flops.token * found.tokens + pair * flops.pair * found.pairs + blocks


def check(config: DictConfig, settings: VerlSettings) -> None:
    """Raise ConfigError if the job asks for trees, and another key of it excludes them."""
    if settings.trees is True and (reason := obstacle(config)):
        raise ConfigError(
            f"backbone.verl.trees: not possible with {reason}. Change that key, or set trees: auto."
        )


def obstacle(config: DictConfig) -> str:
    """The key of a composed configuration that excludes trees, with its value; "" if there is none."""
    if config.model_engine != "dp":
        return f"engine: {config.model_engine}"
    if (strategy := config.actor_rollout_ref.actor.strategy) not in ("fsdp", "fsdp2"):
        return f"{ACTOR}.strategy: {strategy}"
    model = "actor_rollout_ref.model"
    excluded = [
        (f"{ACTOR}.use_dynamic_bsz", False),  # micro-batches of a fixed number of rows
        (f"{ACTOR}.fsdp_config.pad_to_length", True),
        (f"{REF}.fsdp_config.pad_to_length", True),
        (f"{model}.use_fused_kernels", True),  # they need logits of all tokens in the order of rows
        (f"{model}.mtp.enable", True),  # predicts tokens further on in the row
    ]
    from omegaconf import OmegaConf

    for key, value in excluded:
        if OmegaConf.select(config, key) == value:
            return f"{key}: {str(value).lower()}"
    for part in (ACTOR, REF):
        if (ranks := lengths.sharing(config, "dp", part)) > 1:
            return f"{part}.fsdp_config.ulysses_sequence_parallel_size: {ranks}"
    return ""


def choice(config: DictConfig, wanted: Wanted, workers: Any, say: Any) -> TreeChoice:
    """The choice for a run's configuration and ``workers``, verl's group of them. Reports with ``say`` why rows are computed
    instead of trees, unless the job says so. Raises AjetError if the job asks for trees that the model excludes."""
    limit = lengths.row_limit(config)
    if wanted is False:
        return TreeChoice(wanted, None, 0)
    reason = obstacle(config) or obstacle_of(workers)
    if not reason:
        pair = TREE_PAIR if machine.on_gpus() else 1
        return TreeChoice(wanted, flops_of(config.actor_rollout_ref.model), int(limit), pair)
    if wanted is True:
        raise AjetError(f"backbone.verl.trees: not possible: {reason.rstrip('.')}. Set trees: auto.")
    say(f"verl's workers compute rows, not trees: {reason.rstrip('.')}.")
    return TreeChoice(wanted, None, 0)


def obstacle_of(workers: Any) -> str:
    """Why the model of verl's workers cannot be computed over trees, as they have found when they loaded it; or ""."""
    import ray

    found: str = ray.get(workers.workers[0].__ray_call__.remote(_obstacle_in))
    return found


def _obstacle_in(worker: Any) -> str:
    """In a worker's process. verl's workers have no method for this; one process holds a worker for each role."""
    actor = next(role.actor for role in worker.worker_dict.values() if getattr(role, "actor", None))
    return str(actor.engine.tree_obstacle)


def flops_of(model: Any) -> Flops:
    """Of verl's configuration of a model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from ajet_trees.cost import Flops

    with torch.device("meta"):  # no memory is used
        trust = {"trust_remote_code": model.trust_remote_code}
        config = AutoConfig.from_pretrained(model.path, **trust).get_text_config()
        return Flops.of(AutoModelForCausalLM.from_config(config, **trust))
