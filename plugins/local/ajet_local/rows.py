"""Samples as padded rows: micro-batches, and the logprobs of their trained tokens with gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from ajet.interfaces.backbone import Need, Sample
from ajet.interfaces.engine import Int32
from ajet.learning.pairs import together
from ajet_local.critic import ValueHead
from ajet_local.modeling import checkpointed_layers, with_cache
from ajet_local.row_cache import keeps_states
from ajet_local.sight import Sight, images_in, places
from ajet_local.tokens import TrainedTokens
from ajet_trees.head import predict


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    """Split into groups of at most ``max_tokens`` tokens, padding included; a longer sample or pair is alone.

    Samples are sorted by length (stable), so there is little padding and the split is reproducible. Those of a pair stay
    together.
    """

    def longest(unit: Sequence[Sample]) -> int:
        return max(len(s.token_ids) for s in unit)

    groups: list[list[Sample]] = []
    for unit in sorted(together(samples), key=longest):
        if groups and (len(groups[-1]) + len(unit)) * longest(unit) <= max_tokens:
            groups[-1] += unit
        else:
            groups.append(unit)
    return groups


def shares_prefixes(model: Any) -> bool:
    """Whether the common prefix of rows is computed once: not with gradient checkpointing, whose layers use no cache, nor with states,
    which later tokens change in place."""
    return not checkpointed_layers(model) and not keeps_states(model)


def padded_size(samples: Sequence[Sample], *, sharing: bool) -> tuple[int, int]:
    """How many tokens, and how many pairs of query and key, `trained_tokens` computes for these samples. ``sharing`` is
    the result of `shares_prefixes`."""
    longest = max(len(s.token_ids) for s in samples)
    shared = _shared_prefix(samples) if sharing else 0
    own = len(samples) * (longest - shared)
    if shared:  # attention to a cache has a mask, so all pairs are computed
        return shared + own, _causal_pairs(shared) + own * longest
    return own, len(samples) * _causal_pairs(longest)


def _causal_pairs(length: int) -> int:
    """Computed pairs of a row without a mask. The kernel skips later keys in blocks, so it computes some of them."""
    return length * (length // 2 + min(length // 2, 300))


def trained_tokens(
    model: Any, samples: Sequence[Sample], needs: Collection[Need] = (), head: ValueHead | None = None
) -> TrainedTokens:
    """Run ``model`` over ``samples`` as padded rows; gradients flow into its parameters, and into those of ``head``, which
    predicts the tokens' values.

    The rows' common prefix is computed once, with gradients, through the key-value cache. The output layer is computed only
    for trained tokens.
    """
    device = model.device
    rows, columns = np.nonzero(_padded([s.mask for s in samples]))
    ids = _padded([s.token_ids for s in samples])
    shared = _shared_prefix(samples) if shares_prefixes(model) else 0
    cache = None
    inputs = _inputs(model, samples, ids)
    if shared:
        cache = DynamicCache(config=model.config)
        model(**inputs(slice(1), slice(shared)), **with_cache(model, cache), logits_to_keep=1)
        cache.batch_repeat_interleave(len(samples))
    wanted, index = np.unique(columns - 1 - shared, return_inverse=True)
    predictions = predict(
        model,
        **inputs(slice(None), slice(shared, None)),
        **with_cache(model, cache),
        logits_to_keep=torch.as_tensor(wanted, device=device),
    )[torch.as_tensor(rows, device=device), torch.as_tensor(index, device=device)]
    return TrainedTokens.of(samples, predictions, needs, head)


def _inputs(
    model: Any, samples: Sequence[Sample], ids: np.ndarray
) -> Callable[[slice, slice], dict[str, torch.Tensor]]:
    """Returns the arguments with which ``model`` computes some rows and columns of ``ids`` int32[B, T]."""
    sight = Sight.of(model)
    if sight is None:
        plain = torch.as_tensor(ids, dtype=torch.long, device=model.device)
        return lambda rows, columns: {"input_ids": plain[rows, columns]}
    images = images_in(s.images for s in samples)
    placed, features = sight.placed(images), sight.features(images)
    by_row = [places(row, placed, sight.mrope) for row in ids]
    of_images = np.stack([p.rows for p in by_row])
    positions = sight.positions(np.stack([p.positions for p in by_row], axis=1))
    return lambda rows, columns: {
        "inputs_embeds": sight.embedded(ids[rows, columns], of_images[rows, columns], features),
        "position_ids": positions[..., rows, columns],
    }


def _shared_prefix(samples: Sequence[Sample]) -> int:
    """Length of the rows' common prefix, at most up to the token that predicts the first trained one (exclusive)."""
    first_trained = min(int(s.mask.argmax()) for s in samples)
    return common_prefix([s.token_ids for s in samples], first_trained - 1)


def _padded(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """[B, max T], padded with zeros on the right; with causal attention the padding affects no real token."""
    out = np.zeros((len(arrays), max(map(len, arrays))), dtype=arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out


def common_prefix(rows: Sequence[Int32], limit: int) -> int:
    """Length of the longest prefix, at most ``limit`` tokens, that all ``rows`` (int32[T_i]) share: most of an agent's prompt is its
    system prompt and tools. 0 for a single row."""
    if len(rows) < 2:
        return 0
    length = max(0, min(limit, *(len(row) for row in rows)))
    first = rows[0]
    for row in rows[1:]:
        differing = np.flatnonzero(first[:length] != row[:length])
        if len(differing):
            length = int(differing[0])
    return length
