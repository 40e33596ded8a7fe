"""A model's own chat template: chats to text, text to tokens, and what follows an answer.

A template is an opaque program from text to text. Its properties are found by rendering stub chats with
marks that no real chat contains (Unicode noncharacters): how it ends an assistant's turn, what it writes
after an answer, whether it changes what it wrote before. Special tokens count only where the template
wrote them; in messages they are plain text, so that a message cannot forge a turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from ajet.chat.messages import images_of
from ajet.types import AjetError, ConfigError
from ajet.utils.suggest import nearest

if TYPE_CHECKING:
    from ajet.chat.vision import Vision

Message = Mapping[str, Any]

_LITERAL, _SAID, _THOUGHT, _ASKED = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
"""Marks: a special token's text in a message, and in stubs the answer, its reasoning, the question."""
_IMAGE = "\ufdd4"
"""The mark around the reference of an image, directly after the text with which the template marks images."""
_REF = re.compile(f"{_IMAGE}(sha256:[0-9a-f]{{64}}){_IMAGE}")
_FIRST = 0xF0000
"""Private-use characters after `_LITERAL` number the texts that it replaces."""
_HIDDEN = re.compile(f"{_LITERAL}[\U000f0000-\U000ffffd]")
_OPENED = re.compile(r"<think>\s*\Z")
_CLOCK = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1""")
_SET_BY_US = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables that every template gets."""
_SHORT, _MANY_SHORT = 256, 1024
"""Characters of texts whose ids are kept, and how many are: the episodes of a group often get the same answers from tools."""
_ANCHORS = ("\n", "a", ".")
"""Texts after which tokenizers add no prefix space of their own."""

STUB_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probe.",
        "parameters": {"type": "object", "properties": {"n": {"type": "number"}}},
    },
}
STUB_CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call00001", "type": "function", "function": {"name": "probe", "arguments": {"n": 1}}}
    ],
}
STUB_RESULT: dict[str, Any] = {
    "role": "tool",
    "tool_call_id": "call00001",
    "name": "probe",
    "content": "2",
}
_QUESTION = {"role": "user", "content": _ASKED}


