"""Branches that nothing came of: answers, such as rejected summaries and failed attempts, that no later call of the episode used.

They need no break: a program that asks again, and goes on with another answer in a fresh context, has changed no history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ajet.chat.messages import loose, spoken, text_of
from ajet.tracker.call import Call, MessageNode
from ajet.tracker.record import EpisodeRecord


def unused(record: EpisodeRecord) -> frozenset[int]:
    """Numbers of the calls on branches that no later call used.

    A later prompt uses an answer if it contains it, also edited or quoted in another message. A branch that only unused
    calls used is unused, too. The last answers of a conversation are its result, as long as no later prompt of it, and none
    with another answer of it, follows; so are several answers to its last prompt.
    """
    return _Branches(record).unused()


class _Branches:
    def __init__(self, record: EpisodeRecord) -> None:
        self.calls = sorted((c for c in record.calls if c.answer and c.chat_end), key=lambda c: c.number)
        self.new: dict[int, list[MessageNode]] = {}
        """The messages that were first sent with each call, without recorded answers."""
        self.users: defaultdict[int, set[int]] = defaultdict(set)
        """The later calls that use each call's answer."""
        self.siblings: defaultdict[tuple[str, MessageNode], list[Call]] = defaultdict(list)
        """Calls of an agent whose chats begin with the same message that is not a system prompt."""
        seen: set[MessageNode] = set()
        answering: defaultdict[MessageNode, list[Call]] = defaultdict(list)
        asking: defaultdict[MessageNode, list[Call]] = defaultdict(list)
        for call in self.calls:
            self.siblings[call.agent, _first(call)].append(call)
            self.new[call.number] = []
            for node in _upwards(call.chat_end):
                for earlier in answering[node]:
                    self.users[earlier.number].add(call.number)
                if answering[node]:
                    break
                if node not in seen:
                    seen.add(node)
                    self.new[call.number].append(node)
                # An edited form of the answers there.
                if node.message.get("role") == "assistant" and node.parent:
                    for earlier in asking[node.parent]:
                        self.users[earlier.number].add(call.number)
            asking[_end(call)].append(call)
            assert call.answer
            answering[call.answer].append(call)

    def unused(self) -> frozenset[int]:
        """See the function."""
        branching = [calls for calls in self.siblings.values() if len(calls) > 1]
        for calls in branching:
            for call in calls:
                if not self.users[call.number]:
                    self.users[call.number] |= set(self._quoting(call))
        goes_on = {call.number: self._goes_on(call, calls) for calls in branching for call in calls}
        useful: dict[int, bool] = {}
        for call in reversed(self.calls):
            is_result = not goes_on.get(call.number)
            useful[call.number] = is_result or any(useful[user] for user in self.users[call.number])
        return frozenset(number for number, is_useful in useful.items() if not is_useful)

    def _goes_on(self, call: Call, siblings: list[Call]) -> bool:
        """Whether the conversation goes on after a call: with another prompt, or where one uses another answer of it."""
        return any(
            (other.number > call.number and other.chat_end is not call.chat_end)
            or (other is not call and any(user > call.number for user in self.users[other.number]))
            for other in reversed(siblings)
        )

    def _quoting(self, call: Call) -> Iterator[int]:
        """The later calls whose new messages have the text of an answer."""
        assert call.answer
        text, whole = spoken(call.answer.message).strip(), loose(call.answer.message)
        for number, nodes in self.new.items():
            if number > call.number and any(
                (text and text in text_of(node.message))
                or (node.message.get("role") == "assistant" and loose(node.message) == whole)
                for node in nodes
            ):
                yield number


def _end(call: Call) -> MessageNode:
    assert call.chat_end
    return call.chat_end


def _upwards(node: MessageNode | None) -> Iterator[MessageNode]:
    while node is not None and node.parent is not None:
        yield node
        node = node.parent


def _first(call: Call) -> MessageNode:
    """The first message of a chat after its system prompt."""
    path = _end(call).path()
    return next((node for node in path if node.message.get("role") != "system"), path[-1])
