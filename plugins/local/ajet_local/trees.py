"""Samples as trees: the logprobs of trained tokens with gradients, every unique token computed once.

Whether that pays is estimated for each mini-batch, from what its rows share: `plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ajet.learning.packing import pack, split
from ajet.types import Int32, Sample, SampleTree
from ajet_local.rows import TrainedTokens, chosen_logprobs, micro_batches, padded_size, trained_tokens
from ajet_local.tree_attention import NAME, TreeLayout

ENOUGH = 2048
"""Tokens of a forward pass after which more of them only make a CPU slower, as its caches overflow, and
take memory: 1.4 M parameters trained on rows of 16,384 tokens at a time took 4 GB."""
BLOCK_FLOPS = 3e6
"""What a block of attention costs besides its matrix products, in the work that a core does meanwhile."""
PASS_BLOCKS = 2
"""A forward pass over a tree costs so many blocks more than one over rows."""


def tree_tokens(model: Any, tree: SampleTree) -> TrainedTokens:
    """Run ``model`` over ``tree``; gradients flow from ``new`` into its parameters.

    The trained tokens come credit by credit. Tokens that precede no other are not computed, and logits
    exist only where a trained token is predicted.
    """
    device = model.device
    computed, parents = _computed(tree.parents)
    places = np.cumsum(computed) - 1
    positions = np.concatenate([c.positions for c in tree.credits])
    predicting = places[tree.parents[positions]]
    wanted, index = np.unique(predicting, return_inverse=True)
    if len(wanted) == len(predicting):  # no logits are used twice: they need no gathering
        wanted, index = predicting, None

    def tensor(array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.as_tensor(array, dtype=dtype, device=device)

    ids = tensor(tree.token_ids[computed], torch.long)
    logits = _tree_logits(model, ids, TreeLayout(parents), tensor(wanted))
    old, advantages, weights, temperatures = (
        tensor(np.concatenate([getattr(c, name) for c in tree.credits]))
        for name in ("logprobs", "advantages", "weights", "temperatures")
    )
    targets = tensor(tree.token_ids[positions], torch.long)
    new = chosen_logprobs(logits if index is None else logits[tensor(index)], temperatures, targets)
    return TrainedTokens(new, old, advantages, weights)


def _computed(parents: Int32) -> tuple[np.ndarray, Int32]:
    """Which tokens precede another (bool[N]), and the tree of only those: their parents."""
    computed = np.zeros(len(parents), np.bool_)
    computed[parents[parents >= 0]] = True
    places = np.append(np.cumsum(computed) - 1, -1)
    return computed, places[parents[computed]].astype(np.int32)


def _tree_logits(model: Any, ids: torch.Tensor, layout: TreeLayout, keep: torch.Tensor) -> torch.Tensor:
    return model(
        input_ids=ids[None],
        position_ids=torch.as_tensor(layout.depths, device=ids.device)[None],
        attention_mask=torch.ones(1, 1, 1, 1, device=ids.device),  # has four dimensions: taken as it is
        use_cache=False,
        logits_to_keep=keep,
        tree=layout,
    ).logits[0]


# --------------------------------------------------------------------------- trees or rows


@dataclass(frozen=True, slots=True)
class Plan:
    """How a mini-batch is computed: ``tokens(model, group)`` for each of the groups."""

    groups: list[list[Sample]]
    tokens: Callable[[Any, Sequence[Sample]], TrainedTokens]


def plan(model: Any, samples: Sequence[Sample], max_tokens: int, trees: bool = True) -> Plan:
    """Trees or rows, whichever is estimated to cost less, in groups of at most ``max_tokens`` tokens."""
    enough = ENOUGH if model.device.type == "cpu" else max_tokens
    rows = Plan(micro_batches(samples, min(max_tokens, enough)), trained_tokens)
    if not trees:
        return rows
    forest = Plan(split(samples, max_tokens, enough), _packed_tokens)
    cost = _Cost(model)
    if sum(map(cost.tree, forest.groups)) <= sum(map(cost.rows, rows.groups)):
        return forest
    return rows


def _packed_tokens(model: Any, samples: Sequence[Sample]) -> TrainedTokens:
    return tree_tokens(model, pack(samples))


class _Cost:
    """Estimates in floating-point operations of a forward pass; the backward pass goes along with it."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        embedded = model.get_input_embeddings().weight.numel()
        self.layers = config.num_hidden_layers
        self.token = 2 * max(sum(p.numel() for p in model.parameters()) - embedded, embedded)
        self.pair = 4 * self.layers * config.num_attention_heads * size

    def tree(self, samples: Sequence[Sample]) -> float:
        """Of the samples' tree."""
        parents = _computed(pack(samples).parents)[1]
        work = TreeLayout(parents).work
        blocks = work.blocks + PASS_BLOCKS
        return self.token * len(parents) + self.pair * work.pairs + BLOCK_FLOPS * self.layers * blocks

    def rows(self, samples: Sequence[Sample]) -> float:
        """Of the samples as padded rows."""
        tokens, pairs = padded_size(samples)
        return self.token * tokens + self.pair * pairs


# --------------------------------------------------------------------------- which models can


def enable_trees(model: Any) -> str:
    """Prepare ``model`` to be computed over trees. Returns why it cannot be, or "".

    A model qualifies if it attends through transformers' attention interface, in every layer to all that
    came before, and if a small tree gives it the logits of the tree's rows.
    """
    if model.device.type not in ("cpu", "cuda"):
        return f"there is no tree attention for {model.device.type} devices"
    config = model.config.get_text_config()
    others = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if others:
        return f"the model has layers of {', '.join(sorted(others))}"
    if config._attn_implementation not in ("sdpa", NAME):
        return f"its attention implementation is {config._attn_implementation!r}, not 'sdpa'"
    before = config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        reason = _probe(model, config.num_hidden_layers)
    except Exception as error:  # whatever an architecture makes of what it does not know
        reason = str(error) or type(error).__name__
    if reason:
        model.set_attn_implementation(before)
    return reason


@torch.no_grad()
def _probe(model: Any, layers: int) -> str:
    """Compare a tree of two branches with its two rows."""
    ids = torch.arange(6, device=model.device)
    layout = TreeLayout(np.array([-1, 0, 1, 2, 1, 4], np.int32))
    of_tree = _tree_logits(model, ids, layout, ids)
    if layout.uses != layers:
        return f"{layout.uses} of its {layers} layers attend through the attention interface"
    rows = torch.tensor([[0, 1, 2, 3], [0, 1, 4, 5]], device=model.device)
    of_rows = model(input_ids=rows, use_cache=False).logits
    error = (of_tree[[2, 3, 4, 5]] - of_rows[:, 2:].flatten(0, 1)).abs().max()
    tolerance = 100 * torch.finfo(of_rows.dtype).eps * of_rows.abs().max()
    return "" if error <= tolerance else "its logits over a tree are not those over rows"
