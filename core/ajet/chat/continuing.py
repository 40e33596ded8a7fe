"""What the chat format writes after an earlier prompt, once the answer and more messages follow.

The engine's next prompt is the stored ids of the last one, the sampled ids, and this. So the text of the longer chat
must begin with the text of the earlier prompt, which is kept. Each call renders its chat once and compares.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ajet.chat.format import ChatFormat
from ajet.chat.shape import AnswerShape, after_prompt
from ajet.types import AjetError

Message = Mapping[str, Any]

THINKING = "template drops thinking"
TOOLS = "template moves tools"
REWRITTEN = "template rewrites history"

_AROUND = 40
"""Characters shown on each side of a difference."""
_QUESTION = {"role": "user", "content": "a"}
_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)


class _Kept:
    """The longest prompt of a conversation so far: its text, and its messages as the format takes them. The earlier
    prompts are its beginnings."""

    __slots__ = ("messages", "text", "tools")

    def __init__(self, text: str, messages: list[dict[str, Any]], tools: tuple[Any, list[Message]]) -> None:
        self.text, self.messages, self.tools = text, messages, tools


@dataclass(frozen=True, slots=True)
class Written:
    """How a prompt was written: what is needed to continue it."""

    times: tuple[str, ...]
    """The times that the format could have written just before."""
    kept: _Kept
    length: int
    """Characters of the prompt's text."""
    count: int
    """Messages of the prompt."""

    @property
    def text(self) -> str:
        """The prompt's text."""
        return self.kept.text if len(self.kept.text) == self.length else self.kept.text[: self.length]

    def messages(self) -> list[dict[str, Any]]:
        """The prompt's messages, prepared."""
        return self.kept.messages[: self.count]

    def copied(self) -> Written:
        """A copy for a chat that must not see how other chats continue."""
        return Written(
            self.times, _Kept(self.text, self.messages(), self.kept.tools), self.length, self.count
        )

    def prefilled(self, text: str) -> Written:
        """What is known of this prompt with the beginning of an answer, as ``text``."""
        return Written(self.times, _Kept(text, self.messages(), self.kept.tools), len(text), self.count)

    def longer(self, text: str, messages: list[dict[str, Any]]) -> Written:
        """What is known of a longer chat, whose text begins with this one."""
        kept = self.kept
        if len(kept.text) == self.length:
            kept.text, kept.messages = text, messages
        else:  # another chat continued from the same place
            kept = _Kept(text, messages, kept.tools)
        return Written(self.times, kept, len(text), len(messages))


@dataclass(frozen=True, slots=True)
class Rest:
    """What follows the text of a prompt: the answer as the format writes it, and all after it."""

    text: str
    """The text, with marks for the texts of special tokens in messages."""
    written: Written
    """What is needed to continue the longer chat."""
    drops_thinking: bool = False
    """Whether earlier reasoning, and the answer's in ``text``, is left out."""


class Changed(Exception):
    """The longer chat does not begin with the text of the prompt. ``was`` and ``now`` show where."""

    def __init__(self, cause: str, was: str, now: str) -> None:
        super().__init__(cause)
        self.cause, self.was, self.now = cause, was, now


