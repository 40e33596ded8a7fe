"""Calls to token trees for trainers: every unique token once, each call's credit separate.

A tree holds only tokens on the way to a sampled token, so a prompt without an answer costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ajet.tracker.call import Call
from ajet.tracker.flat import flatten
from ajet.tracker.tree import Branch
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
    flat = flatten(sorted(used.items(), key=lambda item: item[0].number))  # a parent has the smaller number
    spans = tuple(flat.indices(call.end, call.prompt.length) for call in calls)
    return TokenForest(flat.token_ids, flat.parents, tuple(calls), spans)


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
