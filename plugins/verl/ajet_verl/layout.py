"""Which worker computes which row of which mini-batch."""

from __future__ import annotations

from collections.abc import Sequence

PADDING = -1
"""Stands for a row that teaches nothing."""


def lay_out(
    mini_batches: Sequence[Sequence[int]], lengths: Sequence[int], ranks: int, multiple: int = 1
) -> list[list[list[int]]]:
    """``result[rank][mini_batch]``: numbers of rows, or `PADDING`; all of these lists have one length.

    verl counts rows: each rank takes its share of the batch in order, so many at a time. With shares of equal length a
    mini-batch stays what it was, whatever its number of rows; and mini-batches of few rows are filled up. ``lengths`` are
    tokens of the rows, of which the ranks get about the same. Shares are multiples of ``multiple``.
    """
    largest = max(len(mini_batch) for mini_batch in mini_batches)
    share = -(-largest // (ranks * multiple)) * multiple
    result: list[list[list[int]]] = [[] for _ in range(ranks)]
    for mini_batch in mini_batches:
        rows: list[list[int]] = [[] for _ in range(ranks)]
        tokens = [0] * ranks
        for row in sorted(mini_batch, key=lambda row: -lengths[row]):
            rank = min((r for r in range(ranks) if len(rows[r]) < share), key=lambda r: tokens[r])
            rows[rank].append(row)
            tokens[rank] += lengths[row]
        for rank in range(ranks):
            result[rank].append(rows[rank] + [PADDING] * (share - len(rows[rank])))
    return result