def given(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates and renderers expect them: tool arguments as objects, no lone surrogates."""
    return [_with_objects(_encodable(message)) for message in messages]


def plain_copy(tokenizer: Any) -> Any:
    """A copy of a tokenizer to which special tokens are plain text."""
    copy = deepcopy(tokenizer)
    copy.split_special_tokens = True
    return copy


def check_variables(tokenizer: Any, variables: Mapping[str, Any]) -> None:
    """Raise ConfigError for a variable that a tokenizer's chat template does not mention, or that AgentJet sets itself."""
    source = tokenizer.chat_template
    if not isinstance(source, str):
        raise ConfigError(
            "rollout.chat_template: the model's tokenizer has no chat template, or several; remove the key."
        )
    mentioned = set(re.findall(r"[A-Za-z_]\w*", source)) - _SET_BY_US
    for name in variables:
        if name not in mentioned:
            raise ConfigError(
                f"rollout.chat_template.{name}: the model's chat template does not read this variable{nearest(name, mentioned)}. "
                "Correct its name, or remove it."
            )


# --------------------------------------------------------------------------- text to tokens


class Encoder:
    """Encodes rendered chats. ``control`` are the tokens that structure a chat: they count where the template
    wrote them; in values that `hide` has processed they are plain text."""

    def __init__(
        self, tokenizer: Any, plain: Any, control: Sequence[str], vision: Vision | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self._vision = vision
        self.ids: dict[str, int] = {t: tokenizer.convert_tokens_to_ids(t) for t in control}
        longest_first = sorted(control, key=len, reverse=True)
        self.control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._plain = plain
        self._head: Any = cache(lambda encode, anchor: encode(anchor))
        self._short: Any = lru_cache(_MANY_SHORT)(
            lambda text: tuple(self.tokenizer.encode(text, add_special_tokens=False))
        )
        unknown = getattr(tokenizer, "unk_token_id", None)
        self._forbidden = frozenset(self.ids.values()) - {unknown}
        self._texts = [*longest_first, _LITERAL, _SAID, _THOUGHT, _ASKED, _IMAGE]
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._hides = re.compile("|".join(map(re.escape, self._texts)))
        token = next((t for t, i in self.ids.items() if i in self._forbidden), "")
        self._same_after_control = self._encode(f"{token}a")[1:] == self._encode("a")

    def hide(self, value: Any) -> Any:
        """A copy of a message or tool in which marks replace the texts of control tokens."""
        if isinstance(value, str):
            return self._hides.sub(lambda m: _LITERAL + chr(_FIRST + self._numbers[m[0]]), value)
        if isinstance(value, Mapping):
            return {self.hide(k): self.hide(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(v) for v in value]
        return value

    def show(self, text: str) -> str:
        """Rendered text with the marks replaced by their texts."""
        text = _REF.sub(lambda m: f"[{m[1][7:15]}]", text) if _IMAGE in text else text
        return _HIDDEN.sub(lambda m: self._texts[ord(m[0][1]) - _FIRST], text)

    def encode(self, text: str, *, inside: bool = False) -> list[int]:
        """Ids of rendered text; ``inside``: the text is in the middle of a chat, not at its beginning."""
        if _IMAGE in text and self._vision:
            return self._with_images(text, self._vision, inside)
        if _LITERAL not in text:
            middle = inside and not self.control.match(text)
            ids = self._middle(self._encode, text) if middle else self._encode(text)
            written = sum(self.ids[t] in self._forbidden for t in self.control.findall(text))
            # More than were written: the tokenizer's normaliser has turned other text into some.
            if sum(map(ids.count, self._forbidden.intersection(ids))) == written:
                return ids
        found: list[int] = []
        end = 0
        for token in self.control.finditer(text):
            found += self._segment(text[end : token.start()], inside or end > 0, end > 0)
            found.append(self.ids[token[0]])
            end = token.end()
        return found + self._segment(text[end:], inside or end > 0, end > 0)

    def _with_images(self, text: str, vision: Vision, inside: bool) -> list[int]:
        """Ids of text with images, whose own ids begin and end with added tokens."""
        first, *others = _REF.split(text)
        ids = self.encode(first.removesuffix(vision.token), inside=inside)
        for ref, after in zip(others[::2], others[1::2], strict=True):
            ids += vision.ids(ref)
            ids += self.encode(after.removesuffix(vision.token), inside=not self._same_after_control)
        return ids

    def plain(self, text: str) -> list[int]:
        """Ids of text in the middle of a chat, without any special token."""
        return self._safe(_encodable(text), middle=True)

    def _segment(self, text: str, inside: bool, after_control: bool) -> list[int]:
        """Ids of the text between two control tokens that the template wrote."""
        return self._safe(self.show(text), middle=inside and not (after_control and self._same_after_control))

    def _safe(self, text: str, middle: bool) -> list[int]:
        ids = self._middle(self._split, text) if middle else self._split(text)
        if self._forbidden.isdisjoint(ids):
            return ids
        # Tokens that only the template makes special: split their texts.
        literals, (first, *others) = self.control.findall(text), self.control.split(text)
        words = [first, *(w for t, other in zip(literals, others, strict=True) for w in (*t, other))]
        ids = [i for word in words if word for i in self._middle(self._split, word)]
        if not self._forbidden.isdisjoint(ids):
            raise AjetError(
                f"the text {text[:80]!r} would become a special token of the chat format; leave it out"
            )
        return ids

    def _middle(self, encode: Any, text: str) -> list[int]:
        for anchor in _ANCHORS:
            head, ids = self._head(encode, anchor), encode(anchor + text)
            if ids[: len(head)] == head:
                return list(ids[len(head) :])
        return list(encode(text))

    def _encode(self, text: str) -> list[int]:
        if len(text) > _SHORT:
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        return list(self._short(text)) if text else []

    def _split(self, text: str) -> list[int]:
        return list(self._plain.encode(text, add_special_tokens=False)) if text else []


def _encodable(value: Any) -> Any:
    """A copy without lone surrogates, which no tokenizer accepts."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, Mapping):
        return {_encodable(k): _encodable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(v) for v in value]
    return value


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    for call in message.get("tool_calls") or ():
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            function["arguments"] = _object(function["arguments"])
    return message


def _with_thinking(message: Message) -> dict[str, Any]:
    """A message whose reasoning has both names that templates use: gpt-oss calls it ``thinking``."""
    reasoning = message.get("reasoning_content")
    return {"thinking": reasoning, **message} if reasoning else dict(message)


def _object(arguments: str) -> Any:
    """The JSON object in the text, or the text if it is not one."""
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


# --------------------------------------------------------------------------- chats to text


@dataclass(frozen=True, slots=True)
class Ending:
    """What a template writes after an assistant's text."""

    text: str = ""
    """The part that belongs to the turn: it is written whether or not another message follows."""
    closing: str = ""
    """The part of ``turn`` before the special token that ends the turn."""
    token: str = ""
    """That token; empty if the turn has none of its own."""
    last: str = ""
    """The token used instead if no other message follows: Harmony writes ``<|return|>`` there."""
    header: str = ""
    """If it has none: the special token with which the next message begins."""


class Template:
    """The chat template of a tokenizer; ``plain`` is a `plain_copy` of the tokenizer, ``options`` are variables for
    the template. With ``vision`` it renders images."""

    def __init__(
        self,
        tokenizer: Any,
        plain: Any,
        options: Mapping[str, Any] | None = None,
        vision: Vision | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._vision = vision
        self._options = dict(options or {})
        self._last_tools: tuple[Sequence[Message], list[Message]] = (), []
        self._clock_forms = [form for _, form in _CLOCK.findall(str(tokenizer.chat_template))]
        self._only_parts = False
        self._only_parts = self._needs_parts()
        self.encoder = Encoder(tokenizer, plain, self._control_tokens(), vision)
        self._arguments_as_text = self._needs_text()
        self._text_or_thoughts = False
        self._text_or_thoughts = self._takes_text_or_thoughts()
        said = {"role": "assistant", "content": _SAID}
        self.ending = self._probe(said, {"role": "user", "content": "b"}) or Ending()
        self.call_ending = self._probe(self._calling(STUB_CALL), STUB_RESULT, [STUB_TOOL], self.ending)
        self.thinks = self._knows_thoughts()

    def stop_token_ids(self) -> list[int]:
        """Tokens that end an answer: what the template writes after the last one, then the tokenizer's eos."""
        endings = [e for e in (self.ending, self.call_ending) if e]
        texts = [*(e.last or e.token for e in endings), *(e.header for e in endings)]
        eos = getattr(self.tokenizer, "eos_token_id", None)
        all_eos = eos if isinstance(eos, list | tuple) else [eos]
        ids = [*(self.encoder.ids[t] for t in texts if t), *(i for i in all_eos if i is not None)]
        return list(dict.fromkeys(ids))

    def text(self, messages: Sequence[Message], tools: Sequence[Message], *, generate: bool = True) -> str:
        """A chat as text, up to where the assistant begins; marks replace special tokens' texts in messages.
        Raises AjetError if the template refuses the chat."""
        return self._apply(self.prepared(messages), self.hidden(tools), generate)

    def prepared(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages in the form that the template gets, with marks for special tokens' texts."""
        prepared: list[dict[str, Any]] = self.encoder.hide(self._given(messages))
        return prepared

    def hidden(self, tools: Sequence[Message]) -> list[Message]:
        """Tools in the form that the template gets. The same ones as the last time are not prepared again."""
        last, hidden = self._last_tools
        if tools is not last:
            hidden = self.encoder.hide(_encodable(tools))
            self._last_tools = tools, hidden
        return list(hidden)

    @property
    def source(self) -> str:
        """The template itself; empty if the tokenizer chooses among several."""
        template = self.tokenizer.chat_template
        return template if isinstance(template, str) else ""

    def times(self) -> tuple[str, ...]:
        """The times that the template writes, in the formats that its source contains."""
        now = datetime.now()
        return tuple(now.strftime(form) for form in self._clock_forms)

    def constants(self) -> dict[str, Any]:
        """Variables that the template gets with every chat."""
        return {
            **self.tokenizer.special_tokens_map,
            **self._options,
            "documents": None,
            "add_generation_prompt": True,
        }

    def of_messages(self, source: str, messages: Sequence[Message]) -> str:
        """What another template writes for messages. Raises AjetError if it refuses them."""
        return self._apply(messages, (), False, chat_template=source)

    def render(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[int]:
        """A chat as ids. Raises AjetError if the template refuses it."""
        return self.encoder.encode(self.text(messages, tools))

    def prefill(self, messages: Sequence[Message], tools: Sequence[Message]) -> tuple[str, str]:
        """How the prompt for the messages before the last one ends, and what replaces that end if the answer continues
        the last message, as transformers' ``continue_final_message`` writes it. Raises AjetError if the template
        refuses the chat or does not write all of that message."""
        *before, last = messages
        usual = self.text(before, tools)
        hide = self.encoder.hide
        hidden = hide(self._given(messages))
        try:
            begun = self._apply(hidden, hide(_encodable(tools)), False, continue_final_message=True)
        except AjetError:
            begun = ""
        at = _last_control(usual, begun, self.encoder.control)
        written = [hidden[-1].get("content"), hidden[-1].get("reasoning_content")]
        if not begun or not all(text.strip() in begun[at:] for text in written if text):
            raise AjetError(
                "the chat ends with an assistant message for the answer to continue, but the chat template does not "
                f"write {'its reasoning and' if last.get('reasoning_content') else ''} its content there. Leave that out, or "
                "end the chat with a user message."
            )
        return usual[at:], begun[at:]

    def only_last(self) -> frozenset[int]:
        """Tokens that the template writes only after the last answer of a chat, and others after earlier answers; a
        prompt never contains them."""
        endings = [e for e in (self.ending, self.call_ending) if e]
        written = {e.token for e in endings}
        return frozenset(self.encoder.ids[e.last] for e in endings if e.last and e.last not in written)

    def written(self, answer: Message) -> str:
        """What a model writes to say ``answer``: its text without the end of the turn, unless that end differs from
        a plain answer's. Raises AjetError if the template refuses it."""
        ending = (self.call_ending if answer.get("tool_calls") else None) or self.ending
        after = STUB_RESULT if answer.get("tool_calls") else {"role": "user", "content": "b"}
        # Some templates write empty reasoning before a last answer, and none before an earlier one.
        followed = bool(ending.token) and not answer.get("reasoning_content")
        before = self.text([_QUESTION], ())
        text = self.text([_QUESTION, answer, after] if followed else [_QUESTION, answer], (), generate=False)
        begun = ""
        if not text.startswith(before):
            before, begun = _OPENED.sub("", before), "\n</think>\n\n"  # the prompt opens the reasoning
            if not text.startswith(before):
                raise AjetError("the chat template does not begin an answer as it begins a prompt")
        text = text[len(before) :]
        token = ending.token if followed else ending.last or ending.token
        end = (text.find(token) if followed else text.rfind(token)) if token else -1
        own = token if token not in (self.ending.token, self.ending.last) else ""
        said = text[:end] + own if end >= 0 else text.removesuffix(self.ending.text)
        return begun + self.encoder.show(said)

    def _calling(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A copy whose last tool call has a mark as its argument."""
        *calls, last = message["tool_calls"]
        function = {**last["function"], "arguments": {"value": _SAID}}
        return self._given([{**message, "tool_calls": [*calls, {**last, "function": function}]}])[0]

    def _given(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        messages = self._in_parts(given(messages))
        for calling in (m for m in messages if self._text_or_thoughts and m.get("tool_calls")):
            said = [calling.get("reasoning_content"), calling.get("content")]
            if all(said):
                calling |= {"reasoning_content": "\n\n".join(map(str, said)), "content": ""}
        if self._arguments_as_text:
            for function in (c["function"] for m in messages for c in m.get("tool_calls") or ()):
                if isinstance(function.get("arguments"), dict):
                    function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        return messages

    def _apply(
        self, messages: Sequence[Message], tools: Sequence[Message], generate: bool, **options: Any
    ) -> str:
        try:
            text = str(
                self.tokenizer.apply_chat_template(
                    [_with_thinking(message) for message in self._in_parts(messages)],
                    tools=list(tools) or None,
                    tokenize=False,
                    add_generation_prompt=generate,
                    **self._options | options,
                )
            )
        except Exception as error:  # the template is foreign code
            raise refusal(error) from error
        return self.marked(text, messages)

    def marked(self, text: str, messages: Sequence[Message]) -> str:
        """What the template wrote for ``messages``, with the reference of each image after the text that marks it, so that texts of
        different images differ. Raises AjetError if the template does not write every image of the chat."""
        refs = [ref for message in messages for ref in images_of(message)]
        if not refs:
            return text
        if self._vision is None:
            raise AjetError("the model has no vision, so the chat's images cannot be rendered")
        first, *others = text.split(self._vision.token)
        if len(others) != len(refs):
            raise AjetError(
                f"the chat template writes {len(others)} of the chat's {len(refs)} images. Send images in messages of the roles that "
                "it supports, such as user."
            )
        marks = (
            f"{self._vision.token}{_IMAGE}{ref}{_IMAGE}{after}"
            for ref, after in zip(refs, others, strict=True)
        )
        return first + "".join(marks)

    def _in_parts(self, messages: Sequence[Message]) -> list[Any]:
        """Messages whose content is a list, for templates that read only lists."""
        if not self._only_parts:
            return list(messages)
        return [
            {**m, "content": [{"type": "text", "text": m["content"]}] if m["content"] else []}
            if isinstance(m.get("content"), str)
            else m
            for m in messages
        ]

    def _needs_parts(self) -> bool:
        """Whether the template writes a content that is a list of parts, but not one that is a text."""
        listed = {"role": "user", "content": [{"type": "text", "text": _ASKED}]}
        found = []
        for message in (_QUESTION, listed):
            try:
                found.append(_ASKED in self._apply([message], (), True))
            except AjetError:
                found.append(False)
        return found == [False, True]

    # ---------------------------------------------------------------- what probing the template shows

    def _control_tokens(self) -> list[str]:
        """Special tokens, and added tokens with which the template separates messages."""
        added = {str(t.content): bool(t.special) for t in self.tokenizer.added_tokens_decoder.values()}
        special = {t for t, is_special in added.items() if is_special} | set(
            self.tokenizer.all_special_tokens
        )
        chat = [_QUESTION, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
        try:
            shown = self._apply(chat, (), False)
        except AjetError:
            shown = ""
        return sorted(special | {t for t in added if t in shown and not t.isspace()})

    def _probe(
        self,
        assistant: Message,
        after: Message,
        tools: Sequence[Message] = (),
        of_text: Ending | None = None,
    ) -> Ending | None:
        """What the template writes after ``assistant``. ``of_text``: what it writes after a plain answer, if this
        one calls a tool."""
        try:
            followed = _after(_SAID, self._apply([_QUESTION, assistant, after], tools, True))
        except AjetError:
            return None
        try:
            alone = _after(_SAID, self._apply([_QUESTION, assistant], tools, False))
        except AjetError:
            alone = followed
        control = self.encoder.control
        text = _common_prefix(followed, alone, control)
        earlier, last = control.match(followed, len(text)), control.match(alone, len(text))
        if of_text is None and earlier and last and not alone[last.end() :].strip():
            return Ending(text + earlier[0], text, earlier[0], last[0])
        tokens = list(control.finditer(text))
        if of_text is None:
            token = tokens[0] if tokens else None
        elif of_text.token and tokens:
            token = next((t for t in tokens if t[0] == of_text.token), tokens[-1])
        else:
            token = None
        if token:
            return Ending(text, text[: token.start()], token[0])
        space = len(followed[len(text) :]) - len(followed[len(text) :].lstrip())
        header = control.match(followed, len(text) + space)
        closing = text.removesuffix(of_text.text) if of_text else ""
        return Ending(text, closing, header=header[0] if header else "")

    def _needs_text(self) -> bool:
        """Whether the template can write tool arguments only as JSON text."""
        try:
            return "{'n': 1}" in self._apply([_QUESTION, STUB_CALL], [STUB_TOOL], False)
        except AjetError:
            return True

    def _takes_text_or_thoughts(self) -> bool:
        """Whether the template refuses a message that calls a tool and has text and reasoning, but not one that has
        only reasoning. The template of gpt-oss writes either as reasoning, so they are joined."""

        def refuses(text: str) -> bool:
            calling = {**STUB_CALL, "reasoning_content": _THOUGHT, "content": text}
            try:
                self._apply([_QUESTION, *self._given([calling]), STUB_RESULT], [STUB_TOOL], True)
            except AjetError:
                return True
            return False

        return refuses("a") and not refuses("")

    def _knows_thoughts(self) -> bool:
        said = f"<think>\n{_THOUGHT}\n</think>\n\n{_SAID}"
        try:
            if _OPENED.search(self._apply([_QUESTION], (), True)):
                return True
            apart = {"role": "assistant", "content": _SAID, "reasoning_content": _THOUGHT}
            before, found, _ = self._apply([_QUESTION, apart], (), False).partition(_THOUGHT)
            if found and _OPENED.search(before):
                return True
            inline = [_QUESTION, {"role": "assistant", "content": said}, {"role": "user", "content": "b"}]
            text = self._apply(inline, (), True)
        except AjetError:
            return False
        return _SAID in text and _THOUGHT not in text

    def call_parser(self) -> Any:
        """The parser of `renderers` that reads a tool call as this template writes it, or None."""
        from renderers.parsers import TOOL_PARSERS

        try:
            call = self._given([STUB_CALL])
            text = self._apply([_QUESTION, *call], [STUB_TOOL], False).partition(_ASKED)[2]
            ids = self.encoder.encode(text, inside=True)
        except AjetError:
            return None
        for make in TOOL_PARSERS.values():
            parser = make(self.tokenizer)
            found = [(c.name, c.arguments) for c in parser.extract(ids)[1]]
            if found == [("probe", {"n": 1})]:
                return parser
        return None


def refusal(error: Exception) -> AjetError:
    """The error for a chat that cannot be rendered."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return AjetError(f"the chat template refuses this chat: {reason}")


def _after(mark: str, text: str) -> str:
    if text.count(mark) != 1:
        raise AjetError("the chat template changes the text of an answer")
    return text.partition(mark)[2]


def _common_prefix(one: str, two: str, control: re.Pattern[str]) -> str:
    """The common prefix of both texts; it does not end within a control token of either."""
    same = (a == b for a, b in zip(one, two, strict=False))
    end = next((n for n, equal in enumerate(same) if not equal), min(len(one), len(two)))
    for text in (one, two):
        end = next((t.start() for t in control.finditer(text) if t.start() < end < t.end()), end)
    return one[:end]


def _last_control(one: str, two: str, control: re.Pattern[str]) -> int:
    """Where the last control token in the common prefix of both texts begins; without one, where they differ."""
    same = _common_prefix(one, two, control)
    return max((t.start() for t in control.finditer(same)), default=len(same))
