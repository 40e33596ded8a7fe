"""Finished chats as their model would have sampled them: each answer after its own prompt, as if it had been a call.

An answer follows the ids of the one before it if the format continues them, as in `ajet.tracker.prompt`. If not, because
the format drops earlier thoughts for example, another sequence begins, so that every answer stands in the chat that
a call would have had.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet.chat.continuing import Written
from ajet.chat.messages import normalise, normalise_tools, spoken, thoughts
from ajet.chat.renderer import TAIL, Chat, Message, Turn
from ajet.types import AjetError

WORD = re.compile(r"[A-Za-z0-9]{2,}")
"""What of a tool's result stands in a prompt whatever escapes a template writes."""


@dataclass(slots=True)
class Sampled:
    """Token ids, some of which the model would have sampled."""

    ids: list[int]
    rendered: Written
    """How the last prompt was written."""
    cause: str = ""
    """Why it does not continue the sequence before it (one of `ajet.chat.renderer.CAUSES`)."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Where each answer begins and ends, with the token that ends it."""
    stripped: bool = False
    """Whether the format leaves out the space around an answer's text."""


def sampled_in(chat: Chat, messages: Sequence[Message], tools: Sequence[Any]) -> list[Sampled]:
    """The fewest sequences in which each answer of a chat stands once, after what its model would have read. A message of the
    assistant that begins the chat is context, because no call has no messages. Raises AjetError if the chat format refuses
    a prompt, or does not write all of an answer or of a tool's result."""
    known = normalise_tools(tools)
    told = [_as_parsed(chat, normalise(_with_reasoning(m), index)) for index, m in enumerate(messages)]
    sequences: list[Sampled] = []
    last = 0
    for index in [n for n, m in enumerate(told) if n and m["role"] == "assistant"]:
        line = _prompt(chat, told[:index], last, known, sequences)
        _check_results(told[last + 1 : index], line)
        answer = chat.sampled(line.rendered, told[index])
        line.spans.append((len(line.ids), len(line.ids) + len(answer)))
        line.ids += answer
        content = spoken(told[index])
        line.stripped |= content != content.strip() and content not in chat.text(answer)
        last = index
    return sequences


def _check_results(messages: Sequence[Message], line: Sampled) -> None:
    """Raise AjetError if a prompt lacks a word of a tool's result: its answer would state what the model has not read."""
    results = [m for m in messages if m["role"] == "tool"]
    words, read = {w for m in results for w in WORD.findall(spoken(m))}, line.rendered.text
    if any(word not in read for word in words):
        raise AjetError("the chat template does not write a tool's result in full")


def _prompt(
    chat: Chat, asked: Sequence[Message], last: int, tools: Sequence[Message], sequences: list[Sampled]
) -> Sampled:
    """The sequence that ends with the prompt ``asked``: the last one of ``sequences``, made longer, or another one that is added
    to it. ``last`` is the index of the answer that ends the last one."""
    cause = ""
    if sequences:
        line = sequences[-1]
        begin, end = line.spans[-1]
        turn = Turn(
            prompt_tail=line.ids[max(0, begin - TAIL) : begin],
            completion=line.ids[begin:end],
            answer=asked[last],
            new=asked[last + 1 :],
            count=len(asked),
            whole=lambda: asked,
            rendered=line.rendered,
        )
        more = chat.next_turn(turn, tools)
        if more.ids is not None:
            assert more.rendered
            line.ids += more.ids
            line.rendered = more.rendered
            return line
        cause = more.cause
    ids, rendered = chat.begin(asked, tools)
    sequences.append(Sampled(ids.tolist(), rendered, cause))
    return sequences[-1]


def _as_parsed(chat: Chat, message: dict[str, Any]) -> dict[str, Any]:
    """A message in normal form as `Chat.parse` gives it: thoughts are apart from the text, if the model's answers have any."""
    reasoning = thoughts(message)
    if message["role"] != "assistant" or not reasoning or chat.shape.thoughts is None:
        return message
    return {**message, "content": spoken(message).lstrip("\n"), "reasoning_content": reasoning}


def _with_reasoning(message: Message) -> Message:
    """A message whose thoughts are under the name that `normalise` reads; gpt-oss's data sets name them ``thinking``."""
    return {"reasoning_content": message.get("thinking"), **message}
