"""Samples to a tree: what rows share is stored once, and computed once by a trainer that works on trees.

Backbones still exchange rows; a trainer that can compute on trees packs the rows of a micro-batch. Credit is
never merged: samples with the same tokens remain two samples, at the same positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ajet.learning.pairs import together
from ajet.tracker.forest import flatten
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
    """Groups of samples whose trees have at most ``max_tokens`` tokens each; a longer sample or pair is alone.

    Neighbours in the tree stay together, so that little of what they share is repeated; samples of a pair in any case.
    A group of ``enough`` tokens ends early if the next sample shares almost nothing with it.
    """
    groups: list[list[Sample]] = []
    size = 0
    for unit in together([samples[i] for i in _order(samples)]):
        alone = sum(map(useful_length, unit)) - sum(_shared(a, b) for a, b in pairwise(unit))
        shared = _shared(groups[-1][-1], unit[0]) if groups else 0
        apart = enough is not None and size >= enough and shared <= NEXT_TO_NOTHING * enough
        if groups and not apart and size + alone - shared <= max_tokens:
            groups[-1] += unit
            size += alone - shared
        else:
            groups.append(unit)
            size = alone
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
    order = _order(samples)
    lengths = [useful_length(samples[i]) for i in order]
    shared = [0, *(_shared(samples[a], samples[b]) for a, b in pairwise(order))]
    return [Neighbour(*fields) for fields in zip(order, lengths, shared[: len(order)], strict=True)]


def _order(samples: Sequence[Sample]) -> list[int]:
    """The indices of the samples in the order of their adapters and tokens."""
    keys = [(s.adapter or "", s.token_ids[: useful_length(s)].astype(">i4").tobytes()) for s in samples]
    return sorted(range(len(samples)), key=keys.__getitem__)


def _shared(before: Sample, sample: Sample) -> int:
    """How many tokens a tree stores once for both samples."""
    if before.adapter != sample.adapter:
        return 0
    tokens, others = (s.token_ids[: useful_length(s)] for s in (before, sample))
    return common_length(tokens, others)


def _deepest_first(tree: TokenTree) -> Iterator[Branch]:
    """The branches of a tree, each before its children, whose deepest is next."""
    stack = [tree.branches[0]]
    while stack:
        branch = stack.pop()
        yield branch
        stack += sorted(branch.children.values(), key=lambda child: child.start)
