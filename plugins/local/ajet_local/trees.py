"""Samples as a tree: the logprobs of their trained tokens with gradients, every unique token computed once."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ajet.types import Int32, Need, SampleTree
from ajet_local.tokens import TrainedTokens
from ajet_local.tree_attention import NAME, TreeLayout


class ComputedTree:
    """What of a tree goes through the model: its tokens that precede another one."""

    def __init__(self, tree: SampleTree) -> None:
        self.samples = tree.samples
        parents = tree.parents
        computed = np.zeros(len(parents), np.bool_)
        computed[parents[parents >= 0]] = True
        places = np.append(np.cumsum(computed) - 1, -1)
        self.token_ids: Int32 = tree.token_ids[computed]
        """int32[N]."""
        self.parents: Int32 = places[parents[computed]].astype(np.int32)
        """int32[N], among the computed ones."""
        trained = np.concatenate(tree.positions)
        self.predicting: np.ndarray = places[parents[trained]]
        """int64[T]: which of them predicts each trained token, sample by sample."""

    @cached_property
    def layout(self) -> TreeLayout:
        """For attention."""
        return TreeLayout(self.parents)


def tree_tokens(model: Any, tree: ComputedTree, needs: Collection[Need] = ()) -> TrainedTokens:
    """Run ``model`` over ``tree``; gradients flow into its parameters.

    Logits exist only where a trained token is predicted.
    """
    device = model.device
    wanted, index = np.unique(tree.predicting, return_inverse=True)
    once = len(wanted) == len(index)  # then they need no gathering
    keep = torch.as_tensor(tree.predicting if once else wanted, device=device)
    ids = torch.as_tensor(tree.token_ids, dtype=torch.long, device=device)
    logits = _tree_logits(model, ids, tree.layout, keep)
    if not once:
        logits = logits[torch.as_tensor(index, device=device)]
    return TrainedTokens.of(tree.samples, logits, needs)


def _tree_logits(model: Any, ids: torch.Tensor, layout: TreeLayout, keep: torch.Tensor) -> torch.Tensor:
    return model(
        input_ids=ids[None],
        position_ids=torch.as_tensor(layout.depths, device=ids.device)[None],
        attention_mask=torch.ones(1, 1, 1, 1, device=ids.device),  # has four dimensions: taken as it is
        use_cache=False,
        logits_to_keep=keep,
        tree=layout,
    ).logits[0]


# --------------------------------------------------------------------------- which models can


def has_trees(model: Any) -> bool:
    """Whether `enable_trees` has prepared the model."""
    return bool(model.config.get_text_config()._attn_implementation == NAME)


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
