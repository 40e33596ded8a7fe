"""A model's chat format in words: tool calls, thoughts, stop tokens, and which conversations break."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ajet.chat.answers import Parsed
from ajet.chat.renderer import TAIL, Chat, Turn
from ajet.chat.tool_prompt import KEY, has_tool_prompt
from ajet.tracker.breaks import CAUSES
from ajet.types import AjetError

_GIVEN = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
)
"""What every chat template gets."""
_GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
"""transformers' own tags, which Jinja does not know."""
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up a word.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "The word."}},
            "required": ["word"],
        },
    },
}
_HELLO = {"role": "user", "content": "Hello."}
_HIDDEN = "no: the chat template does not write them; rollout.tool_prompt: hermes does"


@dataclass(frozen=True, slots=True)
class ExampleConversation:
    """A conversation that agents have: the first question, then what is said at each turn."""

    what: str
    answer: dict[str, Any]
    """What the model answers at each turn."""
    next: dict[str, Any]
    """The message after each answer."""
    tools: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class BrokenConversation:
    """A kind of conversation in which a prompt does not continue the one before."""

    what: str
    cause: str
    """One of the tracker's causes, or the chat template's refusal."""
    setting: str
    """The setting of a job that avoids it; empty if none was found."""

    def __str__(self) -> str:
        if self.cause not in CAUSES:
            return f"{self.what}: {self.cause}"
        return f"{self.what} would break ({self.cause}): {self.setting or 'no setting'} avoids it"


@dataclass(frozen=True, slots=True)
class ChatFormatReport:
    """What is known of a model's chat format."""

    calls: str
    """How tool calls are read."""
    fault: str
    """Why requests with tools are refused, and what helps; empty if they are not."""
    unread: tuple[str, ...]
    """Kinds of calls that the chat template writes so that they cannot be read back."""
    shows_tools: bool
    """Whether prompts contain the tools of a request."""
    thoughts: str
    """The markers around reasoning; empty if there are none."""
    stops: tuple[str, ...]
    """The texts of the tokens that end an answer."""
    broken: tuple[BrokenConversation, ...]

    def lines(self) -> list[str]:
        """The essential, to read before anything is run."""
        thoughts, stops = self.thoughts or "none", ", ".join(self.stops)
        lines = [self.fault or f"tool calls: {self.calls}; thoughts: {thoughts}; stops: {stops}"]
        if self.unread:
            lines.append(
                f"not read back as the chat template writes them: calls with {', '.join(self.unread)}"
            )
        return [*lines, *map(str, self.broken)]

    def rows(self) -> list[tuple[str, str]]:
        """All of it, as the rows of a table."""
        broken = [("breaks", str(broken)) for broken in self.broken]
        return [
            ("tool calls", f"refused: {self.fault}" if self.fault else self.calls),
            *[("not read back", f"calls with {', '.join(self.unread)}") for _ in self.unread[:1]],
            ("tools in prompts", "yes" if self.shows_tools else _HIDDEN),
            ("thoughts", self.thoughts or "none"),
            ("stop tokens", ", ".join(self.stops)),
            *(broken or [("breaks", "none")]),
        ]


def describe(chat: Chat) -> ChatFormatReport:
    """What is known of a model's chat format. Renders a few short chats."""
    calls = chat.found
    if has_tool_prompt(chat.tokenizer):
        calls = replace(calls, source=f"{KEY}, which also shows the tools")
    has_none = not (chat.found.reader or chat.found.source or chat.calls_fault)
    return ChatFormatReport(
        calls="none, the chat template has no tools" if has_none else str(calls),
        fault=chat.calls_fault,
        unread=chat.found.unread,
        shows_tools=chat.shows_tools,
        thoughts=" … ".join(chat.shape.thoughts or ()),
        stops=tuple(map(chat.text_of, chat.stop_token_ids)),
        broken=tuple(
            BrokenConversation(told.what, cause, _remedy(chat, told))
            for told in _conversations(chat)
            if (cause := _break(chat, told))
        ),
    )


