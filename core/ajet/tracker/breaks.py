"""Breaks: where a call could have continued a conversation, but began a new timeline, and why.

A program that keeps its history unchanged gives one timeline; every edit of the history gives one more, whose
context is computed and stored again. Most edits are unintended, so each is reported with its cause, its place
and its remedy. The report is a pure function of the record: only calls with smaller numbers count as earlier,
in whatever order they finished. A changed message is reported once, for the first prompt that has it. The cost
of a call is its new messages; the original of a changed message is looked up only when needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ajet.chat.messages import canonical, loose, spoken, text_of
from ajet.tracker.call import Call, MessageNode
from ajet.tracker.differences import CAUSES, SAME_ANSWER, Difference, compare, excerpt, explain, leading
from ajet.tracker.record import EpisodeRecord
from ajet.tracker.tree import common_length

__all__ = ["CAUSES", "Break", "discarded", "find_breaks"]

SHOWN = 8
"""Token ids shown of each side in a report."""
TELLING = 16
"""Minimum length at which a repeated answer is significant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One call that began a new timeline although it could have continued one."""

    call: int
    """The call that began a new timeline."""
    after: int
    """The earlier call whose conversation it could have continued."""
    agent: str
    cause: str
    """One of `CAUSES`, which holds its remedy."""
    message: int
    """Index, in the later prompt, of the first message that differs; -1 if the tool list does."""
    before: str
    """What was recorded there, around the first character that differs."""
    now: str
    """What the later prompt has instead."""
    char: int
    """Index of that character in the text that differs: the content, or the arguments or ids of the tool
    calls. -1 if another message is there, or none differs."""
    token: int
    """Tokens at the beginning in which the recorded sequence and the new prompt agree."""
    recorded: tuple[int, ...]
    """Some ids of the recorded sequence from there on."""
    sent: tuple[int, ...]
    """Some ids of the new prompt from there on."""
    lost_tokens: int
    """Tokens of the prompt that are computed again: all from that position on."""


def find_breaks(record: EpisodeRecord) -> list[Break]:
    """All breaks of an episode, by the number of the call that began a new timeline; at most one per prompt.

    These are not breaks: the same prompt again, a fork from a recorded answer, a new conversation (only the
    system prompt in common), another agent's conversation.
    """
    chats = _Chats(record)
    return [broken for call in chats.calls if (broken := chats.break_of(call))]


def discarded(record: EpisodeRecord) -> frozenset[int]:
    """Numbers of the calls whose answers the agent discarded as failed attempts.

    A later prompt of the same agent and merging key discards an attempt in one of two ways:

    - The prompt contains the attempt's whole prompt, or an earlier part of it, and leaves the answer out (a
      break of cause ``turns removed``); an answer that appears elsewhere in it is kept. Summaries, sliding
      windows and edited answers discard nothing.
    - It continues another answer to the same prompt (``n`` > 1), or quotes one in another message, as after a summary, and
      the attempt was neither continued nor quoted.

    In both cases no later prompt contains the attempt's answer.
    """
    chats = _Chats(record)
    out: dict[int, int] = {}
    for call, by in (*chats.cut_out(), *chats.passed_over()):
        out[call.number] = max(by, out.get(call.number, by))
    return frozenset(
        call.number
        for call in chats.calls
        if call.number in out
        and chats.last_through(chats.answers[call.number], call.agent) < out[call.number]
    )


class _Chats:
    """The conversations of a record, by number. Indices that only breaks need are built on first use."""

    def __init__(self, record: EpisodeRecord) -> None:
        self.record = record
        self.answers = {call.number: call.answer for call in record.calls if call.answer}
        self.calls = sorted(
            (call for call in record.calls if call.number in self.answers), key=lambda call: call.number
        )
        self.prompts: defaultdict[MessageNode, list[Call]] = defaultdict(list)
        """Calls by the last message of their prompt."""
        for call in self.calls:
            self.prompts[_chat_end(call)].append(call)
        self._first: dict[MessageNode, int] = {}
        """The number of the first call whose prompt contains a message."""
        for call in self.calls:
            node: MessageNode | None = _chat_end(call)
            while node is not None and node not in self._first:
                self._first[node] = call.number
                node = node.parent
        self._exact: dict[MessageNode, str] = {}

    def break_of(self, call: Call) -> Break | None:
        """Why a call did not continue an earlier one; None if it did, or if there was none."""
        chat_end = _chat_end(call)
        if next(c for c in self.prompts[chat_end] if c.continues == call.continues) is not call:
            return None  # the same prompt again
        new = []
        node = chat_end
        while node.parent is not None and self._first[node] == call.number and not _before(node.ends, call):
            new.append(node)
            node = node.parent
        held = _held(node, call)
        earlier = self._under_other_tools(call, new, held) or self._rewritten(call, new, held)
        if earlier is None and held is not None and call.parent is None:
            earlier = _rendered_anew(call, held)
        if earlier is None or call.prompt.starts_with(earlier[0].end):
            return None  # the template may render a changed message to the same tokens
        return _report(call, *earlier)

    # ------------------------------------------------------------- candidates, best first

    def _under_other_tools(
        self, call: Call, new: Sequence[MessageNode], held: MessageNode | None
    ) -> tuple[Call, Difference] | None:
        """The conversation that these messages continue under another tool list of the same target."""
        if not any(_is_answer(node) for node in new):
            return None
        best, depth = None, held.depth if held else 0
        for key in self._keys.get(call.target, ()):
            node = self.record.chats.get(key) if key != call.key else None
            for each in _chat_end(call).path() if node else ():
                node = node.find(each.message) if node else None
                if node is None:
                    break
                ends = _before(node.ends, call)
                if ends and node.depth > depth:
                    best, depth = _nearest(ends, call), node.depth
        return (best, Difference("tool list changed", -1, "", "", -1)) if best else None

    def _rewritten(
        self, call: Call, new: Sequence[MessageNode], held: MessageNode | None
    ) -> tuple[Call, Difference] | None:
        """The conversation of which these messages, last one first, are an edited form."""
        for node in new:
            earlier = self._same_answer(call, node) or self._repeated(call, node)
            if earlier:
                return earlier, self._explain(earlier, call)
            earlier = self._left_out(call, node)
            if earlier:
                return earlier, self._told_by_another(node, self._explain(earlier, call))
        earlier = self._remembered(call, new) if held is None else None
        return (earlier, self._explain(earlier, call)) if earlier else None

    def _same_answer(self, call: Call, node: MessageNode) -> Call | None:
        """A call of any agent whose answer to the prompt above is this one in another form."""
        alike = [
            c
            for c in _before(self.prompts.get(_above(node), ()), call)
            if compare(self.answers[c.number].message, node.message)[0] in SAME_ANSWER
        ]
        return _nearest(alike, call) if alike else None

    def _repeated(self, call: Call, node: MessageNode) -> Call | None:
        """The agent's latest call that gave this answer, after another history."""
        if not _is_answer(node):
            return None
        for text in (self.exact(node), loose(node.message)):
            earlier = _before(self._by_answer.get((call.agent, call.key, text), ()), call)
            if earlier and self._no_chance(node, earlier[-1], call):
                return earlier[-1]
        return None

    def _no_chance(self, node: MessageNode, earlier: Call, call: Call) -> bool:
        """Whether an answer really comes from that call: it follows that call's last message, or it is neither an example
        that its prompt also had nor a common word."""
        path = _chat_end(earlier).path()
        if _passes(_chat_end(call), self.answers[earlier.number]):
            return False  # that answer is in the prompt already
        above = _above(node)
        if above.message.get("role") != "system" and self.exact(above) == self.exact(path[-1]):
            return True
        if any(self.exact(node) == self.exact(each) for each in path):
            return False
        if node.message.get("tool_calls") or len(text_of(node.message)) >= TELLING:
            return True
        start = leading([each.message for each in path])
        shared = path[start] if start < len(path) else None
        return any(each is shared for each in _chat_end(call).path()[: start + 1])

    def _left_out(self, call: Call, node: MessageNode) -> Call | None:
        """The agent's latest call that continued an answer to the prompt above, where this message is now."""
        above = _above(node)
        if above.message.get("role") in (None, "system"):
            return None
        ways = [c for c in _before(self.prompts.get(above, ()), call) if c.agent == call.agent]
        if not ways:
            return None
        numbers = {c.number for c in ways}
        answers = {self.answers[number] for number in numbers}
        of_agent = reversed(_before(self._of_agent[call.agent, call.key], call))
        return next(
            c for c in of_agent if c.number in numbers or any(_passes(_chat_end(c), a) for a in answers)
        )

    def _told_by_another(self, node: MessageNode, difference: Difference) -> Difference:
        """Correct the cause if the answer is another call's, and therefore not edited."""
        if difference.cause != "answer edited" or loose(node.message) not in self._all_answers:
            return difference
        return Difference("turns removed", difference.message, difference.before, difference.now, -1)

    def _remembered(self, call: Call, new: Sequence[MessageNode]) -> Call | None:
        """The agent's previous call, if a prompt without answers contains messages that came after its first
        answer. The last message does not count: it is the current question."""
        kept = [node for node in new[1:] if node.message.get("role") != "system"]
        if not kept or any(_is_answer(node) for node in new):
            return None
        earlier = _before(self._of_agent[call.agent, call.key], call)[-1:]
        if not earlier:
            return None
        candidates = {self.exact(node) for node in kept}
        path = _chat_end(earlier[0]).path()
        first = next((i for i, each in enumerate(path) if _is_answer(each)), len(path))
        return earlier[0] if any(self.exact(each) in candidates for each in path[first:]) else None

    def _explain(self, earlier: Call, call: Call) -> Difference:
        answer, chat_end = self.answers[earlier.number], _chat_end(call)
        return explain(answer.chat(), chat_end.chat(), answer.common(chat_end))

    # ------------------------------------------------------------- discarded attempts

    def cut_out(self) -> Iterator[tuple[Call, int]]:
        """Calls whose answers a later prompt left out, each with that prompt's number."""
        for call in self.calls:
            broken = self.break_of(call)
            if broken is None or broken.cause != "turns removed":
                continue
            kept = {loose(each.message) for each in _chat_end(call).path()[broken.message :]}
            for each in self.answers[broken.after].path()[broken.message :]:
                if loose(each.message) not in kept:
                    yield from ((c, call.number) for c in _before(each.ends, call) if c.agent == call.agent)

    def passed_over(self) -> Iterator[tuple[Call, int]]:
        """Calls whose answer was never used while another answer to the same prompt was, each with the number of the last
        prompt that did so."""
        for group in self.prompts.values():
            if len(group) < 2:
                continue
            last: dict[str, int] = {}
            unused = []
            for call in group:
                answer = self.answers[call.number]
                through, quoted = self.last_through(answer, call.agent), self._last_quoting(call)
                if max(through, quoted) < 0:
                    unused.append(call)
                telling = quoted if len(spoken(answer.message).strip()) >= TELLING else -1
                last[call.agent] = max(through, telling, last.get(call.agent, -1))
            yield from ((call, last[call.agent]) for call in unused if last[call.agent] > call.number)

    def _last_quoting(self, call: Call) -> int:
        """The number of the agent's last prompt with a message of someone else, new since the call, that has the text of its
        answer; -1 if there is none."""
        text = spoken(self.answers[call.number].message).strip()
        return max(
            (
                by.get(call.agent, -1)
                for node, by in self._last.items()
                if text
                and self._first[node] > call.number
                and not _is_answer(node)
                and text in text_of(node.message)
            ),
            default=-1,
        )

    def last_through(self, node: MessageNode, agent: str) -> int:
        """The number of an agent's last prompt that contains a message; -1 if there is none."""
        return self._last.get(node, {}).get(agent, -1)

    # ------------------------------------------------------------- indices

    def exact(self, node: MessageNode) -> str:
        """The identity of a node's message."""
        text = self._exact.get(node)
        if text is None:
            text = self._exact[node] = canonical(node.message)
        return text

    @cached_property
    def _keys(self) -> dict[str, list[str]]:
        """Merging keys of each target."""
        keys: defaultdict[str, set[str]] = defaultdict(set)
        for call in self.calls:
            keys[call.target].add(call.key)
        return {target: sorted(of) for target, of in keys.items()}

    @cached_property
    def _by_answer(self) -> dict[tuple[str, str, str], list[Call]]:
        """Calls by agent, key and answer, in exact or loose form."""
        by_answer: defaultdict[tuple[str, str, str], list[Call]] = defaultdict(list)
        for call in self.calls:
            answer = self.answers[call.number]
            for text in {self.exact(answer), loose(answer.message)}:
                by_answer[call.agent, call.key, text].append(call)
        return by_answer

    @cached_property
    def _all_answers(self) -> set[str]:
        """The answers of all models, including those that are not trained."""
        return {loose(answer.message) for answer in self.answers.values()}

    @cached_property
    def _of_agent(self) -> defaultdict[tuple[str, str], list[Call]]:
        by_agent: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
        for call in self.calls:
            by_agent[call.agent, call.key].append(call)
        return by_agent

    @cached_property
    def _last(self) -> dict[MessageNode, dict[str, int]]:
        """For each message, the number of every agent's last prompt that contains it."""
        last: dict[MessageNode, dict[str, int]] = {}
        for call in self.calls:
            node: MessageNode | None = _chat_end(call)
            while node is not None and node not in last:
                last[node] = {}
                node = node.parent
            last[_chat_end(call)][call.agent] = call.number
        for node in sorted(last, key=lambda n: -n.depth):
            if node.parent is not None:
                above = last[node.parent]
                for agent, number in last[node].items():
                    above[agent] = max(number, above.get(agent, number))
        return last


