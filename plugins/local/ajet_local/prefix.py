"""The common prefix of rows: most of an agent's prompt is its system prompt and tools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ajet.types import Int32


def common_prefix(rows: Sequence[Int32], limit: int) -> int:
    """Length of the longest prefix, at most ``limit`` tokens, that all ``rows`` (int32[T_i]) share.

    0 for a single row.
    """
    if len(rows) < 2:
        return 0
    length = max(0, min(limit, *(len(row) for row in rows)))
    first = rows[0]
    for row in rows[1:]:
        differing = np.flatnonzero(first[:length] != row[:length])
        if len(differing):
            length = int(differing[0])
    return length
