"""Answers in Harmony, the chat format of gpt-oss: several messages in one turn, each in a channel.

After ``<|start|>assistant`` the model continues with the header of a message, ``<|channel|>NAME<|message|>``,
its text and ``<|end|>``, and begins the next message with ``<|start|>assistant``. The channel ``analysis``
holds its reasoning, ``final`` the answer, ``commentary`` its text next to tool calls; a header that
names a recipient, ``to=functions.NAME``, makes the message a tool call. So ``<|end|>`` ends a message
but not a turn; ``<|return|>`` ends the turn after the answer, ``<|call|>`` after a tool call.

Prompts are rendered with the model's own template (`ajet.chat.template`). The `renderers` library's renderer for
gpt-oss is not used: it needs the vocabulary that ``openai-harmony`` downloads, and it opens the channel
``analysis`` in the prompt, which the published template does not. The library's parser reads complete
answers.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ajet.chat.answers import Parsed
from ajet.chat.bodies import Tools
from ajet.chat.shape import AnswerShape
from ajet.chat.streaming import Decoder, Kind, Text, Trim

Message = Mapping[str, Any]

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_END, _RETURN, _CALL, _CONSTRAIN = "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"
_TOKENS = (_START, _CHANNEL, _MESSAGE, _END, _RETURN, _CALL, _CONSTRAIN)
_KINDS: dict[str, Kind] = {"analysis": "reasoning", "commentary": "content", "final": "content"}
_MALFORMED = "malformed_tool_calls"
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_HEADER = r"<\|start\|>(?:(?!<\|start\|>|<\|message\|>).)*+"
_MESSAGES = re.compile(
    rf"{_HEADER}(?:\Z|<\|message\|>.*?(?:<\|(?:end|call|return)\|>|(?=<\|start\|>)|\Z))", re.DOTALL
)
_MARKERS = re.compile("|".join(map(re.escape, [f"{_START}assistant", *_TOKENS])))


def find_harmony(tokenizer: Any, shape: AnswerShape, ends: Iterable[int]) -> Harmony | None:
    """The reader of answers for a model whose tokenizer has Harmony's tokens and whose template writes an answer
    in the channel ``final``; None for any other model. ``ends`` are tokens that end a turn, such as the tokenizer's eos."""
    added = {str(token.content) for token in tokenizer.added_tokens_decoder.values()}
    if not added.issuperset(_TOKENS) or not shape.said[0].endswith(f"{_CHANNEL}final{_MESSAGE}"):
        return None
    return Harmony(tokenizer, ends)