def _conversations(chat: Chat) -> Iterator[ExampleConversation]:
    """Conversations as the model has them: without thoughts, unless its prompt begins one; with them, unless it ends them."""
    begun, ended = map(chat.shape.header.rfind, chat.shape.thoughts or ("\0", "\0"))
    said = {"role": "assistant", "content": "Hello to you."}
    thought = {"reasoning_content": "It is short."}
    thinks = begun > ended or bool(_read(chat, said | thought).reasoning)
    asked = {"role": "user", "content": "And then?"}
    if begun <= ended:
        yield ExampleConversation("chats", said, asked)
    if thinks:
        yield ExampleConversation("chats with thoughts", said | thought, asked)
    for number in ("functions.look_up:0", "call00001"):  # the id of Kimi's models names the tool
        function = {"name": "look_up", "arguments": '{"word": "mole"}'}
        call = {
            **said,
            "content": "",
            "tool_calls": [{"id": number, "type": "function", "function": function}],
        }
        if chat.shows_tools and _read(chat, call).tool_calls:
            result = {"role": "tool", "tool_call_id": number, "name": "look_up", "content": "It digs."}
            what = "tool loops with thoughts" if thinks else "tool loops"
            yield ExampleConversation(what, call | thought if thinks else call, result, [_TOOL])
            return


def _read(chat: Chat, answer: dict[str, Any]) -> Parsed:
    """How an answer is read; empty if the chat template does not tell how the model writes it."""
    try:
        return chat.parse(_ids(chat, answer), chat.begin([_HELLO], [_TOOL])[0][-TAIL:].tolist(), [_TOOL])
    except AjetError:
        return Parsed("")


def _ids(chat: Chat, answer: dict[str, Any]) -> list[int]:
    """What the model samples to say this. Raises AjetError if the chat template does not tell."""
    said: list[int] = chat.tokenizer.encode(chat.written(answer), add_special_tokens=False)
    stops = chat.stop_token_ids
    return said if said and said[-1] in stops else [*said, *stops[:1]]


def _break(chat: Chat, told: ExampleConversation, *, by_text: bool = False) -> str:
    """Why a prompt of a conversation does not continue the one before it; empty if all do."""
    messages: list[dict[str, Any]] = [_HELLO]
    for _ in range(2):
        try:
            prompt, rendered = chat.begin(messages, told.tools)
            said = _ids(chat, told.answer)
        except AjetError as error:
            return str(error)
        count = len(messages) + 2
        messages = [*messages, told.answer, told.next]
        turn = Turn(
            prompt[-64:].tolist(), said, told.answer, [told.next], count, list(messages).copy, rendered
        )
        increment = chat.next_turn(turn, told.tools, keep_thinking=by_text)
        if increment.ids is None:
            return increment.cause
    return ""


def _remedy(chat: Chat, told: ExampleConversation) -> str:
    """The first setting with which a conversation does not break; empty if there is none. Variables that change how an answer
    begins are left out: they turn thoughts on or off."""
    for name in _variables(chat.tokenizer):
        for value in (True, False):
            try:
                other = chat.with_variables({name: value})
            except AjetError:
                continue
            if other.shape.header == chat.shape.header and not _break(other, told):
                return f"rollout.chat_template: {{{name}: {str(value).lower()}}}"
    return "" if _break(chat, told, by_text=True) else "rollout.merge: text"


def _variables(tokenizer: Any) -> list[str]:
    """Variables that a tokenizer's chat template reads and a user can set."""
    from jinja2 import Environment, TemplateError, meta, nodes

    source = _GENERATION.sub("", str(tokenizer.chat_template))
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(source)
    except TemplateError:
        return []
    uses = [
        *tree.find_all(nodes.Test),
        *(used for used in tree.find_all(nodes.Filter) if used.name == "default"),
    ]
    optional = {use.node.name for use in uses if isinstance(use.node, nodes.Name)}
    assigned = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    given = _GIVEN | tokenizer.special_tokens_map.keys()
    return sorted(meta.find_undeclared_variables(tree) - given - (assigned - optional))
