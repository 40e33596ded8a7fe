"""One episode as plain data: its messages, the tokens of each timeline, and where conversations broke."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ajet.chat.messages import canonical, images_of, text_of
from ajet.reports.credit import RunCredit
from ajet.reports.folder import OUTCOME, EndedEpisode, Entry, RecordedRun
from ajet.reports.group_tree import GroupTree, GroupTrees
from ajet.reports.token_text import TokenText
from ajet.reports.view import Tokens, View
from ajet.rollout.image_folder import image_file
from ajet.tracker.breaks import CAUSES, Break
from ajet.tracker.call import Call, Exchange, MessageNode


@dataclass(frozen=True, slots=True)
class Header(EndedEpisode):
    """The outcome of the episode. ``advantages`` are by name of agent or target, "" for all others; empty if nothing
    was learned."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLine:
    """A message of a chat. ``same_as`` is the label of an equal message that was shown before."""

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
    images: tuple[Path, ...] = ()
    """The files of its images."""
    replayed: bool = False
    """Whether the call got the answer of another episode."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A timeline with its chat; without tokens if a chat model answered."""

    title: str
    about: str
    """Whether it is trained, and if not, why."""
    calls: tuple[int, ...]
    chat: tuple[ChatLine, ...]
    tokens: tuple[Tokens, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
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
    printed: str = ""
    tree: GroupTree | None = None
    """That of its group; None if it is alone."""


def episode_report(
    run: RecordedRun, entry: Entry, credit: RunCredit, text_of: TokenText, trees: GroupTrees | None = None
) -> EpisodeReport:
    """The report of an episode, with the tree of its group if ``trees`` are given. Raises AjetError if the journal has changed since
    it was read."""
    recorded = trees.trained(entry) if trees else None
    view = View.of(entry, run.episode(entry), credit, run.together(entry), recorded)
    episode, members = view.episode, run.members(entry) if entry.group is not None else []
    scribe = _Scribe(view, text_of, partial(image_file, run.dir))
    about = "trained" if entry.phase == "train" else "would be trained"
    conversations = [scribe.conversation(index, about) for index in _as_told(view, range(view.trained))]
    for index in _as_told(view, range(view.trained, len(view.timelines))):
        conversations.append(scribe.conversation(index, _why_not(view, index)))
    conversations += scribe.without_tokens()
    header = Header(
        **{name: getattr(entry, name) for name in (*OUTCOME, "counters", "seconds", "calls")},
        advantages=view.advantages,
        rewards_of_group=tuple(None if m.failure else m.reward for m in members),
        metrics=episode.metrics,
        timelines=len(view.timelines),
        timelines_trained=view.trained,
        response=episode.output.response,
    )
    notes = list(credit.notes)
    if fork := episode.plan.fork:
        shared = "its first call is that" if fork.calls == 1 else f"its first {fork.calls} calls are those"
        notes.append(f"{shared} of {fork.parent}: replayed, not trained")
    if not episode.record.calls and episode.record.exchanges:
        notes.append("a chat model answered, so there are no tokens to show or train")
    elif episode.record.calls and text_of.missing:
        notes.append(f"tokens are shown by id, because their text is unknown: {text_of.missing}")
    response = episode.output.response
    if isinstance(response, Mapping) and response.get("trajectory"):
        notes.append(f"the agent's own trajectory: {response['trajectory']}")
    return EpisodeReport(
        header,
        tuple(conversations),
        tuple(break_report(b, text_of) for b in episode.breaks),
        tuple(notes),
        episode.printed.text,
        trees.of(entry) if trees else None,
    )


def _as_told(view: View, places: Iterable[int]) -> list[int]:
    """Places of timelines, in the order of their first calls."""
    return sorted(places, key=lambda place: min(span.call for span in view.timelines[place].spans))


def _why_not(view: View, place: int) -> str:
    """Why the calls of a timeline are not trained."""
    if view.entry.failure:
        return "not trained: the episode failed"
    if view.entry.group is None:
        return f"not trained: {view.entry.phase}"
    numbers = {span.call for span in view.timelines[place].spans}
    calls = [call for call in view.episode.record.calls if call.number in numbers]
    if all(call.replayed for call in calls):
        return "not trained: replayed"
    if all(call.side for call in calls):
        return "not trained: a side call (rollout.side_calls, or a target with train: false)"
    if any(call.trained for call in calls):
        return "not trained: dropped by train.filters or train.max_timelines"
    return "not trained: greedy, or of a frozen target"


def break_report(broken: Break, text_of: TokenText) -> BreakReport:
    """A break with the texts of its tokens and its remedy."""
    before, now = broken.before, broken.now
    head = tail = 0
    if broken.char >= 0:
        head = _alike(before, now)
        tail = _alike(before[head:][::-1], now[head:][::-1])
    return BreakReport(
        found=broken,
        head=before[:head],
        removed=before[head : len(before) - tail],
        added=now[head : len(now) - tail],
        tail=before[len(before) - tail :],
        recorded=tuple(text_of(broken.recorded)),
        sent=tuple(text_of(broken.sent)),
        remedy=CAUSES.get(broken.cause, ""),
    )


def _alike(a: str, b: str) -> int:
    """The number of equal characters at the beginning of two texts."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class _Scribe:
    """Builds conversations one after the other, showing each message once."""

    def __init__(self, view: View, text_of: TokenText, image_of: Callable[[str], Path | None]) -> None:
        self._view, self._text_of, self._image_of = view, text_of, image_of
        exchanges = view.episode.record.exchanges
        self._exchanges: Mapping[int, Exchange] = {e.number: e for e in exchanges}
        self._answers = {e.answer: e for e in reversed(exchanges)}
        self._shown: dict[MessageNode | str, str] = {}
        """Where a message was shown: by its node, and by its content."""
        self._count = 0

    def conversation(self, place: int, about: str) -> Conversation:
        """A timeline with the chat of its last call."""
        self._count += 1
        spans = self._view.timelines[place].spans
        last = self._exchanges.get(spans[-1].call)
        return Conversation(
            title=f"timeline {self._count}",
            about=about,
            calls=tuple(span.call for span in spans),
            chat=self._chat(last.answer) if last and last.answer else (),
            tokens=tuple(self._view.tokens(place, self._text_of)),
        )

    def without_tokens(self) -> list[Conversation]:
        """Conversations of the calls that no timeline showed, longest chats first."""
        left = [
            (e.number, e.answer) for e in self._exchanges.values() if e.answer and not isinstance(e, Call)
        ]
        conversations = []
        for _, answer in sorted(left, key=lambda one: (-one[1].depth, one[0])):
            if answer not in self._shown:
                self._count += 1
                path = set(answer.path())
                conversations.append(
                    Conversation(
                        title=f"conversation {self._count}",
                        about="not trained: a chat model answered",
                        calls=tuple(number for number, end in left if end in path),
                        chat=self._chat(answer),
                        tokens=(),
                    )
                )
        return conversations

    def _chat(self, answer: MessageNode) -> tuple[ChatLine, ...]:
        lines = []
        new: dict[MessageNode | str, str] = {}
        for number, node in enumerate(answer.path(), 1):
            words = canonical(node.message)
            before = self._shown.get(node)
            if before is None and node not in self._answers:  # a call's answer is always shown
                before = self._shown.get(words)
            new[node] = new[words] = before or f"{self._count}.{number}"
            lines.append(self._line(number, node, before))
        self._shown |= {key: label for key, label in new.items() if key not in self._shown}
        return tuple(lines)

    def _line(self, number: int, node: MessageNode, before: str | None) -> ChatLine:
        message = node.message
        exchange = self._answers.get(node)
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        return ChatLine(
            number=number,
            role=str(message.get("role")),
            content=text_of(message),
            images=tuple(path for ref in images_of(message) if (path := self._image_of(ref))),
            reasoning=str(message.get("reasoning_content") or ""),
            tool_calls=tuple((str(c["name"]), str(c.get("arguments") or "")) for c in calls),
            name=str(message.get("name") or message.get("tool_call_id") or ""),
            call=exchange.number if exchange else None,
            replayed=isinstance(exchange, Call) and exchange.replayed,
            agent=exchange.agent if exchange else "",
            same_as=before,
        )
