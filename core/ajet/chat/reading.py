"""Finds a model's reader of tool calls, and proves it on calls that are hard to read.

In this order: the user's example, what the chat template writes, the tokenizer's own response template, and the format that
a token of the vocabulary stands for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ajet.chat.bodies import NamedBody, PythonBody, ReadCall, Tools
from ajet.chat.calls import BareCalls, CallFormat, CallReader, Calls
from ajet.chat.derive import Underivable, Writer, from_example, from_template, unread
from ajet.chat.shape import AnswerShape
from ajet.types import AjetError, ConfigError

_BY_TOKEN = {
    "<|tool_call_begin|>": "<|tool_calls_section_begin|>"
    '<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{"KEY": "VALUE"}<|tool_call_end|>'
    '<|tool_call_begin|>functions.NAME:1<|tool_call_argument_begin|>{"KEY": "VALUE"}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
    "<｜tool▁call▁begin｜>": "<｜tool▁calls▁begin｜>"
    '<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{"KEY": "VALUE"}\n```<｜tool▁call▁end｜>\n'
    '<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{"KEY": "VALUE"}\n```<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜>",
    "<|tool_call_start|>": "<|tool_call_start|>[NAME(KEY='VALUE'), NAME(KEY='VALUE')]<|tool_call_end|>",
    "<|START_ACTION|>": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "NAME", "parameters": {"KEY": "VALUE"}},\n'
    '    {"tool_call_id": "1", "tool_name": "NAME", "parameters": {"KEY": "VALUE"}}\n]<|END_ACTION|>',
    "<|tool_call|>": '<|tool_call|>[{"name": "NAME", "arguments": {"KEY": "VALUE"}}, {"name": "NAME", "arguments": {"KEY": "VALUE"}}]',
    "<tool_call>": '<tool_call>\n{"name": "NAME", "arguments": {"KEY": "VALUE"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "NAME", "arguments": {"KEY": "VALUE"}}\n</tool_call>',
}
"""How models write calls whose chat template does not write any: by a token of their vocabulary."""
_AMBIGUOUS = ("<tool_call>", "<|START_ACTION|>")
"""Tokens that many vocabularies have whose models write calls otherwise: the chat template must show JSON after them."""
_JSON = r"""(?:\\n|[\s'"~+\[])*\{{1,2}(?:\\n|\s)*\\?["'](?:tool|function|\w*name|type)"""
_NEEDED = ("plain", "types", "nested", "no arguments")


@dataclass(frozen=True, slots=True)
class FoundReader:
    """What reads a model's tool calls, and how it was found."""

    reader: CallReader | None
    source: str = ""
    """Where the format comes from, in words for the user."""
    unread: tuple[str, ...] = ()
    """Cases of the battery that the chat template itself writes so that they cannot be read back."""
    tried: tuple[str, ...] = ()
    """What was tried before, and why it does not read this model's calls."""

    def __str__(self) -> str:
        return f"{self.reader.kind}, from {self.source}" if self.reader else self.source or "not read"


def find_reader(
    tokenizer: Any,
    write: Writer,
    shape: AnswerShape,
    control: re.Pattern[str],
    example: str,
    shows_tools: bool,
    parse: Callable[[CallReader, str, Sequence[Mapping[str, Any]]], Calls],
) -> FoundReader:
    """The reader of a model's calls. ``write`` writes calls as the chat template does, ``parse`` reads an answer with a
    reader. Raises ConfigError for an example from which no reader can be derived."""
    if example:
        try:
            reader = from_example(example, control)
        except AjetError as error:
            raise ConfigError(
                "rollout.call_example",
                f"{error}. Write one call as the model writes it, with NAME, KEY and VALUE in the places of the tool's "
                "name, an argument's name and its text.",
            ) from None
        failed = unread(lambda text, tools: reader.read(text, Tools(tools)), reader.write, ())
        if failed:
            raise ConfigError(
                "rollout.call_example",
                f"calls like this one cannot all be read back ({', '.join(failed)}). Correct the example.",
            )
        return FoundReader(reader, "rollout.call_example")
    tried, writes = [], False
    try:
        reader = from_template(write, shape.header, control)
        return FoundReader(reader, "the chat template", _proved(reader, write, parse))
    except AjetError as error:
        tried.append(f"the chat template ({error})")
        writes = isinstance(error, Unread)
    if getattr(tokenizer, "response_template", None):
        reader = ByTokenizer(tokenizer, shape.unopened(shape.header))
        return FoundReader(reader, "the tokenizer's response template", tried=tuple(tried))
    tried.append("the tokenizer's response template (it has none)")
    vocabulary, source = tokenizer.get_vocab(), str(tokenizer.chat_template)
    for token, known in _BY_TOKEN.items():
        is_shown = re.search(re.escape(token) + _JSON, source) is not None
        is_sure = is_shown or not shows_tools or token not in _AMBIGUOUS
        if token in vocabulary and not writes and is_sure:
            reader = from_example(known, control)
            return FoundReader(reader, f"the format that the token {token} stands for", tried=tuple(tried))
    tried.append("formats of known tokens (none is in the vocabulary and shown in the chat template)")
    return FoundReader(None, tried=tuple(tried))


def _proved(
    reader: CallReader,
    write: Writer,
    parse: Callable[[CallReader, str, Sequence[Mapping[str, Any]]], Calls],
) -> tuple[str, ...]:
    """Cases that the template writes so that they cannot be read back. Raises Underivable for a reader that does not read
    what it writes itself, or not the plainest of what the template writes."""
    assert isinstance(reader, CallFormat | BareCalls)
    body, marks = reader.body, reader.begins
    own = unread(lambda text, tools: parse(reader, text, tools), reader.write, marks)
    in_id = isinstance(body, NamedBody) and body.in_id

    def by_template(calls: Sequence[ReadCall]) -> str:
        ids = [f"functions.{call.name}:{n}" if in_id else call.id for n, call in enumerate(calls)]
        return write([replace(call, id=i) for call, i in zip(calls, ids, strict=True)], "")

    theirs = unread(lambda text, tools: parse(reader, text, tools), by_template, marks)
    is_python = isinstance(body, PythonBody)  # templates write texts in them without quotes or escapes
    needed = ("plain",) if is_python else _NEEDED
    if own or set(theirs) & set(needed):
        raise Unread(f"calls cannot be read back: {', '.join(own or theirs)}")
    return tuple(theirs)


class Unread(Underivable):
    """The chat template writes calls that the derived reader does not read."""


class ByTokenizer:
    """Reads calls with transformers' `parse_response`, for tokenizers that bring a response template."""

    kind = "transformers' response template"
    begins = ("",)

    def __init__(self, tokenizer: Any, prompt: str) -> None:
        self._tokenizer, self._prompt = tokenizer, prompt

    def holds(self, text: str, first: bool, tools: Tools) -> int:
        """Nothing is known before the end of the answer."""
        return 0

    def read(self, text: str, tools: Tools, ended: bool = True) -> Calls:
        """See `CallReader`."""
        try:
            message = self._tokenizer.parse_response(text, prefix=self._prompt, tools=tools.offered)
            calls, unoffered = [], 0
            for call in message.get("tool_calls") or ():
                function = call.get("function") or call
                arguments = function.get("arguments")
                arguments = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
                if function.get("name") in tools.schemas and isinstance(arguments, dict):
                    calls.append(ReadCall(function["name"], arguments))
                else:
                    unoffered += 1
        except Exception:  # foreign code, on whatever was sampled
            return Calls(text, malformed=1)
        if not calls:
            return Calls(text, unoffered=unoffered)
        return Calls(message.get("content") or "", tuple(calls), unoffered=unoffered, begin=0)

    def write(self, calls: Sequence[ReadCall]) -> str:
        """Raises AjetError: the response template only reads."""
        raise AjetError("the tokenizer's response template cannot write calls")
