"""Samples as trees: the logprobs of trained tokens with gradients, every unique token computed once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ajet.types import SampleTree
from ajet_local.rows import TrainedTokens, chosen_logprobs
from ajet_local.tree_attention import TreeLayout


def tree_tokens(model: Any, tree: SampleTree) -> TrainedTokens:
    """Run ``model`` over ``tree``; gradients flow from ``new`` into its parameters.

    The trained tokens come credit by credit. Tokens that precede no other are not computed, and logits exist only
    where a trained token is predicted.
    """
    device = model.device
    computed = np.zeros(len(tree.parents), np.bool_)
    computed[tree.parents[tree.parents >= 0]] = True
    places = np.cumsum(computed) - 1
    parents = tree.parents[computed]
    parents = np.where(parents < 0, -1, places[parents])
    layout = TreeLayout(parents)
    positions = np.concatenate([c.positions for c in tree.credits])
    wanted, index = np.unique(places[tree.parents[positions]], return_inverse=True)

    def tensor(array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.as_tensor(array, dtype=dtype, device=device)

    logits = model(
        input_ids=tensor(tree.token_ids[computed], torch.long)[None],
        position_ids=tensor(layout.depths)[None],
        attention_mask=torch.ones(1, 1, 1, 1, device=device),  # of four dimensions, so nothing is made of it
        use_cache=False,
        logits_to_keep=tensor(wanted),
        tree=layout,
    ).logits[0]
    flat = [
        tensor(np.concatenate([getattr(c, name) for c in tree.credits]))
        for name in ("logprobs", "advantages", "weights", "temperatures")
    ]
    targets = tensor(tree.token_ids[positions], torch.long)
    return TrainedTokens(chosen_logprobs(logits[tensor(index)], flat[3], targets), *flat[:3])
