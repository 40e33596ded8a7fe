"""One episode as plain data: its messages, the tokens of each timeline, and where conversations broke."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ajet.chat.messages import canonical
from ajet.learning.credit import advantage_of
from ajet.reports.credit import Credit
from ajet.reports.folder import Entry, Run
from ajet.reports.token_text import Pieces
from ajet.rollout.episode import Episode
from ajet.tracker.breaks import CAUSES, Break
from ajet.tracker.conversations import Said
from ajet.tracker.record import Call, Exchange
from ajet.tracker.timelines import Timeline, timelines

EDGE = 16
"""Tokens that are always shown at each end of a long context."""


@dataclass(frozen=True, slots=True)
class Header:
    """The outcome of the episode. ``advantages`` are by name of agent or target, "" for all others; empty if nothing
    was learned."""

    id: str
    phase: str
    step: int
    task: str
    member: int
    attempt: int
    """0 for the first."""
    failure: str | None
    error: str
    reward: float
    is_success: bool | None
    rewards: Mapping[str, float]
    advantages: Mapping[str, float]
    rewards_of_group: tuple[float | None, ...]
    """Rewards of all members, None for a failed one; empty if episodes have no group."""
    metrics: Mapping[str, float]
    counters: Mapping[str, int]
    seconds: float
    calls: int
    timelines: int
    timelines_trained: int
    response: Any


@dataclass(frozen=True, slots=True)
class Line:
    """A message of a chat. ``same_as`` is the place of an equal message that was shown before."""

    number: int
    role: str
    content: str
    reasoning: str
    tool_calls: tuple[tuple[str, str], ...]
    """(name, arguments)"""
    name: str
    call: int | None
    """The call that produced it, and the agent that made the call."""
    agent: str
    same_as: str | None


@dataclass(frozen=True, slots=True)
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

    def folds(self, index: int) -> bool:
        """Whether a token is hidden."""
        return bool(self.folded) and EDGE <= index < len(self.ids) - EDGE


@dataclass(frozen=True, slots=True)
class Conversation:
    """A timeline with its chat; without tokens if a chat model answered."""

    title: str
    about: str
    """Whether it is trained, and if not, why."""
    calls: tuple[int, ...]
    chat: tuple[Line, ...]
    tokens: tuple[Tokens, ...]


@dataclass(frozen=True, slots=True)
class BreakReport:
    """Where a call could have continued a conversation but did not, with the remedy."""

    found: Break
    head: str
    """The common beginning of both texts, if they are two forms of one message."""
    removed: str
    added: str
    tail: str
    recorded: tuple[str | None, ...]
    """The text of the token ids in ``found.recorded``; None without a tokenizer."""
    sent: tuple[str | None, ...]
    remedy: str


@dataclass(frozen=True, slots=True)
class EpisodeReport:
    """Everything that an episode's page shows."""

    header: Header
    conversations: tuple[Conversation, ...]
    breaks: tuple[BreakReport, ...]
    notes: tuple[str, ...]


def episode_report(run: Run, entry: Entry, credit: Credit, pieces: Pieces) -> EpisodeReport:
    """The report of an episode. Raises AjetError if the journal has changed since it was read."""
    episode = run.episode(entry)
    members = run.members(entry) if entry.group is not None else []
    found = credit.advantages(run.together(entry)).get(entry.id, {})
    learned = episode.failure is None and entry.group is not None
    trained = credit.selection.choose(episode)[0] if learned else []
    taken = {span.call for line in trained for span in line.spans}
    rest = timelines([c for c in episode.record.calls if c.number not in taken])
    scribe = _Scribe(episode, pieces, found)
    about = "trained" if entry.phase == "train" else "would be trained"
    conversations = [scribe.conversation(line, True, about) for line in _as_told(trained)]
    conversations += [
        scribe.conversation(line, False, _why_not(episode, entry, line)) for line in _as_told(rest)
    ]
    conversations += scribe.without_tokens()
    header = Header(
        **{
            name: getattr(entry, name)
            for name in (
                "id",
                "phase",
                "step",
                "task",
                "member",
                "attempt",
                "failure",
                "error",
                "reward",
                "rewards",
                "is_success",
                "counters",
                "seconds",
                "calls",
            )
        },
        advantages=found,
        rewards_of_group=tuple(None if m.failure else m.reward for m in members),
        metrics=episode.metrics,
        timelines=len(trained) + len(rest),
        timelines_trained=len(trained),
        response=episode.output.response,
    )
    notes = list(credit.notes)
    if not episode.record.calls and episode.record.exchanges:
        notes.append("a chat model answered, so there are no tokens to show or train")
    elif episode.record.calls and pieces.missing:
        notes.append(f"tokens are shown by id, because their text is unknown: {pieces.missing}")
    return EpisodeReport(
        header, tuple(conversations), tuple(break_report(b, pieces) for b in episode.breaks), tuple(notes)
    )


def _as_told(lines: Sequence[Timeline]) -> list[Timeline]:
    return sorted(lines, key=lambda line: min(span.call for span in line.spans))


