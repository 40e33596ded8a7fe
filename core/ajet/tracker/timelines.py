"""Timelines: root-to-leaf paths of the token trees, each sampled token trained in exactly one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ajet.tracker.record import Call, EpisodeRecord
from ajet.tracker.tree import Node
from ajet.types import Bool, Float32, Int32, Span


@dataclass(frozen=True, slots=True)
class Timeline:
    """A linear token sequence; arrays have the length of ``token_ids``. ``logprobs`` and ``versions``
    are the engine's where ``mask`` is set, NaN and -1 elsewhere."""

    token_ids: Int32
    mask: Bool
    logprobs: Float32
    versions: Int32
    spans: tuple[Span, ...]


def timelines(record: EpisodeRecord) -> list[Timeline]:
    """The fewest timelines that train every sampled token of an episode once, in its true context.

    Deepest calls first: each opens a timeline that ends with it and takes along every earlier call on
    its path whose span is still free. Calls that sampled the same tokens twice get one timeline each.
    """
    waiting = sorted((c for c in record.calls if c.trained), key=lambda c: (-c.end.length, c.number))
    by_end: dict[int, list[Call]] = {}
    for call in waiting:
        by_end.setdefault(id(call.end), []).append(call)
    taken: set[int] = set()
    lines = []
    for call in waiting:
        if call.number not in taken:
            lines.append(_line(call.end, _calls_on_path(call, by_end, taken)))
    if sum(int(line.mask.sum()) for line in lines) != record.sampled_tokens:
        raise AssertionError(
            "a sampled token was lost or doubled while merging: please report this run's journal"
        )
    return lines


def _calls_on_path(last: Call, by_end: dict[int, list[Call]], taken: set[int]) -> list[Call]:
    """``last`` and the free calls above it whose spans do not overlap, deepest first; takes them."""
    chosen, free_until = [last], last.prompt.length
    taken.add(last.number)
    node: Node | None = last.prompt
    while node is not None:
        for call in by_end.get(id(node), ()):
            if call.number not in taken and call.end.length <= free_until:
                chosen.append(call)
                taken.add(call.number)
                free_until = call.prompt.length
                break
        node = node.parent
    return chosen


def _line(end: Node, calls: Sequence[Call]) -> Timeline:
    ids = end.ids()
    mask = np.zeros(len(ids), np.bool_)
    logprobs = np.full(len(ids), np.nan, np.float32)
    versions = np.full(len(ids), -1, np.int32)
    spans = []
    for call in reversed(calls):
        span = slice(call.prompt.length, call.end.length)
        mask[span] = True
        logprobs[span] = call.generation.logprobs
        versions[span] = call.generation.weight_versions
        spans.append(Span(span.start, span.stop, call.number, call.agent, call.target, call.temperature))
    return Timeline(ids, mask, logprobs, versions, tuple(spans))
