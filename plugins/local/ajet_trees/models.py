"""What of a tree a model computes, its inputs, and which models can compute trees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ajet.interfaces.backbone import SampleTree
from ajet.interfaces.engine import Int32
from ajet_trees.attention import NAME, TreeLayout

TOLERATED = 0.25
"""Most that a median error of a model over trees may be, as a share of that with a wrong mask."""


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


def difference(model: Any, layers: int, device: torch.device) -> str:
    """How a model over a forked tree differs from itself over the tree's rows; "" if it does not. Its attention must be `NAME` in
    all its ``layers``.

    It compares logits, and the gradients of the tokens' embeddings. How much rounding changes these depends on the model
    and its type, so errors are measured by those of a mask that ignores the forks. An exception is a difference, too.
    """
    tree = TreeLayout(forked())
    ends = np.flatnonzero(tree.depths == tree.depths.max())
    # int64[B, T]: the tokens of each row.
    rows = np.array([np.flatnonzero(tree.mask.numpy()[end]) for end in ends])
    ids = torch.arange(len(tree.parents), device=device) % 50
    leaves = torch.as_tensor(rows[:, -LEAF:].flatten(), device=device)
    try:
        inputs = tree_inputs(ids, tree, leaves)
        right = _logits_and_gradients(model, inputs, np.arange(len(ids)))
        if tree.uses != layers:
            return f"{tree.uses} of its {layers} layers attend through the attention interface"
        expected = _logits_and_gradients(model, {"input_ids": ids[rows], "logits_to_keep": LEAF}, rows)
        straight = TreeLayout(np.arange(-1, len(ids) - 1, dtype=np.int32))
        wrong = _logits_and_gradients(model, inputs | {"tree": straight}, np.arange(len(ids)))
    except Exception as error:  # an architecture may raise anything for arguments that it does not know
        return str(error).partition("\n")[0] or type(error).__name__
    for name, ours, exact, bad in zip(("logits", "gradients"), right, expected, wrong, strict=True):
        off, scale = ((x - exact).abs().median() for x in (ours, bad))
        if not off <= TOLERATED * scale:  # so NaN is a difference
            return f"its {name} over a tree differ from those over rows"
    return ""


TRUNK, BRANCH, LEAF = 70, 46, 24
"""Tokens between the forks of the tree that `difference` computes: none at the edge of a block of attention, and together just more
than a tree that is computed as one block."""


def forked() -> Int32:
    """The parents, int32[N], of a trunk with two branches of two leaves."""
    parents = np.arange(-1, TRUNK + 2 * (BRANCH + 2 * LEAF) - 1, dtype=np.int32)
    for branch in (TRUNK, TRUNK + BRANCH + 2 * LEAF):
        parents[branch] = TRUNK - 1
        parents[branch + BRANCH + LEAF] = branch + BRANCH - 1
    return parents


def _logits_and_gradients(
    model: Any, inputs: dict[str, Any], tokens: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits that a model gives for ``inputs``, float32[K, V], and the gradients of the tokens' embeddings, float32[N, H],
    for a loss of these logits. ``tokens`` says which token each position is; several may be the same."""
    embedded: list[torch.Tensor] = []

    def leaf(layer: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[0]

    handle = model.get_input_embeddings().register_forward_hook(leaf)
    try:
        with torch.enable_grad():
            logits = model(**inputs, use_cache=False).logits.flatten(0, 1).float()
            (-logits.log_softmax(-1)[:, 0].sum()).backward(inputs=embedded)
    finally:
        handle.remove()
    of_places = embedded[0].grad.flatten(0, 1).float()
    where = torch.as_tensor(tokens.flatten(), device=of_places.device)
    gradients = of_places.new_zeros(int(tokens.max()) + 1, of_places.shape[1]).index_add(0, where, of_places)
    return logits.detach(), gradients