def _rendered_anew(call: Call, held: MessageNode) -> tuple[Call, Difference] | None:
    """The call whose answer the prompt contains, if the chat was rendered again and to other tokens."""
    ends = _before(held.ends, call)
    if any(call.prompt.starts_with(earlier.end) for earlier in ends):
        return None
    earlier = _nearest(ends, call)
    token = common_length(earlier.end.ids(), call.prompt.ids())
    answer = next(
        answer
        for answer in held.path()
        if any(c.end.length > token and earlier.end.starts_with(c.end) for c in answer.ends)
    )
    if call.was or call.now:
        return earlier, Difference(call.cause, answer.depth - 1, excerpt(call.was), excerpt(call.now), -1)
    text = answer.message.get("content") or ""
    return earlier, Difference(
        call.cause or "retokenised", answer.depth - 1, excerpt(text), excerpt(text), -1
    )


def _report(call: Call, earlier: Call, why: Difference) -> Break:
    token = common_length(earlier.end.ids(), call.prompt.ids())
    return Break(
        call=call.number,
        after=earlier.number,
        agent=call.agent,
        cause=why.cause,
        message=why.message,
        before=why.before,
        now=why.now,
        char=why.char,
        token=token,
        recorded=tuple(earlier.end.ids(token)[:SHOWN].tolist()),
        sent=tuple(call.prompt.ids(token)[:SHOWN].tolist()),
        lost_tokens=call.prompt.length - token,
    )


def _chat_end(call: Call) -> MessageNode:
    assert call.chat_end is not None
    return call.chat_end


def _above(node: MessageNode) -> MessageNode:
    assert node.parent is not None
    return node.parent


def _is_answer(node: MessageNode) -> bool:
    return node.message.get("role") == "assistant"


def _before(calls: Sequence[Call], call: Call) -> Sequence[Call]:
    """Those of the calls, in order of their numbers, that are earlier."""
    return calls[: bisect_left(calls, call.number, key=lambda c: c.number)]


def _nearest(calls: Iterable[Call], call: Call) -> Call:
    """The latest call of the same agent, else of any agent."""
    return max(calls, key=lambda c: (c.agent == call.agent, c.number))


def _held(node: MessageNode | None, call: Call) -> MessageNode | None:
    """The nearest message at or above a node that an earlier call answered."""
    while node is not None and not _before(node.ends, call):
        node = node.parent
    return node


def _passes(node: MessageNode, through: MessageNode) -> bool:
    at: MessageNode | None = node
    while at is not None and at.depth > through.depth:
        at = at.parent
    return at is through
