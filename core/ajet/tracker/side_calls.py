"""Side calls: those that a program makes beside its agent's work, such as a title. Their answers change nothing of an episode."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ajet.chat.messages import text_of
from ajet.tracker.call import Call, Exchange, MessageNode
from ajet.tracker.record import EpisodeRecord

LONG = 8
"""Letters and digits that another text does not contain by chance."""


def letters(value: Any) -> str:
    """The letters and digits of a value, without those of escaped white space; none of None. They stay of a text that is quoted in
    another form."""
    text = "" if value is None else re.sub(r"\\+[nrt]", " ", str(value))
    return "".join(filter(str.isalnum, text)).casefold()


def side_calls(record: EpisodeRecord, result: Any = None) -> list[Call]:
    """The side calls of an episode that has ended; ``result`` is what its workflow returned.

    A call is one if all of this holds:

    - it offers no tools, although other calls of its agent do;
    - it begins a chat: no message of it is an answer;
    - it builds on no earlier answer: its prompt quotes none;
    - nothing builds on it: no later prompt has its answer as a message or quotes it, and the result does not quote it.

    A quote is the whole text of an answer, by its letters and digits, of which there are at least `LONG`. A text that stands in
    the answer's own prompt too says nothing.
    """
    with_tools = {call.agent for call in record.calls if call.tools}
    candidates = [call for call in record.calls if call.agent in with_tools and _begins_without_tools(call)]
    if not candidates:
        return []
    texts = _Texts(record)
    told = letters(result)
    return [call for call in candidates if not texts.builds(call) and not texts.is_built_on(call, told)]


def _begins_without_tools(call: Call) -> bool:
    if call.tools or call.chat_end is None or call.answer is None:
        return False
    return all(message["role"] != "assistant" for message in call.chat_end.chat())


class _Texts:
    """The letters and digits of an episode's messages, each read once."""

    def __init__(self, record: EpisodeRecord) -> None:
        self._answered = record.exchanges
        self._letters: dict[MessageNode, str] = {}
        self._last: dict[MessageNode, int] = {}
        """The number of the last call whose prompt has a message."""
        for asked in sorted(record.asked, key=lambda asked: -asked.number):
            node = asked.chat_end
            while node is not None and node.parent is not None and node not in self._last:
                self._last[node] = asked.number
                node = node.parent

    def builds(self, call: Call) -> bool:
        """Whether the prompt of a call quotes an earlier answer."""
        prompt = self._prompt(call)
        return any(self._quotes(prompt, one) for one in self._answered if one.number < call.number)

    def is_built_on(self, call: Call, result: str) -> bool:
        """Whether a later prompt, or the result of the episode, has the answer of a call."""
        said = self._said(call)
        for node in self._after(call):
            if (node.message["role"] == "assistant" and self._of(node) == said) or self._quotes(
                self._of(node), call
            ):
                return True
        return self._quotes(result, call)

    def _after(self, call: Call) -> Iterator[MessageNode]:
        return (node for node, number in self._last.items() if number > call.number)

    def _quotes(self, text: str, answered: Exchange) -> bool:
        said = self._said(answered)
        return len(said) >= LONG and said in text and said not in self._prompt(answered)

    def _said(self, answered: Exchange) -> str:
        assert answered.answer
        return self._of(answered.answer)

    def _prompt(self, asked: Exchange) -> str:
        return "".join(map(self._of, asked.chat_end.path())) if asked.chat_end else ""

    def _of(self, node: MessageNode) -> str:
        if node not in self._letters:
            self._letters[node] = letters(text_of(node.message))
        return self._letters[node]