def _why_not(episode: Episode, entry: Entry, line: Timeline) -> str:
    """Why the calls of a timeline are not trained."""
    if episode.failure:
        return "not trained: the episode failed"
    if entry.group is None:
        return f"not trained: {entry.phase}"
    numbers = {span.call for span in line.spans}
    if any(c.trained for c in episode.record.calls if c.number in numbers):
        return "not trained: dropped by train.filters or train.max_timelines"
    return "not trained: greedy, or of a frozen target"


def break_report(found: Break, pieces: Pieces) -> BreakReport:
    """A break with the texts of its tokens and its remedy."""
    before, now = found.before, found.now
    head = tail = 0
    if found.char >= 0:
        head = _alike(before, now)
        tail = _alike(before[head:][::-1], now[head:][::-1])
    return BreakReport(
        found,
        before[:head],
        before[head : len(before) - tail],
        now[head : len(now) - tail],
        before[len(before) - tail :],
        tuple(pieces(found.recorded)),
        tuple(pieces(found.sent)),
        CAUSES.get(found.cause, ""),
    )


def _alike(a: str, b: str) -> int:
    """The number of equal characters at the beginning of two texts."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class _Scribe:
    """Builds conversations one after the other, showing each message once."""

    def __init__(self, episode: Episode, pieces: Pieces, advantages: Mapping[str, float]) -> None:
        self._advantages = advantages
        self._calls: Mapping[int, Call] = {c.number: c for c in episode.record.calls}
        self._exchanges: Mapping[int, Exchange] = {e.number: e for e in episode.record.exchanges}
        self._answers = {e.answer: e for e in reversed(episode.record.exchanges)}
        self._pieces = pieces
        self._shown: dict[Said | str, str] = {}
        """Where a message was shown: by its node, and by its content."""
        self._count = 0

    def conversation(self, line: Timeline, trained: bool, about: str) -> Conversation:
        """A timeline with the chat of its last call."""
        self._count += 1
        last = self._exchanges.get(line.spans[-1].call)
        return Conversation(
            title=f"timeline {self._count}",
            about=about,
            calls=tuple(span.call for span in line.spans),
            chat=self._chat(last.answer) if last else (),
            tokens=tuple(self._tokens(line, trained)),
        )

    def without_tokens(self) -> list[Conversation]:
        """Conversations of the calls that no timeline showed, longest chats first."""
        left = [e for e in self._exchanges.values() if e.number not in self._calls]
        found = []
        for exchange in sorted(left, key=lambda e: (-e.answer.depth, e.number)):
            if exchange.answer not in self._shown:
                self._count += 1
                path = set(exchange.answer.path())
                found.append(
                    Conversation(
                        title=f"conversation {self._count}",
                        about="not trained: a chat model answered",
                        calls=tuple(e.number for e in left if e.answer in path),
                        chat=self._chat(exchange.answer),
                        tokens=(),
                    )
                )
        return found

    def _chat(self, answer: Said) -> tuple[Line, ...]:
        lines = []
        new: dict[Said | str, str] = {}
        for number, said in enumerate(answer.path(), 1):
            words = canonical(said.message)
            before = self._shown.get(said)
            if before is None and said not in self._answers:  # a call's answer is always shown
                before = self._shown.get(words)
            new[said] = new[words] = before or f"{self._count}.{number}"
            lines.append(self._line(number, said, before))
        self._shown |= {key: place for key, place in new.items() if key not in self._shown}
        return tuple(lines)

    def _line(self, number: int, said: Said, before: str | None) -> Line:
        message = said.message
        exchange = self._answers.get(said)
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        return Line(
            number,
            str(message.get("role")),
            str(message.get("content") or ""),
            str(message.get("reasoning_content") or ""),
            tuple((str(c["name"]), str(c.get("arguments") or "")) for c in calls),
            str(message.get("name") or message.get("tool_call_id") or ""),
            exchange.number if exchange else None,
            exchange.agent if exchange else "",
            before,
        )

    def _tokens(self, line: Timeline, trained: bool) -> list[Tokens]:
        ids = line.token_ids.tolist()
        texts = self._pieces(ids, [place for span in line.spans for place in (span.start, span.end)])
        parts = []
        at = 0
        for span in line.spans:
            if span.start > at:
                parts.append(_context(ids, texts, at, span.start))
            logprobs = [None if np.isnan(p) else float(p) for p in line.logprobs[span.start : span.end]]
            parts.append(
                Tokens(
                    span.start,
                    tuple(ids[span.start : span.end]),
                    tuple(texts[span.start : span.end]),
                    trained,
                    span.call,
                    span.agent,
                    span.target,
                    span.temperature,
                    tuple(logprobs),
                    tuple(line.versions[span.start : span.end].tolist()),
                    advantage_of(self._advantages, span.agent, span.target)
                    if trained and self._advantages
                    else None,
                )
            )
            at = span.end
        return parts


def _context(ids: Sequence[int], texts: Sequence[str | None], start: int, stop: int) -> Tokens:
    return Tokens(start, tuple(ids[start:stop]), tuple(texts[start:stop]), trained=False)
