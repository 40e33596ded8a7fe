"""Samples to a tree: what rows share is stored once, and computed once by a trainer that works on trees.

Backbones still exchange rows; a trainer that can compute on trees packs the rows of a micro-batch. Credit is
never merged: samples with the same tokens remain two samples, at the same positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ajet.tracker.tree import Branch, Node, TokenTree, common_length
from ajet.types import Int32, Sample, SampleTree

NEXT_TO_NOTHING = 0.05
"""Share of a group that has enough tokens."""


def pack(samples: Sequence[Sample]) -> SampleTree:
    """The tree of the samples.

    Tokens after a sample's last trained one predict nothing and are left out. Longer samples are added first, so
    that a node's first child begins its longest path.
    """
    tree = TokenTree()
    ends: list[Node] = [tree.root] * len(samples)
    used = [s.token_ids[: useful_length(s)] for s in samples]
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
    positions = tuple(
        _places(end, offsets)[s.mask[: end.length]] for s, end in zip(samples, ends, strict=True)
    )
    return SampleTree(np.concatenate(ids), np.concatenate(parents), tuple(samples), positions)


def useful_length(sample: Sample) -> int:
    """The number of tokens up to the last trained one; later ones are useless."""
    return len(sample.mask) - int(sample.mask[::-1].argmax()) if sample.mask.any() else 0


def split(samples: Sequence[Sample], max_tokens: int, enough: int | None = None) -> list[list[Sample]]:
    """Groups of samples whose trees have at most ``max_tokens`` tokens each; a longer sample is alone.

    Neighbours in the tree stay together, so that little of what they share is repeated. A group of ``enough``
    tokens ends early if the next sample shares almost nothing with it.
    """
    used = [s.token_ids[: useful_length(s)] for s in samples]
    order = sorted(range(len(samples)), key=lambda i: used[i].astype(">i4").tobytes())
    groups: list[list[Sample]] = []
    size = 0
    previous: Int32 = np.zeros(0, np.int32)
    for i in order:
        shared = common_length(used[i], previous)
        own = len(used[i]) - shared
        apart = enough is not None and size >= enough and shared <= NEXT_TO_NOTHING * enough
        if groups and not apart and size + own <= max_tokens:
            groups[-1].append(samples[i])
            size += own
        else:
            groups.append([samples[i]])
            size = len(used[i])
        previous = used[i]
    return groups


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