class Continuing:
    """Renders chats, and finds what longer ones have after shorter ones. ``shape`` knows the markers of thoughts."""

    def __init__(self, format: ChatFormat, shape: AnswerShape) -> None:
        self._format, self._shape = format, shape

    def begin(self, messages: Sequence[Message], tools: Sequence[Message]) -> Written:
        """A chat's prompt. Raises AjetError if the format refuses it."""
        times = self._format.times()
        prepared, hidden = self._format.prepared(messages), self._format.hidden(tools)
        text = self._format.write(prepared, hidden)
        return Written(times, _Kept(text, prepared, (tools, hidden)), len(text), len(prepared))

    def answer(self, before: Written, answer: Message, thought: str) -> tuple[str, ...]:
        """What the format writes after a prompt if ``answer`` ends the chat; two texts if ``thought``, which may be empty, is not
        part of that and belongs between them. If the format writes the prompt otherwise once the answer follows, as
        gpt-oss drops thoughts, the answer is what it writes after one question. Raises AjetError if that cannot be told
        either, or if the format does not write the thought and the prompt ends it."""
        rest = self._after(before, answer)
        if rest is None and self._format.show(before.text).endswith(self._shape.begins):
            rest = self._after(self.begin([_QUESTION], before.kept.tools[0]), answer)
        if rest is None:
            raise AjetError("the chat template does not write an answer after the prompt that asks for it")
        return rest if len(rest) > 1 else self._with_thought(before.text, rest[0], thought)

    def _after(self, before: Written, answer: Message) -> tuple[str, ...] | None:
        prepared = [*before.messages(), *self._format.prepared([answer])]
        whole = self._format.write(prepared, before.kept.tools[1], False)
        return after_prompt(self._shape, before.text, whole)

    def _with_thought(self, prompt: str, text: str, thought: str) -> tuple[str, ...]:
        if thought in self._format.show(text):
            return (text,)
        if self._shape.thoughts is None or self._shape.closes(prompt):
            raise AjetError("the chat template does not write the reasoning of an answer")
        begin, end = self._shape.thoughts
        empty = self._shape.empty_thought.match(text)
        return f"{begin}\n", f"\n{end}\n\n{text[empty.end() if empty else 0 :]}"

    def rest(
        self,
        earlier: Written | None,
        whole: Callable[[], Sequence[Message]],
        count: int,
        tools: Sequence[Message],
        keep_thinking: bool,
    ) -> Rest:
        """What follows the prompt of ``count`` messages in the ``whole`` chat. With ``keep_thinking``, reasoning that the
        format leaves out of the longer chat may stay. Raises Changed, and AjetError if the format refuses the chat."""
        messages = whole()
        before = earlier if earlier and earlier.count == count else self.begin(messages[:count], tools)
        known, hidden = before.kept.tools
        hidden = hidden if known is tools else self._format.hidden(tools)
        prepared = [*before.messages(), *self._format.prepared(messages[count:])]
        after = self._format.write(prepared, hidden)
        now = self._format.times()  # read after rendering, so that no change is missed
        if before.times != now:
            raise Changed(REWRITTEN, "; ".join(before.times), "; ".join(now))
        text = before.text
        if after.startswith(text):
            return Rest(after[len(text) :], before.longer(after, prepared))
        rest = self._rest_without_thoughts(messages, count, tools, text)
        if rest is not None and keep_thinking:
            written = Written(now, _Kept(after, prepared, (tools, hidden)), len(after), len(prepared))
            return Rest(rest, written, drops_thinking=True)
        cause = THINKING if rest is not None else self._cause(messages, count, tools)
        raise Changed(cause, *self._excerpts(text, after))

    def _rest_without_thoughts(
        self, whole: Sequence[Message], count: int, tools: Sequence[Message], prompt: str
    ) -> str | None:
        """What follows the prompt if no message has reasoning; None if there is some other difference."""
        thoughtless = [_without_thoughts(message) for message in whole]
        thought = thoughtless[:count] != list(whole[:count])
        before = self._shape.unopened(self._text(thoughtless[:count], tools) if thought else prompt)
        after = self._text(thoughtless, tools)
        # Formats write empty thoughts in some answers, and not in the same ones later.
        begun, empty = self._shape.empty_thought.sub("", before), self._shape.empty_thought
        if not empty.sub("", after).startswith(begun):
            return None
        at = left = 0
        for match in empty.finditer(after):
            if left + match.start() - at >= len(begun):
                break
            left += match.start() - at
            at = match.end()
        return after[at + len(begun) - left :]

    def _cause(self, whole: Sequence[Message], count: int, tools: Sequence[Message]) -> str:
        """What makes the format write earlier messages differently: the part without which it does not."""
        try:
            without_tools = [self._text(chat, ()) for chat in (whole[:count], whole)]
        except AjetError:
            return REWRITTEN
        moves_tools = bool(tools) and without_tools[1].startswith(without_tools[0])
        return TOOLS if moves_tools else REWRITTEN

    def _text(self, messages: Sequence[Message], tools: Sequence[Message]) -> str:
        return self._format.write(self._format.prepared(messages), self._format.hidden(tools))

    def _excerpts(self, before: str, after: str) -> tuple[str, str]:
        """Both texts around the first character that differs."""
        shorter = range(min(len(before), len(after)))
        at = bisect_left(shorter, True, key=lambda end: before[: end + 1] != after[: end + 1])
        window = slice(max(0, at - _AROUND), at + _AROUND)
        return self._format.show(before[window]), self._format.show(after[window])


def _without_thoughts(message: Message) -> dict[str, Any]:
    plain = {k: v for k, v in message.items() if k != "reasoning_content"}
    if plain.get("role") == "assistant" and "<think>" in (plain.get("content") or ""):
        plain["content"] = _THOUGHTS.sub("", plain["content"]).lstrip("\n")
    return plain
