"""What of a tree a model computes, its inputs, and which models can compute trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ajet.types import Int32, SampleTree
from ajet_trees.attention import NAME, TreeLayout


class ComputedTree:
    """The part of a tree that the model computes: the N tokens that have a child. They predict the T trained tokens."""

    def __init__(self, tree: SampleTree) -> None:
        self.samples = tree.samples
        parents = tree.parents
        computed = np.zeros(len(parents), np.bool_)
        computed[parents[parents >= 0]] = True
        new_index = np.append(np.cumsum(computed) - 1, -1)
        self.token_ids: Int32 = tree.token_ids[computed]
        """int32[N]."""
        self.parents: Int32 = new_index[parents[computed]].astype(np.int32)
        """int32[N], as indices of computed tokens."""
        trained = np.concatenate(tree.positions)
        self.predicting: np.ndarray = new_index[parents[trained]]
        """int64[T]: the computed token that predicts each trained token, sample by sample."""

    @cached_property
    def layout(self) -> TreeLayout:
        """The blocks of attention over the tree."""
        return TreeLayout(self.parents)


def tree_inputs(ids: torch.Tensor, layout: TreeLayout, keep: torch.Tensor) -> dict[str, Any]:
    """The arguments with which a model of transformers computes a tree: tokens ``ids`` int64[N], logits for the tokens
    ``keep`` int64[K]. Its attention must be `NAME`."""
    return {
        "input_ids": ids[None],
        "position_ids": torch.as_tensor(layout.depths, device=ids.device)[None],
        # transformers passes a mask of four dimensions on unchanged
        "attention_mask": torch.ones(1, 1, 1, 1, device=ids.device),
        "logits_to_keep": keep,
        "tree": layout,
    }


@contextmanager
def over_trees(config: Any) -> Iterator[None]:
    """A block in which a model computes trees; ``config`` is that of its text. It must include the backward pass if layers
    are recomputed there."""
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


# --------------------------------------------------------------------------- which models support trees


def obstacle(config: Any, device: torch.device) -> str:
    """Why no model with this configuration, that of its text, computes trees on the device; "" if `difference` decides."""
    if device.type not in ("cpu", "cuda"):
        return f"there is no tree attention for {device.type} devices"
    others = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if others:
        return f"the model has layers of {', '.join(sorted(others))}"
    return ""


@torch.no_grad()
def difference(model: Callable[..., Any], layers: int, device: torch.device) -> str:
    """How the model's logits over a tree of two branches differ from those over its two rows; "" if they do not. Its attention
    must be `NAME` in all its ``layers``."""
    ids = torch.arange(6, device=device)
    layout = TreeLayout(np.array([-1, 0, 1, 2, 1, 4], np.int32))
    rows = torch.tensor([[0, 1, 2, 3], [0, 1, 4, 5]], device=device)
    try:
        of_tree = model(**tree_inputs(ids, layout, ids), use_cache=False).logits[0]
        if layout.uses != layers:
            return f"{layout.uses} of its {layers} layers attend through the attention interface"
        of_rows = model(input_ids=rows, use_cache=False).logits
    except Exception as error:  # an architecture may raise anything for arguments that it does not know
        return str(error) or type(error).__name__
    largest = (of_tree[[2, 3, 4, 5]] - of_rows[:, 2:].flatten(0, 1)).abs().max()
    tolerance = 100 * torch.finfo(of_rows.dtype).eps * of_rows.abs().max()
    return "" if largest <= tolerance else "its logits over a tree differ from those over rows"
