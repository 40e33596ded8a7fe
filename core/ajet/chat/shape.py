"""What surrounds an answer in a chat format: the header before it, its thoughts' markers, what ends its turn.

All of it is found by rendering stub chats with marks that no real chat contains, never from constants here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ajet.chat.encoding import ASKED, SAID, THOUGHT
from ajet.chat.format import ChatFormat
from ajet.chat.template import QUESTION, STUB_CALL, STUB_RESULT, STUB_TOOL
from ajet.chat.texts import common_start, without_header
from ajet.types import AjetError

Message = Mapping[str, Any]

_AGAIN = {"role": "user", "content": "b"}
THINK = ("<think>", "</think>")
"""What many models write around thoughts."""
_TAG = re.compile(r"(?:<[^<>]*>|\[/?[A-Z_]+\])[^<>\[\]]*\Z")
"""The last tag of a text, and what follows it."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What a format writes after an assistant's text."""

    text: str = ""
    """The part that belongs to the turn: it is written whether or not another message follows."""
    closing: str = ""
    """The part of ``text`` before the special token that ends the turn."""
    token: str = ""
    """That token; empty if the turn has none of its own."""
    last: str = ""
    """The token used instead if no other message follows: Harmony writes ``<|return|>`` there."""
    header: str = ""
    """If it has none: the special token with which the next message begins."""


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """The texts around an answer."""

    header: str
    """What a prompt ends with: the beginning of the assistant's turn, perhaps that of a thought."""
    ending: Ending
    call_ending: Ending | None
    """After a tool call; None if the format refuses calls."""
    thoughts: tuple[str, str] | None
    """The markers around reasoning, without the space at their ends; None if the format knows no reasoning."""
    said: tuple[str, str]
    """Markers around the content, mostly empty."""
    last_token: str = ""
    """The last special token of the header that begins no thought; empty if there is none."""

    def stop_tokens(self) -> list[str]:
        """Tokens that end an answer: what the format writes after the last one. A token that also ends a thought comes
        last, because it cannot tell the end of an answer."""
        endings = [e for e in (self.ending, self.call_ending) if e]
        tokens = [*(e.last or e.token for e in endings), *(e.header for e in endings)]
        within = self.thoughts[1] if self.thoughts else ""
        return [t for t in dict.fromkeys(tokens) if t and t not in within]

    def only_last(self) -> list[str]:
        """Tokens that the format writes only after the last answer of a chat, and others after earlier answers; a
        prompt never contains them."""
        endings = [e for e in (self.ending, self.call_ending) if e]
        return [e.last for e in endings if e.last and e.last not in {e.token for e in endings}]

    def upto_end(self, text: str, control: re.Pattern[str]) -> str:
        """The text of a turn, with its header, up to the token that ends it."""
        rest = without_header(text, self.header, control)
        header = text[: len(text) - len(rest)]
        ends = [
            rest.find(token) for token in (self.ending.token, *self.stop_tokens()) if token and token in rest
        ]
        return header + rest[: min(ends, default=len(rest))]

    def unopened(self, prompt: str) -> str:
        """A prompt without a thought that its header begins, or that is empty."""
        if self.thoughts is None:
            return prompt
        begin, end = map(re.escape, self.thoughts)
        return re.sub(rf"{begin}\s*({end}\s*)?\Z", "", prompt)

    @property
    def begins(self) -> str:
        """The part of the header that begins the answer, after what ends the question."""
        return self.header[self.header.rfind(self.last_token) if self.last_token else 0 :]

    def closes(self, prompt: str) -> bool:
        """Whether a prompt ends with the end of a thought."""
        return self.thoughts is not None and prompt.rstrip().endswith(self.thoughts[1])

    @property
    def empty_thought(self) -> re.Pattern[str]:
        """Matches a thought without words, with the space after it."""
        return re.compile(r"\s*".join(map(re.escape, self.thoughts)) + r"\s*" if self.thoughts else "(?!)")


