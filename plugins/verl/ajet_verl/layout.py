"""Distributes the rows of mini-batches over verl's workers: as rows, or so that rows that share tokens are computed together, as
trees.

For trees, the rows of a mini-batch are put in the order of their tokens, in which those that share most are neighbours. Each rank
gets a run of neighbours, and divides it into micro-batches, which are runs again. A run is computed as one tree, so only rows
at the border of two runs repeat what they share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ajet import AjetError, ConfigError
from ajet.interfaces.backbone import Sample
from ajet_trees.packing import Neighbour, neighbours
from ajet_verl import scale
from ajet_verl.keys import ACTOR, REF
from ajet_verl.lengths import row_limit, sharing

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet_trees.cost import Flops
    from ajet_verl.settings import VerlSettings

PADDING = -1
"""Stands for a padding row."""
TREE = "tree"
"""Field of a row, int64[1]: the number of its micro-batch among those of its rank. Workers compute rows with the same number
as one tree. Without the field, verl makes micro-batches of rows."""
Run = Sequence[Neighbour]
TREE_PAIR = 2
"""On a GPU, a pair of a tree takes so many times as long as a pair of a row: rows use the kernels of flash attention, and the
blocks of a tree are partly masked. Not measured."""
PADDED = (
    f" Without flash-attn they pad each micro-batch to its longest row, so it may take several times its memory: install flash-attn, "
    f"or lower {ACTOR}.ppo_max_token_len_per_gpu."
)
BRANCH_BLOCKS = 2
"""Blocks of attention that a branch adds: among its tokens, and with its ancestors."""
Wanted = Literal["auto"] | bool


def lay_out(
    mini_batches: Sequence[Sequence[int]], lengths: Sequence[int], ranks: int, multiple: int = 1
) -> list[list[list[int]]]:
    """``result[rank][mini_batch]`` lists indices of rows, or `PADDING`; all these lists have the same length.

    Each of verl's ``ranks`` takes a fixed number of rows of its share for each optimizer step. So all mini-batches are
    padded to the same number of rows per rank, a multiple of ``multiple``. ``lengths`` are the rows' numbers of tokens;
    ranks get about the same number of tokens.
    """
    largest = max(len(mini_batch) for mini_batch in mini_batches)
    share = -(-largest // (ranks * multiple)) * multiple
    result: list[list[list[int]]] = [[] for _ in range(ranks)]
    for mini_batch in mini_batches:
        rows: list[list[int]] = [[] for _ in range(ranks)]
        tokens = [0] * ranks
        for row in sorted(mini_batch, key=lambda row: -lengths[row]):
            rank = min((r for r in range(ranks) if len(rows[r]) < share), key=lambda r: tokens[r])
            rows[rank].append(row)
            tokens[rank] += lengths[row]
        for rank in range(ranks):
            result[rank].append(rows[rank] + [PADDING] * (share - len(rows[rank])))
    return result


@dataclass(slots=True)
class TreeRows:
    """The rows in the order of verl's workers, and what computing them as trees takes."""

    rows: list[int] = field(default_factory=list)
    """Indices of rows, or `PADDING`."""
    trees: list[int] = field(default_factory=list)
    """The field `TREE` of each row."""
    tokens: int = 0
    """Tokens of all trees together."""
    pairs: int = 0
    """Pairs of a token and one of its ancestors or itself."""
    branches: int = 0
    """Runs of tokens of which each is the parent of the next."""


def lay_out_trees(
    mini_batches: Sequence[Sequence[int]], samples: Sequence[Sample], ranks: int, limit: int
) -> TreeRows:
    """Distribute the samples of ``mini_batches`` over ``ranks``, in micro-batches whose trees have at most ``limit`` tokens.

    All ranks have the same number of micro-batches in each mini-batch, because their collective operations need that, and
    the same number of rows in all mini-batches, because verl divides its batch so. Padding rows fill both up. The
    largest rank, and the largest micro-batch of a rank, have as few tokens as runs of neighbours allow.
    """
    shares: list[list[list[Run]]] = [[] for _ in range(ranks)]
    for mini_batch in mini_batches:
        ordered = neighbours([samples[i] for i in mini_batch])
        runs = _padded(divided(ordered, ranks), ranks)
        count = max(len(filled(run, limit)) for run in runs)
        for share, run in zip(shares, runs, strict=True):
            share.append(_padded(divided(run, count), count))
    most = max(_places(mini) for share in shares for mini in share)
    result = TreeRows()
    for share in shares:
        number = 0
        for mini_batch, mini in zip(mini_batches, share, strict=True):
            spare = most - _places(mini)
            for run in mini:
                rows = [mini_batch[n.index] for n in run] or [PADDING]
                rows += [PADDING] * (spare if run is mini[-1] else 0)
                result.rows += rows
                result.trees += [number] * len(rows)
                number += 1
                _count(result, run)
    return result


def filled(run: Run, limit: int) -> list[Run]:
    """The fewest runs into which a run divides so that each tree has at most ``limit`` tokens; a longer row is alone."""
    runs: list[list[Neighbour]] = []
    size = 0
    for row in run:
        size += row.length - row.shared
        if not runs or size > limit:
            runs.append([])
            size = row.length
        runs[-1].append(row)
    return list(runs)


