"""Distributes the rows of mini-batches over verl's workers so that rows that share tokens are computed together, as trees.

The rows of a mini-batch are put in the order of their tokens, in which those that share most are neighbours. Each rank gets
a run of neighbours, and divides it into micro-batches, which are runs again. A run is computed as one tree, so only rows
at the border of two runs repeat what they share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ajet.learning.packing import Neighbour, neighbours
from ajet.types import Sample
from ajet_verl.layout import PADDING

TREE = "tree"
"""Field of a row, int64[1]: the number of its micro-batch among those of its rank. Workers compute rows with the same number
as one tree. Without the field, verl makes micro-batches of rows."""
Run = Sequence[Neighbour]


@dataclass(slots=True)
class TreeRows:
    """The rows in the order of verl's workers, and what computing them as trees takes."""

    rows: list[int] = field(default_factory=list)
    """Indices of rows, or `PADDING`."""
    trees: list[int] = field(default_factory=list)
    """The field `TREE` of each row."""
    tokens: int = 0
    """Tokens of all trees together."""
    pairs: int = 0
    """Pairs of a token and one of its ancestors or itself."""
    branches: int = 0
    """Runs of tokens of which each is the parent of the next."""


def lay_out_trees(
    mini_batches: Sequence[Sequence[int]], samples: Sequence[Sample], ranks: int, limit: int
) -> TreeRows:
    """Distribute the samples of ``mini_batches`` over ``ranks``, in micro-batches whose trees have at most ``limit`` tokens.

    All ranks have the same number of micro-batches in each mini-batch, because their collective operations need that, and
    the same number of rows in all mini-batches, because verl divides its batch so. Padding rows fill both up. The
    largest rank, and the largest micro-batch of a rank, have as few tokens as runs of neighbours allow.
    """
    shares: list[list[list[Run]]] = [[] for _ in range(ranks)]
    for mini_batch in mini_batches:
        found = neighbours([samples[i] for i in mini_batch])
        runs = _padded(divided(found, ranks), ranks)
        count = max(len(filled(run, limit)) for run in runs)
        for share, run in zip(shares, runs, strict=True):
            share.append(_padded(divided(run, count), count))
    most = max(_places(mini) for share in shares for mini in share)
    result = TreeRows()
    for share in shares:
        number = 0
        for mini_batch, mini in zip(mini_batches, share, strict=True):
            spare = most - _places(mini)
            for run in mini:
                rows = [mini_batch[n.index] for n in run] or [PADDING]
                rows += [PADDING] * (spare if run is mini[-1] else 0)
                result.rows += rows
                result.trees += [number] * len(rows)
                number += 1
                _count(result, run)
    return result


def filled(run: Run, limit: int) -> list[Run]:
    """The fewest runs into which a run divides so that each tree has at most ``limit`` tokens; a longer row is alone."""
    runs: list[list[Neighbour]] = []
    size = 0
    for row in run:
        size += row.length - row.shared
        if not runs or size > limit:
            runs.append([])
            size = row.length
        runs[-1].append(row)
    return list(runs)


def divided(run: Run, count: int) -> list[Run]:
    """At most ``count`` runs, the largest tree of which has as few tokens as possible."""
    low = max((row.length for row in run), default=0)
    high = sum(row.length for row in run)
    while low < high:
        middle = (low + high) // 2
        if len(filled(run, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return filled(run, low)


def new_tokens(run: Run) -> Iterator[tuple[int, int]]:
    """Of each row of a run, how many tokens it shares with the row before, and its length."""
    for number, row in enumerate(run):
        yield (row.shared if number else 0), row.length


def _padded(runs: list[Run], count: int) -> list[Run]:
    return [*runs, *[()] * (count - len(runs))]


def _places(mini: Sequence[Run]) -> int:
    """Rows of a mini-batch on a rank; a micro-batch without rows gets a padding row."""
    return sum(max(len(run), 1) for run in mini)


def _count(result: TreeRows, run: Run) -> None:
    for shared, length in new_tokens(run):
        result.tokens += length - shared
        result.pairs += pairs(length) - pairs(shared)
        result.branches += length > shared


def pairs(length: int) -> int:
    """Pairs of a token of a row and a token before it or itself."""
    return length * (length + 1) // 2
