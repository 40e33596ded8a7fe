"""What the page shows of tokens: a window of a timeline, the token tree of a lane."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from ajet.reports.view import View, stretches
from ajet.tracker.call import Call
from ajet.tracker.timelines import Timeline
from ajet.tracker.tree import Branch, TokenTree
from ajet_studio.answers import missing, thinned
from ajet_studio.opened import OpenRun
from ajet_studio.view_episodes import Lanes

MOST_TOKENS = 1000
MOST_MARKS = 500
MOST_NODES = 2000
MOST_NAMES = 200
_BEGINNING = 40
"""Tokens of a node of the tree that are shown as text."""


def tokens(run: OpenRun, id: str, timeline: int, start: int, count: int) -> dict[str, Any]:
    """A window of a timeline's tokens, and where its calls begin and end."""
    view, line = _timeline(run, id, timeline)
    total = len(line.token_ids)
    start = max(0, min(start, total))
    parts = view.tokens(timeline, run.text_of, start, min(total, start + max(0, min(count, MOST_TOKENS))))
    rows = [
        {
            "text": text if text is not None else str(token),
            "id": token,
            "trained": part.trained,
            "logprob": logprob,
            "advantage": part.advantage,
            "version": version,
            "call": part.call,
        }
        for part in parts
        for text, token, logprob, version in zip_longest(part.texts, part.ids, part.logprobs, part.versions)
    ]
    marks = [(begin, span.call if span else "prompt") for begin, _, span in stretches(line)]
    return {"total": total, "from": start, "rows": rows, "marks": thinned(marks, MOST_MARKS)}


def lines(run: OpenRun, id: str, timeline: int) -> dict[str, Any]:
    """The places behind the tokens of a timeline that contain a line feed."""
    ids = _timeline(run, id, timeline)[1].token_ids
    unique, which = np.unique(ids, return_inverse=True)
    texts = (run.text_of([token])[0] for token in unique.tolist())
    feeds = np.fromiter(("\n" in (text or "") for text in texts), bool, len(unique))
    return {"ends": (np.flatnonzero(feeds[which]) + 1).tolist()}


def _timeline(run: OpenRun, id: str, timeline: int) -> tuple[View, Timeline]:
    """A timeline with its episode. Raises RefusedView (404)."""
    view = run.view(run.row(id))
    if not 0 <= timeline < len(view.timelines):
        raise missing(f"timeline {timeline}: episode {id} has {len(view.timelines)} timelines")
    return view, view.timelines[timeline]


def tree(run: OpenRun, id: str, lane: int) -> dict[str, Any]:
    """The token tree of a lane, as pieces between the places where sequences part."""
    view = run.view(run.row(id))
    keys = Lanes(view).keys
    if not 0 <= lane < len(keys):
        raise missing(f"lane {lane}: episode {id} has {len(keys)} lanes")
    key = keys[lane][2]
    record = view.episode.record
    if key not in record.trees:
        return {"nodes": [], "left_out": 0}
    pieces = _Pieces(record.trees[key], MOST_NODES)
    calls = {call.number: call for call in record.calls if call.key == key}
    for call in calls.values():
        pieces.add_call(call)
    for index, line in enumerate(view.timelines):
        if line.spans[-1].call in calls:
            learned = [span.call for span in line.spans] if index < view.trained else []
            pieces.add_timeline(calls[line.spans[-1].call], index, [calls[number] for number in learned])
    return {"nodes": pieces.described(run), "left_out": pieces.left_out}


class _Pieces:
    """A token tree whose branches are cut where others leave them."""

    def __init__(self, tree: TokenTree, most: int) -> None:
        self._at: dict[tuple[int, int], int] = {}
        """The piece that ends at a position, by number of the branch and length."""
        self._cuts: dict[int, list[int]] = {}
        self._spans: list[tuple[Branch, int, int]] = []
        self._parents: list[int] = []
        self.left_out = 0
        for branch in tree.branches:
            cuts = [c for c in branch.forks if branch.start < c < branch.end] + [branch.end]
            before = self._at.get((branch.parent.number, branch.start), -1) if branch.parent else -1
            begin = branch.start
            if len(self._spans) + len(cuts) > most or (branch.parent and branch.start and before < 0):
                self.left_out += len(cuts)
                continue
            self._cuts[branch.number] = cuts
            for cut in cuts:
                self._parents.append(before)
                before = self._at[branch.number, cut] = len(self._spans)
                self._spans.append((branch, begin, cut))
                begin = cut
        self._trained = [0] * len(self._spans)
        self._calls: list[list[int]] = [[] for _ in self._spans]
        self._timelines: list[list[int]] = [[] for _ in self._spans]

    def add_call(self, call: Call) -> None:
        """Note the call at the pieces that hold tokens that it sampled."""
        for piece, _ in self._path(call, call.prompt.length):
            self._calls[piece].append(call.number)

    def add_timeline(self, last: Call, index: int, learned: Sequence[Call]) -> None:
        """Note a timeline at the pieces on its path, and the tokens that it trains."""
        for piece, _ in self._path(last, 0):
            self._timelines[piece].append(index)
        for call in learned:
            for piece, count in self._path(call, call.prompt.length):
                self._trained[piece] += count

    def _path(self, call: Call, start: int) -> list[tuple[int, int]]:
        """The pieces with tokens of a call's sequence after ``start``, and how many each has."""
        pieces = []
        branch: Branch | None
        branch, limit = call.end
        while branch is not None and limit > start:
            begin = branch.start
            for cut in self._cuts.get(branch.number, ()):
                overlap = min(cut, limit) - max(begin, start)
                if overlap > 0:
                    pieces.append((self._at[branch.number, cut], overlap))
                begin = cut
            limit = min(limit, branch.start)
            branch = branch.parent
        return pieces

    def described(self, run: OpenRun) -> list[dict[str, Any]]:
        """The pieces as the page gets them, parents first."""
        nodes = []
        for index, (branch, begin, end) in enumerate(self._spans):
            first = np.frombuffer(branch.data, np.int32)[begin - branch.start : end - branch.start][
                :_BEGINNING
            ].tolist()
            texts = run.text_of(first)
            nodes.append(
                {
                    "parent": self._parents[index],
                    "tokens": end - begin,
                    "trained_tokens": self._trained[index],
                    "text": "".join(f"{i} " if t is None else t for t, i in zip(texts, first, strict=True)),
                    "timelines": self._timelines[index][:MOST_NAMES],
                    "calls": self._calls[index][:MOST_NAMES],
                }
            )
        return nodes
