"""Calls to token trees for trainers: every unique token once, each call's credit separate.

A tree holds only tokens on the way to a sampled token, so a prompt without an answer costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ajet.tracker.record import Call
from ajet.tracker.tree import SIZE, Branch
from ajet.types import Int32


@dataclass(frozen=True, slots=True)
class TokenForest:
    """Unique tokens with their parents, and where each call's sampled tokens are.

    ``token_ids int32[N]``; ``parents int32[N]``, the index of the token before, smaller than a token's
    own, -1 at the root; ``spans[i] int32[T_i]`` are the indices of the tokens that ``calls[i]`` sampled.
    """

    token_ids: Int32
    parents: Int32
    calls: tuple[Call, ...]
    spans: tuple[Int32, ...]


def forest(calls: Sequence[Call]) -> TokenForest:
    """The tree of calls of one merging key."""
    used = _used_lengths(calls)
    offsets: dict[Branch, int] = {}
    ids, parents = [], []
    total = 0
    for branch in sorted(used, key=lambda b: b.number):  # a parent has the smaller number
        length = used[branch] - branch.start
        offsets[branch] = total
        ids.append(np.frombuffer(bytes(branch.data[: length * SIZE]), np.int32))
        before = np.arange(total - 1, total + length - 1, dtype=np.int32)
        if length:
            before[0] = _index(branch.parent, branch.start - 1, offsets)
        parents.append(before)
        total += length
    return TokenForest(
        np.concatenate([*ids, np.zeros(0, np.int32)]),
        np.concatenate([*parents, np.zeros(0, np.int32)]),
        tuple(calls),
        tuple(_span(call, offsets) for call in calls),
    )


def _used_lengths(calls: Sequence[Call]) -> dict[Branch, int]:
    """The length up to which each branch is on the way to a sampled token."""
    used: dict[Branch, int] = {}
    for call in calls:
        branch: Branch | None = call.end.branch if call.end != call.prompt else None
        length = call.end.length
        while branch is not None and used.get(branch, -1) < length:
            used[branch] = length
            length, branch = branch.start, branch.parent
    return used


def _index(branch: Branch | None, position: int, offsets: dict[Branch, int]) -> int:
    """The index of the token at a position of the sequence on ``branch``; -1 before the first."""
    while branch is not None and position < branch.start:
        branch = branch.parent
    return -1 if branch is None else offsets[branch] + position - branch.start


def _span(call: Call, offsets: dict[Branch, int]) -> Int32:
    """The indices of a call's sampled tokens; they may lie on several branches."""
    parts = []
    branch: Branch | None = call.end.branch
    end = call.end.length
    while branch is not None and end > call.prompt.length:
        start = max(call.prompt.length, branch.start)
        if end > start:
            first = offsets[branch] - branch.start
            parts.append(np.arange(first + start, first + end, dtype=np.int32))
            end = start
        branch = branch.parent
    return np.concatenate([*reversed(parts), np.zeros(0, np.int32)])