def divided(run: Run, count: int) -> list[Run]:
    """At most ``count`` runs, the largest tree of which has as few tokens as possible."""
    low = max((row.length for row in run), default=0)
    high = sum(row.length for row in run)
    while low < high:
        middle = (low + high) // 2
        if len(filled(run, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return filled(run, low)


def new_tokens(run: Run) -> Iterator[tuple[int, int]]:
    """Of each row of a run, how many tokens it shares with the row before, and its length."""
    for number, row in enumerate(run):
        yield (row.shared if number else 0), row.length


def _padded(runs: list[Run], count: int) -> list[Run]:
    return [*runs, *[()] * (count - len(runs))]


def _places(mini: Sequence[Run]) -> int:
    """Rows of a mini-batch on a rank; a micro-batch without rows gets a padding row."""
    return sum(max(len(run), 1) for run in mini)


def _count(result: TreeRows, run: Run) -> None:
    for shared, length in new_tokens(run):
        result.tokens += length - shared
        result.pairs += pairs(length) - pairs(shared)
        result.branches += length > shared


def pairs(length: int) -> int:
    """Pairs of a token of a row and a token before it or itself."""
    return length * (length + 1) // 2


@dataclass(frozen=True, slots=True)
class TreeChoice:
    """What one job's updates depend on. ``wanted`` is the key ``backbone.verl.trees``; ``flops`` is None if there are no
    trees."""

    wanted: Wanted
    flops: Flops | None
    limit: int
    """Most tokens of a micro-batch, unless a step has its own limit."""
    pair: float = 1
    """How many times as long as a pair of a row a pair of a tree takes."""

    def rows(
        self,
        mini_batches: Sequence[Sequence[int]],
        samples: Sequence[Sample],
        ranks: int,
        limit: int | None = None,
    ) -> TreeRows | None:
        """The samples of ``mini_batches`` laid out as trees; None if they are to be computed as rows."""
        if self.flops is None:
            return None
        laid_out = lay_out_trees(mini_batches, samples, ranks, limit or self.limit)
        if self.wanted == "auto":
            used = [len(samples[i].token_ids) for mini_batch in mini_batches for i in mini_batch]
            if of_trees(laid_out, self.flops, self.pair) >= of_rows(used, self.flops):
                return None
        return laid_out


def of_rows(tokens: Sequence[int], flops: Flops) -> float:
    """Estimated cost of a forward pass over rows of so many tokens, as if verl padded none."""
    return flops.token * sum(tokens) + flops.pair * sum(map(pairs, tokens))


def of_trees(laid_out: TreeRows, flops: Flops, pair: float = 1) -> float:
    """Estimated cost of a forward pass over trees, in which a pair takes ``pair`` times as long as in rows."""
    blocks = flops.block * BRANCH_BLOCKS * laid_out.branches
    return flops.token * laid_out.tokens + pair * flops.pair * laid_out.pairs + blocks


def check_trees(config: DictConfig, settings: VerlSettings) -> None:
    """Raise ConfigError if the job asks for trees, and another key of it excludes them."""
    if settings.trees is True and (reason := tree_obstacle(config)):
        raise ConfigError(
            "backbone.verl.trees", f"not possible with {reason}. Change that key, or set trees: auto."
        )


def tree_obstacle(config: DictConfig) -> str:
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
        # verl then replaces the forward pass; trees have such a head of their own.
        (f"{model}.use_fused_kernels", True),
        (f"{model}.mtp.enable", True),  # predicts tokens further on in the row
    ]
    from omegaconf import OmegaConf

    for key, value in excluded:
        if OmegaConf.select(config, key) == value:
            return f"{key}: {str(value).lower()}"
    for part in (ACTOR, REF):
        if (ranks := sharing(config, "dp", part)) > 1:
            return f"{part}.fsdp_config.ulysses_sequence_parallel_size: {ranks}"
    return ""


def choice(config: DictConfig, wanted: Wanted, workers: Any, say: Any) -> TreeChoice:
    """The choice for a run's configuration and ``workers``, verl's group of them. On GPUs without flash attention, verl would pad rows,
    limit their tokens without the padding, and compute the logits of all: there `auto` means trees. Reports with ``say`` why rows are
    computed instead of trees, unless the job says so. Raises AjetError if the job asks for trees that the model excludes."""
    limit = row_limit(config)
    if wanted is False:
        return TreeChoice(wanted, None, 0)
    reason = tree_obstacle(config) or obstacle_of(workers)
    model = config.actor_rollout_ref.model
    padded = scale.on_gpus() and not model.use_remove_padding
    if not reason:
        pair = TREE_PAIR if scale.on_gpus() else 1
        return TreeChoice(wanted if not padded else True, flops_of(model), int(limit), pair)
    if wanted is True:
        raise AjetError("backbone.verl.trees", f"not possible: {reason.rstrip('.')}. Set trees: auto.")
    say(f"verl's workers compute rows, not trees: {reason.rstrip('.')}.{PADDED if padded else ''}")
    return TreeChoice(wanted, None, 0)


def obstacle_of(workers: Any) -> str:
    """Why the model of verl's workers cannot be computed over trees, as they have found when they loaded it; or ""."""
    import ray

    obstacle: str = ray.get(workers.workers[0].__ray_call__.remote(_obstacle_in))
    return obstacle


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
