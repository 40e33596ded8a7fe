"""An episode as every reader sees it: its timelines, which of them were trained, and what each call learned.

Text, HTML and the studio show a `View`, so that they agree. It is made of an `Episode`, whether that was read from a journal or has
just ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ajet.learning.credit import advantage_of
from ajet.learning.fork_tree import OwnCall
from ajet.reports.credit import RunCredit
from ajet.reports.folder import Entry
from ajet.reports.token_text import TokenText
from ajet.rollout.episode import Episode
from ajet.tracker.timelines import Timeline, timelines
from ajet.types import Span

EDGE = 16
"""Tokens that are always shown at each end of a long context."""
BEFORE = 16
"""Tokens before the first one that are decoded with it: one character may be several tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Consecutive tokens of a timeline that one call sampled, or that no call sampled. All sequences have the length
    of ``ids``."""

    start: int
    ids: tuple[int, ...]
    texts: tuple[str | None, ...]
    """The text that each token adds; None without a tokenizer."""
    trained: bool
    call: int | None = None
    agent: str = ""
    target: str = ""
    temperature: float | None = None
    logprobs: tuple[float | None, ...] = ()
    versions: tuple[int, ...] = ()
    advantage: float | None = None
    """Advantage of trained tokens; None if nothing was learned."""

    @property
    def sampled(self) -> bool:
        return self.call is not None

    @property
    def folded(self) -> int:
        """How many tokens of a long context are hidden."""
        return max(0, len(self.ids) - 2 * EDGE) if not self.sampled and len(self.ids) > 3 * EDGE else 0

    def shown(self, everything: bool) -> Iterator[int | None]:
        """The indices of the tokens that are shown, and None in the place of those that are hidden."""
        if everything or not self.folded:
            yield from range(len(self.ids))
            return
        yield from range(EDGE)
        yield None
        yield from range(len(self.ids) - EDGE, len(self.ids))


@dataclass(frozen=True, slots=True)
class View:
    """An episode with its timelines, the trained ones first."""

    entry: Entry
    episode: Episode
    timelines: tuple[Timeline, ...]
    trained: int
    """How many of the timelines were trained, or would be in a run that trains."""
    advantages: Mapping[str, float]
    """By agent or target, "" for all others; empty if nothing was learned, or if each call learned something of its own."""
    of_calls: Mapping[int, float] | None
    """The advantage with which each call was trained, by the number of the call; None if the run has no record of the step."""

    @classmethod
    def of(
        cls,
        entry: Entry,
        episode: Episode,
        credit: RunCredit,
        step: Sequence[Entry],
        recorded: Mapping[OwnCall, float] | None,
    ) -> View:
        """The view of an episode. ``step`` are the episodes of its step and phase, ``recorded`` the advantages with which the calls of
        the step were trained, if they are known."""
        learned = entry.failure is None and entry.group is not None
        trained = credit.selection.choose(episode)[0] if learned else []
        taken = {span.call for line in trained for span in line.spans}
        rest = timelines([call for call in episode.record.calls if call.number not in taken])
        found = credit.advantages(step).get(entry.id, {}) if learned else {}
        of_calls = None
        if recorded is not None:
            of_calls = {call: a for (id, call), a in recorded.items() if id == entry.id}
            if not _as_a_whole(trained, found, of_calls):
                found = {}
        return cls(entry, episode, (*trained, *rest), len(trained), found, of_calls)

    def advantage(self, span: Span) -> float | None:
        """The advantage of trained tokens of a call; None if nothing was learned."""
        if self.of_calls is not None:
            return self.of_calls.get(span.call)
        return advantage_of(self.advantages, span.agent, span.target) if self.advantages else None

    def tokens(self, index: int, text_of: TokenText, start: int = 0, end: int | None = None) -> list[Tokens]:
        """The tokens of a timeline from one place to another, by default all."""
        line, trained = self.timelines[index], index < self.trained
        end = len(line.token_ids) if end is None else end
        first = max(0, start - BEFORE)
        borders = [p - first for span in line.spans for p in (span.start, span.end) if first < p <= end]
        texts = text_of(line.token_ids[first:end].tolist(), borders)
        parts = []
        for begin, stop, span in stretches(line):
            at, to = max(begin, start), min(stop, end)
            if at >= to:
                continue
            ids, few = tuple(line.token_ids[at:to].tolist()), tuple(texts[at - first : to - first])
            if span is None:
                parts.append(Tokens(start=at, ids=ids, texts=few, trained=False))
                continue
            parts.append(
                Tokens(
                    start=at,
                    ids=ids,
                    texts=few,
                    trained=trained,
                    call=span.call,
                    agent=span.agent,
                    target=span.target,
                    temperature=span.temperature,
                    logprobs=tuple(p if np.isfinite(p) else None for p in line.logprobs[at:to].tolist()),
                    versions=tuple(line.versions[at:to].tolist()),
                    advantage=self.advantage(span) if trained else None,
                )
            )
        return parts


def stretches(line: Timeline) -> Iterator[tuple[int, int, Span | None]]:
    """The parts of a timeline in their order: begin, end, and the span of the call that sampled them; None for context."""
    at = 0
    for span in line.spans:
        if span.start > at:
            yield at, span.start, None
        yield span.start, span.end, span
        at = span.end
    if at < len(line.token_ids):
        yield at, len(line.token_ids), None


def _as_a_whole(
    lines: Sequence[Timeline], advantages: Mapping[str, float], of_calls: Mapping[int, float]
) -> bool:
    """Whether the episode's advantages are those with which its calls were trained: with credit of calls they differ."""
    spans = [span for line in lines for span in line.spans if advantages and span.call in of_calls]
    return all(
        np.isclose(of_calls[s.call], advantage_of(advantages, s.agent, s.target), atol=1e-5) for s in spans
    )