class Prober:
    """Renders stub chats; a chat that the format refuses is an empty text."""

    def __init__(
        self, format: ChatFormat, control: re.Pattern[str], source: str = "", stops: Collection[str] = ()
    ) -> None:
        self._format, self.control, self._source, self._stops = format, control, source, stops
        self.header = self.written([QUESTION], generate=True)

    def written(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), *, generate: bool = False
    ) -> str:
        """What the format writes after the question."""
        for offered in (tools, [STUB_TOOL]):  # some templates refuse chats without tools
            with suppress(AjetError):
                return self._format.stub(messages, offered, generate).partition(ASKED)[2]
        return ""

    def shape(self) -> AnswerShape:
        """What surrounds answers in this format."""
        said = {"role": "assistant", "content": SAID}
        ending = self._ending(said, _AGAIN) or Ending()
        call_ending = self._ending(_calling(SAID), STUB_RESULT, [STUB_TOOL], ending)
        thoughts = self._thoughts()
        shape = AnswerShape(self.header, ending, call_ending, thoughts, self._around(thoughts, ending))
        tokens = [token[0] for token in self.control.finditer(shape.unopened(self.header))]
        within = "".join([*(thoughts or ()), *shape.said])
        return replace(shape, last_token=next((t for t in reversed(tokens) if t not in within), ""))

    def _around(self, thoughts: tuple[str, str] | None, ending: Ending) -> tuple[str, str]:
        """The markers around content: special tokens, or a line, between header and text, and special tokens after the text."""
        before = self.written([QUESTION, {"role": "assistant", "content": SAID}, _AGAIN]).partition(SAID)[0]
        before = without_header(before, self.header, self.control)
        for marker in thoughts or ():
            before = before.replace(marker, "")
        begin, end = before.strip(), ending.closing.strip()
        if not self.control.search(begin):
            begin = before.lstrip() if begin and before.endswith("\n") else ""
        first = self.control.match(end)
        again = end.find(first[0], first.end()) if first else -1
        end = end[:again] if again > 0 else end  # the markers of other things follow
        return begin, (end if self.control.search(end) else "")

    def _ending(
        self,
        assistant: Message,
        after: Message,
        tools: Sequence[Message] = (),
        of_text: Ending | None = None,
    ) -> Ending | None:
        """What the format writes after ``assistant``. ``of_text``: what it writes after a plain answer, if this one calls
        a tool."""
        followed = self.written([QUESTION, assistant, after], tools, generate=True)
        alone = self.written([QUESTION, assistant], tools) or followed
        if followed.count(SAID) != 1 or alone.count(SAID) != 1:
            return None
        followed, alone = followed.partition(SAID)[2], alone.partition(SAID)[2]
        text = common_start(followed, alone, self.control)
        earlier, last = self.control.match(followed, len(text)), self.control.match(alone, len(text))
        tokens = list(self.control.finditer(text))
        if of_text is None and not tokens and earlier and last and not alone[last.end() :].strip():
            return Ending(text + earlier[0], text, earlier[0], last[0])
        token = next((t for t in tokens if t[0] in self._stops), tokens[-1] if tokens else None)
        if of_text and tokens:
            token = next((t for t in tokens if t[0] == of_text.token), None) or self._of_turn(tokens)
        if token:
            return Ending(text, text[: token.start()], token[0])
        space = len(followed[len(text) :]) - len(followed[len(text) :].lstrip())
        header = self.control.match(followed, len(text) + space)
        closing = text.removesuffix(of_text.text) if of_text else ""
        return Ending(text, closing, header=header[0] if header else "")

    def _of_turn(self, tokens: Sequence[re.Match[str]]) -> re.Match[str] | None:
        """The last of the tokens after a call that does not end each of several calls."""
        two = self.written([QUESTION, _calling(THOUGHT, SAID)], [STUB_TOOL])
        between, second, _ = two.partition(THOUGHT)[2].partition(SAID)
        return next((t for t in reversed(tokens) if not second or t[0] not in between), None)

    def _thoughts(self) -> tuple[str, str] | None:
        """The markers around reasoning: what stands before and after it, as far as other answers do not have it."""
        plain = {"role": "assistant", "content": SAID}
        thinking = {"reasoning_content": THOUGHT, "thinking": THOUGHT}
        chats: list[tuple[list[Message], list[Message]]] = [
            ([QUESTION, {**_calling(SAID), **thinking}, STUB_RESULT], [STUB_TOOL]),
            ([QUESTION, {**plain, **thinking}], []),
            ([QUESTION, {**plain, **thinking}, _AGAIN], []),
        ]
        texts = [text for chat, tools in chats if THOUGHT in (text := self.written(chat, tools))]
        if not texts:
            return self._thoughts_in_text()
        before = texts[0].partition(THOUGHT)[0]
        usual = self.written([QUESTION, plain, _AGAIN])
        header = min((common_start(before, other, self.control) for other in (usual, self.header)), key=len)
        begin = before[len(header) :].strip()
        ends = [text.partition(THOUGHT)[2] for text in texts]
        end = ends[0]
        for other in ends[1:]:
            end = common_start(end, other, self.control)
        if len(set(ends)) == 1 or not end.strip():
            token = self.control.match(ends[0].lstrip()) or re.match(
                r"<[^<>]*>|\[/?[A-Z_]+\]", ends[0].lstrip()
            )
            end = token[0] if token else ""
        # Some prompts begin a thought with words that no answer has.
        begin = begin or (self.header[len(before) :].strip() if self.header.startswith(before) else "")
        begin = begin or self._last_marker(before, end)
        return (begin, end.strip()) if begin and end.strip() else None

    def _last_marker(self, before: str, end: str) -> str:
        """The last tag of a text; if the marker that ends a thought has a word between two tokens, from the token before
        the same word on."""
        tag = _TAG.search(before)
        word = next((part for part in self.control.split(end) if part.isalpha()), "")
        at = before.rfind(word) if word else -1
        tokens = [token.start() for token in self.control.finditer(before) if token.end() == at]
        return (before[tokens[-1] :] if tokens else tag[0] if tag else "").strip()

    def _thoughts_in_text(self) -> tuple[str, str] | None:
        """``<think>`` where the template's source has it, or the format takes it out of the text of an earlier answer."""
        markers = THINK
        if self.header.rstrip().endswith(markers[0]) or all(marker in self._source for marker in markers):
            return markers
        inline = {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\n{SAID}"}
        text = self.written([QUESTION, inline, _AGAIN])
        return markers if SAID in text and THOUGHT not in text else None


def _calling(*values: str) -> dict[str, Any]:
    """A message that calls the stub tool, once with each value."""
    (call,) = STUB_CALL["tool_calls"]
    calls = [
        {**call, "id": f"call{number:05}", "function": {**call["function"], "arguments": {"value": value}}}
        for number, value in enumerate(values, 1)
    ]
    return {**STUB_CALL, "tool_calls": calls}


def after_prompt(shape: AnswerShape, prompt: str, whole: str) -> tuple[str, ...] | None:
    """What a chat with an answer has after the prompt that asks for it; None if the chat does not begin with the prompt. Two
    texts, of which the first is empty, if the prompt begins a thought that the chat does not have: the thought belongs
    between them."""
    if whole.startswith(prompt):
        return (whole[len(prompt) :],)
    unopened = shape.unopened(prompt)
    if shape.thoughts is None or not whole.startswith(unopened):
        return None
    rest, (begin, end) = whole[len(unopened) :], shape.thoughts
    empty = re.match(rf"\s*(?:{re.escape(begin)}\s*)?(?={re.escape(end)})", rest)
    if rest.lstrip().startswith(begin) and (shape.closes(prompt) or not empty):
        return None  # a second thought
    if shape.closes(prompt):  # an empty thought, which finished answers do not have
        return (rest,)
    space = prompt[len(prompt.rstrip()) :]
    return "", space + (rest[empty.end() :] if empty else f"{end}\n\n{rest}")


def written(format: ChatFormat, shape: AnswerShape, answer: Message) -> str:
    """What a model writes to say ``answer``: its text without the end of the turn, unless that end differs from
    a plain answer's. Raises AjetError if the format refuses it."""

    def text(messages: Sequence[Message], generate: bool) -> str:
        return format.write(format.prepared(messages), [], generate)

    ending = (shape.call_ending if answer.get("tool_calls") else None) or shape.ending
    after = STUB_RESULT if answer.get("tool_calls") else _AGAIN
    # Some templates write empty reasoning before a last answer, and none before an earlier one.
    followed = bool(ending.token) and not answer.get("reasoning_content")
    question = {"role": "user", "content": "a"}
    before = text([question], True)
    pieces = after_prompt(
        shape, before, text([question, answer, after] if followed else [question, answer], False)
    )
    if pieces is None:
        raise AjetError("the chat template does not begin an answer as it begins a prompt")
    whole = "".join(pieces)
    token = ending.token if followed else ending.last or ending.token
    end = (whole.find(token) if followed else whole.rfind(token)) if token else -1
    own = token if token not in (shape.ending.token, shape.ending.last) else ""
    return format.show(whole[:end] + own if end >= 0 else whole.removesuffix(shape.ending.text))
