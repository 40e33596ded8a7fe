"""Samples to a tree: what rows share is stored, and by a trainer of trees computed, once.

Rows stay what backbones exchange; a trainer that can compute on trees packs those of a micro-batch.
Credit is never merged: rows that sampled the same tokens keep one `Credit` each, at the same positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ajet.tracker.tree import Branch, Node, TokenTree, common_length
from ajet.types import Credit, Float32, Int32, Sample, SampleTree

NEXT_TO_NOTHING = 0.05
"""As a share of a group that has enough tokens."""


def pack(samples: Sequence[Sample]) -> SampleTree:
    """The tree of the samples; ``credits[i]`` belongs to ``samples[i]``.

    Tokens after a sample's last trained one predict nothing and are left out. Longer samples go in first,
    so that a node's first child begins its longest way down.
    """
    tree = TokenTree()
    ends: list[Node] = [tree.root] * len(samples)
    used = [s.token_ids[: np.flatnonzero(s.mask)[-1] + 1 if s.mask.any() else 0] for s in samples]
    for i in sorted(range(len(samples)), key=lambda i: -len(used[i])):
        ends[i] = tree.extend(tree.root, used[i])
    ids: list[Int32] = []
    parents: list[Int32] = []
    offsets: dict[Branch, int] = {}
    total = 0
    stack = [tree.branches[0]]
    while stack:
        branch = stack.pop()
        offsets[branch] = total
        tokens = np.frombuffer(bytes(branch.data), np.int32)
        before = np.arange(total - 1, total + len(tokens) - 1, dtype=np.int32)
        if len(tokens):
            before[0] = _index(branch.parent, branch.start - 1, offsets)
        ids.append(tokens)
        parents.append(before)
        total += len(tokens)
        stack += sorted(branch.children.values(), key=lambda child: child.start)  # the deepest is next
    places = [_places(end, offsets) for end in ends]
    return SampleTree(
        np.concatenate(ids),
        np.concatenate(parents),
        tuple(_credit(s, place) for s, place in zip(samples, places, strict=True)),
    )


def split(samples: Sequence[Sample], max_tokens: int, enough: int | None = None) -> list[list[Sample]]:
    """Groups of samples whose trees have at most ``max_tokens`` tokens each; a longer sample is alone.

    Neighbours in the tree stay together, so that little of what they share is repeated. A group of
    ``enough`` tokens ends already where the next sample shares next to nothing with it.
    """
    ends = [int(c.positions[-1]) if len(c.positions) else -1 for c in pack(samples).credits]
    groups: list[list[Sample]] = []
    size = 0
    previous: Int32 = np.zeros(0, np.int32)
    for i in sorted(range(len(samples)), key=ends.__getitem__):
        ids = samples[i].token_ids
        shared = common_length(ids, previous)
        full = size + len(ids) - shared > max_tokens
        if enough is not None and size >= enough and shared <= NEXT_TO_NOTHING * enough:
            full = True
        if groups and not full:
            groups[-1].append(samples[i])
            size += len(ids) - shared
        else:
            groups.append([samples[i]])
            size = len(ids)
        previous = ids
    return groups


def _credit(sample: Sample, places: Int32) -> Credit:
    on = np.flatnonzero(sample.mask)
    return Credit(
        places[on],
        sample.logprobs[on],
        sample.advantages[on],
        sample.weights[on],
        temperatures(sample)[on],
        sample.episode,
    )


def temperatures(sample: Sample) -> Float32:
    """float32[T]: the temperature of each token's span; 1 outside of spans and in greedy ones."""
    found = np.ones(len(sample.token_ids), np.float32)
    for span in sample.spans:
        found[span.start : span.end] = span.temperature or 1.0
    return found


def _places(end: Node, offsets: dict[Branch, int]) -> Int32:
    """The indices of a sequence's tokens."""
    places = np.empty(end.length, np.int32)
    branch: Branch | None = end.branch
    stop = end.length
    while branch is not None:
        first = offsets[branch] - branch.start
        places[branch.start : stop] = np.arange(first + branch.start, first + stop)
        stop = branch.start
        branch = branch.parent
    return places


def _index(branch: Branch | None, position: int, offsets: dict[Branch, int]) -> int:
    """The index of the token at a position of the sequence on ``branch``; -1 before the first."""
    while branch is not None and position < branch.start:
        branch = branch.parent
    return -1 if branch is None else offsets[branch] + position - branch.start
