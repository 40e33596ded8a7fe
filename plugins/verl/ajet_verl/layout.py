"""Distributes the rows of mini-batches over verl's workers."""

from __future__ import annotations

from collections.abc import Sequence

PADDING = -1
"""Stands for a padding row."""


def lay_out(
    mini_batches: Sequence[Sequence[int]], lengths: Sequence[int], ranks: int, multiple: int = 1
) -> list[list[list[int]]]:
    """``result[rank][mini_batch]`` lists indices of rows, or `PADDING`; all these lists have the same length.

    Each of verl's ``ranks`` takes a fixed number of rows of its share for each optimizer step. So all mini-batches are
    padded to the same number of rows per rank, a multiple of ``multiple``. ``lengths`` are the rows' numbers of tokens;
    ranks get about the same number of tokens.
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
