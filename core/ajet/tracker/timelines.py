"""Timelines: root-to-leaf paths of the token trees, each sampled token trained in exactly one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ajet.tracker.call import Call
from ajet.tracker.record import EpisodeRecord, joined_kept, sampled
from ajet.tracker.tree import Branch, Node
from ajet.types import Bool, Float32, Image, Int16, Int32, Kept, Span


@dataclass(frozen=True, slots=True)
class Timeline:
    """A linear token sequence; arrays have the length of ``token_ids``. ``logprobs`` and ``versions``
    are the engine's where ``mask`` is set, NaN and -1 elsewhere."""

    token_ids: Int32
    mask: Bool
    logprobs: Float32
    versions: Int32
    spans: tuple[Span, ...]
    routed_experts: Int16 | None = None
    """``int16[T, layers, k]``: the experts that each token was sent to when the next one was sampled; 0 for the last token.
    None if a call's engine did not say."""
    images: tuple[Image, ...] = ()
    """The images whose placeholders are among ``token_ids``, each once, if they are in memory."""
    kept: Kept | None = None
    """Of the tokens where ``mask`` is set; None if no engine said them."""


def all_timelines(record: EpisodeRecord) -> list[Timeline]:
    """The timelines of an episode, those of trained calls first."""
    rest = [call for call in record.calls if not call.trained]
    return [*timelines(record.trained_calls), *timelines(rest)]


def timelines(calls: Sequence[Call]) -> list[Timeline]:
    """The fewest timelines that train every sampled token of these calls once, in its true context.

    Deepest calls first: each opens a timeline that ends with it and includes every earlier call on its
    path whose span is still free. Calls that sampled the same tokens twice get one timeline each.
    """
    shallow_first = sorted(
        (c for c in calls if len(c.generation.token_ids)), key=lambda c: (c.end.length, -c.number)
    )
    free: dict[Branch, list[Call]] = {}
    for call in shallow_first:
        free.setdefault(call.end.branch, []).append(call)
    lines = []
    for call in reversed(shallow_first):
        ending = free[call.end.branch]
        if ending and ending[-1] is call:  # still free
            lines.append(_line(call.end, _calls_on_path(call.end, free)))
    if sum(int(line.mask.sum()) for line in lines) != sampled(calls):
        raise AssertionError(
            "a sampled token was lost or duplicated while merging: please report this with the run's journal"
        )
    return lines


def _calls_on_path(end: Node, free: dict[Branch, list[Call]]) -> list[Call]:
    """The free calls on the way to ``end`` whose spans do not overlap, deepest first; they are taken out of
    ``free``, whose lists are in the order of their calls' ends."""
    chosen: list[Call] = []
    branch: Branch | None
    branch, limit = end
    while branch is not None:
        ending = free.get(branch, [])
        while ending:
            within = len(ending)
            if ending[-1].end.length > limit:
                within = bisect_right(ending, limit, key=lambda c: c.end.length)
                if not within:
                    break
            call = ending.pop(within - 1)
            chosen.append(call)
            limit = call.prompt.length
        limit = min(limit, branch.start)
        branch = branch.parent
    return chosen


def _line(end: Node, deepest_first: Sequence[Call]) -> Timeline:
    mask = np.zeros(end.length, np.bool_)
    logprobs = np.full(end.length, np.nan, np.float32)
    versions = np.full(end.length, -1, np.int32)
    spans = []
    for call in reversed(deepest_first):
        start, stop = call.prompt.length, call.end.length
        mask[start:stop] = True
        logprobs[start:stop] = call.generation.logprobs
        versions[start:stop] = call.generation.weight_versions
        spans.append(Span(start, stop, call.number, call.agent, call.target, call.temperature))
    kept = joined_kept([call.generation for call in reversed(deepest_first)])
    return Timeline(
        end.ids(), mask, logprobs, versions, tuple(spans), _routed_experts(deepest_first), kept=kept
    )


def _routed_experts(deepest_first: Sequence[Call]) -> Int16 | None:
    """See `Timeline.routed_experts`. The deepest call has read all tokens, but others have sampled some of them: these count
    where they sampled, because batches of another shape may route a token to other experts."""
    recorded = [call.generation.routed_experts for call in deepest_first]
    routed = [experts for experts in recorded if experts is not None]
    if not routed or len(routed) < len(recorded):
        return None
    whole = np.zeros((deepest_first[0].end.length, *routed[0].shape[1:]), np.int16)
    whole[:-1] = routed[0]
    for call, experts in zip(deepest_first[1:], routed[1:], strict=True):
        sampling = slice(call.prompt.length - 1, call.end.length - 1)
        whole[sampling] = experts[sampling]
    return whole