class Harmony:
    """Reads the answers of a model whose tokenizer has Harmony's tokens. ``ends`` are further tokens that end
    a turn, such as the tokenizer's eos."""

    def __init__(self, tokenizer: Any, ends: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.start, self.channel, self.message, self.end, self.return_, self.call, self.constrain = (
            tokenizer.convert_tokens_to_ids(text) for text in _TOKENS
        )
        ends = [self.return_, self.call, *(i for i in ends if i != self.end)]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(ends))
        """Tokens that end a turn."""
        self.closing = (_END, _CALL)
        """Texts of the tokens that end a message in a history."""

    def turn(self, completion: list[int]) -> list[int]:
        """The sampled ids up to the token that ends the turn; ``<|call|>`` is part of the call that it ends."""
        end = next((n for n, i in enumerate(completion) if i in self.stop_token_ids), len(completion))
        return completion[: end + (completion[end : end + 1] == [self.call])]

    def parse(
        self, ids: list[int], prompt: list[int], tools: Sequence[Message], ended: bool = True
    ) -> Parsed:
        """See `Answers`. An answer in which no message can be read becomes its text."""
        turn = self.turn(ids)
        try:
            parsed, thoughts = self._parsed(turn, prompt)
        except Exception:  # deep nesting, numbers of thousands of digits, …
            # From that message on, all is text.
            starts = [n for n, i in enumerate(turn) if i == self.start]
            readable = bisect_left(starts, True, key=lambda start: not self._readable(turn[:start], prompt))
            if not readable:
                return Parsed(self.decode(turn), counts={_MALFORMED: 1})
            read = self.parse(turn[: starts[readable - 1]], prompt, tools)
            content = read.content + self.decode(turn[starts[readable - 1] :])
            return replace(read, content=content, counts={**read.counts, _MALFORMED: 1})
        offered = Tools(tools).schemas
        good = [c for c in parsed.tool_calls if c.status == "ok" and isinstance(c.name, str) and c.name]
        calls = [c for c in good if c.name in offered]
        called = set(map(id, calls))
        rest = [c for c in parsed.tool_calls if id(c) not in called]
        counts = {
            _MALFORMED: len(parsed.tool_calls) - len(good),
            "unoffered_tool_calls": len(good) - len(calls),
            "cut_thoughts": int(0 < thoughts == len(turn) and turn[-1] != self.end),
        }
        reasoning = (parsed.reasoning_content or "").strip() or None
        between = _MESSAGES.sub("", self.decode([*self._begun(prompt), *turn]))
        said = [*(c.raw for c in rest), _MARKERS.sub("", between).strip()]
        return Parsed(
            parsed.content + "".join(text for text in said if text not in parsed.content),
            reasoning,
            tuple((c.name, json.dumps(c.arguments, ensure_ascii=False)) for c in calls),
            ("",) * len(calls),
            thoughts if reasoning else 0,
            {name: count for name, count in counts.items() if count},
        )

    def _readable(self, turn: list[int], prompt: list[int]) -> bool:
        try:
            self._parsed(turn, prompt)
        except Exception:
            return False
        return True

    def _parsed(self, turn: list[int], prompt: list[int]) -> tuple[Any, int]:
        """A turn as the library parses it, and how many of its ids are reasoning."""
        from renderers.parsing import parse_gpt_oss

        begun = self._begun(prompt)
        parsed = parse_gpt_oss(
            self.tokenizer,
            [*begun, *turn],
            return_id=self.return_,
            call_id=self.call,
            start_id=self.start,
            end_id=self.end,
            channel_id=self.channel,
            message_id=self.message,
            constrain_id=self.constrain,
        )
        if not (parsed.content or parsed.reasoning_content or parsed.tool_calls):
            parsed.content = self.decode([i for i in turn if i != self.call])
        return parsed, self._thoughts_end(turn, begun)

    def reader(self, prompt: list[int], tools: Sequence[Message]) -> HarmonyReader:
        """See `Answers`."""
        return HarmonyReader(self, self._begun(prompt))

    def channel_of(self, header: list[int]) -> str:
        """The channel of a message with this header; empty for a tool call and for an unknown channel."""
        recipient = _RECIPIENT.search(self.decode(header))
        if self.channel not in header or (recipient and recipient[1].startswith("functions.")):
            return ""
        name = self.decode(header[header.index(self.channel) + 1 :]).split()
        return name[0] if name and name[0] in _KINDS else ""

    def decode(self, ids: list[int]) -> str:
        """The text of some ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False)) if ids else ""

    def _begun(self, prompt: list[int]) -> list[int]:
        """The header that a prompt has begun."""
        if self.start not in prompt:
            return [self.start]
        header = prompt[len(prompt) - 1 - prompt[::-1].index(self.start) :]
        return header[: header.index(self.message) + 1] if self.message in header else header

    def _thoughts_end(self, turn: list[int], begun: list[int]) -> int:
        """How many ids of the turn there are up to the end of the last reasoning, including its end token."""
        position, end = _Position(self, begun), 0
        for n, token in enumerate(turn, 1):
            before = position.channel
            position.go_on(token)
            if "analysis" in (before, position.channel):
                end = n
        return end


class _Position:
    """The state of a turn before its next token. It counts the same tokens as text as the library's parser."""

    def __init__(self, harmony: Harmony, begun: list[int]) -> None:
        self._harmony = harmony
        self._header: list[int] | None = None
        """The header's ids so far, while in a header."""
        self.in_text = False
        """Whether in a message, after its header."""
        self.channel = ""
        """The channel of that message, see `Harmony.channel_of`."""
        for token in begun:
            self.go_on(token)

    def go_on(self, token: int) -> bool:
        """Take one more token; return whether it is text of a message."""
        harmony = self._harmony
        if self._header is not None:
            if token == harmony.message:
                self.in_text, self.channel, self._header = True, harmony.channel_of(self._header), None
            else:
                self._header.append(token)
            return False
        if token == harmony.start or (self.in_text and token in (harmony.end, harmony.call)):
            self.in_text, self.channel = False, ""
            self._header = [] if token == harmony.start else None
            return False
        return self.in_text


class HarmonyReader:
    """Reads one answer, token by token; see `ajet.chat.streaming`.

    Reasoning comes before the content, so text next to tool calls is emitted when the answer begins. From a
    message that is neither on, no text is final: it may be a tool call that cannot be read.
    """

    def __init__(self, harmony: Harmony, begun: list[int]) -> None:
        self._harmony = harmony
        self._position = _Position(harmony, begun)
        self._decoder = Decoder(harmony.tokenizer)
        self._trims: dict[Kind, Trim] = {"reasoning": Trim(None, True), "content": Trim(None, True)}
        self._beside = ""
        """Content that was not emitted yet."""
        self._holds = False

    def read(self, token: int) -> Iterator[Text]:
        """The text that has become final with one more token."""
        channel = self._position.channel
        is_text = self._position.go_on(token)
        self._holds |= token in self._harmony.stop_token_ids
        self._holds |= self._position.in_text and not self._position.channel
        if self._holds or not channel:
            return
        kind = _KINDS[channel]
        text = self._trims[kind].add(self._decoder.add(token) if is_text else self._decoder.rest())
        if not is_text:
            self._decoder = Decoder(self._harmony.tokenizer)
        if kind == "content":
            text, self._beside = self._beside + text, ""
        if channel == "commentary":
            self._beside = text
        elif text:
            yield kind, text
