"""The parts of a model's layers in fewer kernels, which torch compiles: norms, rotary positions, activations and casts.

On a GPU these take longer than matrix products do: in a layer of Qwen3-0.6B, whose float32 weights are trained in bfloat16, 182
kernels move 1.3 MB for each token, forward and backward; compiled, 69 move 0.32 MB. Attention stays as it is, outside
of what is compiled, and so do the products of the head, whose kernels are in `ajet_trees.head`. A model is compiled when it is
loaded, and is used so only if its logprobs and gradients over a small tree are those of the plain pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from ajet.interfaces.engine import Int32
from ajet_local.modeling import checkpointing, first_line
from ajet_local.sight import Sight
from ajet_local.trees import has_trees
from ajet_trees.attention import TreeLayout
from ajet_trees.head import fuse_head, predict
from ajet_trees.models import LEAF, TOLERATED, forked, tree_inputs

NOISE = 1e-3
"""Errors of a gradient below this share of all gradients are none: the gradient of a bias of keys is nothing but rounding."""


def fuse(
    model: Any, computing: Callable[[], AbstractContextManager[None]], *, backend: str = "inductor"
) -> str:
    """Compile the parts of the layers of ``model`` and its head for its passes over trees, with a ``backend`` of torch's compiler;
    ``computing`` gives the block in which they run. Returns why that is not possible, or ""; if it is not, the model is as before.
    Copies of a fused model would compute with its weights.
    """
    if not has_trees(model):
        return "samples are computed as rows"
    if Sight.of(model) is not None:
        return "the model reads images"

    def compiled(function: Any) -> Any:
        return torch.compile(function, dynamic=True, backend=backend)

    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    parts = [part for layer in layers for part in layer.children()]
    weights = [p for layer in layers for p in layer.parameters() if p.requires_grad]
    before = [vars(part).get("forward") for part in parts]
    tree = forked()
    chain = np.arange(-1, len(tree) - 1, dtype=np.int32)
    with checkpointing(model):
        plain = _found(model, tree, computing, weights)
        wrong = _found(model, chain, computing, [])
        try:
            for part in parts:
                part.forward = _over_trees(part.forward, compiled(part.forward))
            fuse_head(model, compiled)
            found = _found(model, tree, computing, weights)
            reason = _difference(plain, found, (wrong[0] - plain[0]).norm())
        except Exception as error:  # a compiler may raise anything for code that it does not know
            reason = first_line(error)
    if reason:
        fuse_head(model, None)
        for part, forward in zip(parts, before, strict=True):
            vars(part).pop("forward", None)  # the compiler may have failed before it
            if forward is not None:
                part.forward = forward
    return reason


def _over_trees(forward: Any, compiled: Any) -> Any:
    """``compiled`` in place of the ``forward`` of a part of a layer, but not for attention to anything but a tree: it would be compiled
    for each cache."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (forward if kwargs and kwargs.get("tree") is None else compiled)(*args, **kwargs)

    return chosen


def _found(
    model: Any,
    parents: Int32,
    computing: Callable[[], AbstractContextManager[None]],
    weights: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Logprobs and entropies, float32[2 · LEAF], after the last tokens of a tree, and the gradients for ``weights`` of their sum."""
    ids = torch.arange(len(parents), device=model.device)
    last = ids[-LEAF:]
    temperatures = torch.linspace(0.5, 1.5, LEAF, device=model.device)
    with computing(), torch.set_grad_enabled(bool(weights)):
        predictions = predict(model, **tree_inputs(ids % 50, TreeLayout(parents), last), use_cache=False)[0]
        found = torch.cat(predictions.logprobs(last % 50, temperatures, entropy=True))
    if not weights:
        return [found]
    gradients = torch.autograd.grad(found.sum(), weights, allow_unused=True, materialize_grads=True)
    return [found.detach(), *gradients]


def _difference(plain: Sequence[torch.Tensor], found: Sequence[torch.Tensor], scale: torch.Tensor) -> str:
    """How logprobs and gradients differ from those of the plain pass; "" if they do not. Errors of logprobs are measured by what a
    wrong mask changes, ``scale``, those of a gradient by itself."""
    if not (found[0] - plain[0]).norm() <= TOLERATED * scale:  # so NaN is a difference
        return "compiled kernels give other logprobs"
    sizes = torch.stack([gradient.norm() for gradient in plain[1:]])
    errors = torch.stack([(a - b).norm() for a, b in zip(found[1:], plain[1:], strict=True)])
    if not (errors <= TOLERATED * sizes + NOISE * sizes.norm()).all():
        return "compiled kernels give other gradients"
    return ""
