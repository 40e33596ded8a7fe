"""Samples to a tree: what rows share is stored once, and computed once by a trainer that works on trees.

Backbones still exchange rows; a trainer that can compute on trees packs the rows of a micro-batch. Credit is
never merged: samples with the same tokens remain two samples, at the same positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ajet.tracker.flat import flatten
from ajet.tracker.tree import Branch, Node, TokenTree, common_length
from ajet.types import Sample, SampleTree

NEXT_TO_NOTHING = 0.05
"""Share of a group that has enough tokens."""


def pack(samples: Sequence[Sample]) -> SampleTree:
    """The tree of the samples.

    Tokens after a sample's last trained one predict nothing and are left out. Longer samples are added first, so
    that a node's first child begins its longest path. Samples of different adapters share nothing, because each adapter
    computes something else from the same tokens.
    """
    trees: dict[str | None, TokenTree] = {}
    ends: dict[int, Node] = {}
    used = [s.token_ids[: useful_length(s)] for s in samples]
    for i in sorted(range(len(samples)), key=lambda i: -len(used[i])):
        tree = trees.setdefault(samples[i].adapter, TokenTree())
        ends[i] = tree.extend(tree.root, used[i])
    flat = flatten((branch, branch.end) for tree in trees.values() for branch in _deepest_first(tree))
    positions = tuple(flat.indices(ends[i])[s.mask[: ends[i].length]] for i, s in enumerate(samples))
    return SampleTree(flat.token_ids, flat.parents, tuple(samples), positions)


def useful_length(sample: Sample) -> int:
    """The number of tokens up to the last trained one; later ones are useless."""
    return len(sample.mask) - int(sample.mask[::-1].argmax()) if sample.mask.any() else 0


def split(samples: Sequence[Sample], max_tokens: int, enough: int | None = None) -> list[list[Sample]]:
    """Groups of samples whose trees have at most ``max_tokens`` tokens each; a longer sample is alone.

    Neighbours in the tree stay together, so that little of what they share is repeated. A group of ``enough``
    tokens ends early if the next sample shares almost nothing with it.
    """
    groups: list[list[Sample]] = []
    size = 0
    for found in neighbours(samples):
        sample, shared = samples[found.index], found.shared
        apart = enough is not None and size >= enough and shared <= NEXT_TO_NOTHING * enough
        if groups and not apart and size + found.length - shared <= max_tokens:
            groups[-1].append(sample)
            size += found.length - shared
        else:
            groups.append([sample])
            size = found.length
    return groups


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A sample in the order of the samples' tokens, in which those that share most are next to each other."""

    index: int
    length: int
    """The number of its tokens up to the last trained one."""
    shared: int
    """How many of them it shares with the sample before; the tree has the others only from it on."""


def neighbours(samples: Sequence[Sample]) -> list[Neighbour]:
    """The samples in the order of their adapters and tokens. The tree of a run of them has the first one's ``length``
    tokens, and ``length - shared`` of each further one."""
    used = [s.token_ids[: useful_length(s)] for s in samples]
    keys = [
        (s.adapter or "", tokens.astype(">i4").tobytes()) for s, tokens in zip(samples, used, strict=True)
    ]
    order = sorted(range(len(samples)), key=keys.__getitem__)
    found = [Neighbour(i, len(used[i]), 0) for i in order[:1]]
    for before, i in pairwise(order):
        same = samples[before].adapter == samples[i].adapter
        found.append(Neighbour(i, len(used[i]), common_length(used[before], used[i]) if same else 0))
    return found


def _deepest_first(tree: TokenTree) -> Iterator[Branch]:
    """The branches of a tree, each before its children, whose deepest is next."""
    stack = [tree.branches[0]]
    while stack:
        branch = stack.pop()
        yield branch
        stack += sorted(branch.children.values(), key=lambda child: child.start)
