"""Samples as a tree: the logprobs of their trained tokens, with gradients, each shared token computed once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from ajet.interfaces.backbone import Need
from ajet_local.critic import ValueHead
from ajet_local.sight import Sight, images_in, tree_places
from ajet_local.tokens import TrainedTokens
from ajet_trees.attention import NAME
from ajet_trees.head import predict
from ajet_trees.models import ComputedTree, difference, obstacle, tree_inputs


def tree_tokens(
    model: Any, tree: ComputedTree, needs: Collection[Need] = (), head: ValueHead | None = None
) -> TrainedTokens:
    """Run ``model`` over ``tree``; gradients flow into its parameters, and into those of ``head``, which predicts the tokens'
    values. The output layer is computed only for trained tokens."""
    device = model.device
    keep = torch.as_tensor(tree.predicting, device=device)
    ids = torch.as_tensor(tree.token_ids, dtype=torch.long, device=device)
    inputs = tree_inputs(ids, tree.layout, keep)
    sight = Sight.of(model)
    if sight is not None:
        images = images_in(s.images for s in tree.samples)
        at = tree_places(tree.token_ids, tree.parents, sight.placed(images), sight.mrope)
        del inputs["input_ids"]
        inputs["inputs_embeds"] = sight.embedded(tree.token_ids[None], at.rows[None], sight.features(images))
        inputs["position_ids"] = sight.positions(at.positions[:, None])
    return TrainedTokens.of(tree.samples, predict(model, **inputs, use_cache=False)[0], needs, head)


def has_trees(model: Any) -> bool:
    """Whether `enable_trees` has prepared the model."""
    return bool(model.config.get_text_config()._attn_implementation == NAME)


def enable_trees(model: Any) -> str:
    """Prepare ``model`` to be computed over trees. Returns why that is not possible, or "".

    A model qualifies if all its layers have full attention through transformers' attention interface, and if its logits
    over a small tree equal those over the tree's rows.
    """
    config = model.config.get_text_config()
    before = config._attn_implementation
    if getattr(config, "output_router_logits", False):
        config.output_router_logits = (
            False  # for a loss of routers that no algorithm adds, and which fails over trees
        )
    if reason := obstacle(config, model.device):
        return reason
    if before not in ("sdpa", NAME):
        return f"its attention implementation is {before!r}, not 'sdpa'"
    model.set_attn_implementation(NAME)
    reason = difference(model, config.num_hidden_layers, model.device)
    if reason:
        model.set_attn_implementation(before)
    return reason
