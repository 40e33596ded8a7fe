"""A model's own chat template: chats to text.

A template is an opaque program. How it wants messages is found by rendering stub chats: content as parts, arguments as
text, reasoning under another name, the content of a message that only calls tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ajet.chat.encoding import ASKED, IMAGE, SAID, THOUGHT, Encoder, encodable
from ajet.chat.messages import images_of
from ajet.chat.texts import common_start
from ajet.types import AjetError, ConfigError
from ajet.utils.suggest import nearest

if TYPE_CHECKING:
    from ajet.chat.jinja import ChatTemplate
    from ajet.chat.vision import Vision

Message = Mapping[str, Any]
Change = Callable[[dict[str, Any]], None]

_CLOCK = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1""")
_SET_BY_US = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables that every template gets."""

STUB_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probe.",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "number", "description": "A number."}},
            "required": ["n"],
        },
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
QUESTION = {"role": "user", "content": ASKED}
_PLAIN = [QUESTION, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


def given(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates and renderers expect them: tool arguments as objects, no lone surrogates."""
    return [_with_objects(encodable(message)) for message in messages]


def variables_of(source: Any) -> frozenset[str]:
    """The words of a template's source that may be variables which a user can set."""
    return (
        frozenset(re.findall(r"[A-Za-z_]\w*", source)) - _SET_BY_US
        if isinstance(source, str)
        else frozenset()
    )


def check_variables(
    tokenizer: Any, variables: Mapping[str, Any], where: str = "rollout.chat_template"
) -> None:
    """Raise ConfigError for a variable that a tokenizer's chat template does not mention, or that AgentJet sets itself."""
    source = tokenizer.chat_template
    if variables and not isinstance(source, str):
        raise ConfigError(where, "the model's tokenizer has no chat template, or several; remove the key.")
    mentioned = variables_of(source)
    for name in variables:
        if name not in mentioned:
            raise ConfigError(
                f"{where}.{name}",
                f"the model's chat template does not read this variable{nearest(name, mentioned)}. "
                "Correct its name, or remove it.",
            )


class Template:
    """The chat template of a tokenizer; ``plain`` is a `plain_copy` of the tokenizer, ``variables`` are those that the user
    sets. With ``vision`` it renders images."""

    def __init__(
        self,
        tokenizer: Any,
        plain: Any,
        variables: Mapping[str, Any] = MappingProxyType({}),
        vision: Vision | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._vision = vision
        self._variables = dict(variables)
        self._clock_forms = [form for _, form in _CLOCK.findall(str(tokenizer.chat_template))]
        self._changes: list[Change] = []
        """How messages in normal form are changed for this template."""
        self._compiled: ChatTemplate | None = None
        self._compile()
        if self._needs_parts():
            self._changes.append(_in_parts)
        self._learn_what_it_takes()
        self.encoder = Encoder(tokenizer, plain, *self._tokens(), vision)

    stop_token_ids: Sequence[int] = ()
    """See `ChatFormat`: probing finds those of a template."""

    @property
    def control(self) -> re.Pattern[str]:
        """See `ChatFormat`."""
        return self.encoder.control

    # ---------------------------------------------------------------- chats to text

    def text(self, messages: Sequence[Message], tools: Sequence[Message], *, generate: bool = True) -> str:
        """A chat as text, up to where the assistant begins; marks replace special tokens' texts in messages.
        Raises AjetError if the template refuses the chat."""
        return self.write(self.prepared(messages), self.hidden(tools), generate)

    def prepared(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages in the form that the template gets, with marks for special tokens' texts. Raises AjetError for images
        without vision."""
        if self._vision is None and any(map(images_of, messages)):
            raise AjetError("the model has no vision, so the chat's images cannot be rendered")
        return self._changed([self.encoder.hide(m, m.get("role") == "tool") for m in given(messages)])

    def stub(self, messages: Sequence[Message], tools: Sequence[Message], generate: bool) -> str:
        """The text of a chat that marks its own parts. Raises AjetError if the template refuses it."""
        return self.write(self._changed(given(messages)), list(tools), generate)

    def _changed(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for change in self._changes:
            for message in messages:
                change(message)
        return messages

    def hidden(self, tools: Sequence[Message]) -> list[Message]:
        """Tools in the form that the template gets."""
        return list(self.encoder.hide(encodable(tools), result=True))  # a server may have described them

    def write(
        self, prepared: Sequence[dict[str, Any]], tools: Sequence[Message], generate: bool = True
    ) -> str:
        """Prepared messages and tools as text. Raises AjetError if the template refuses them."""
        try:
            if self._compiled:
                fixed = {**self.tokenizer.special_tokens_map, **self._variables}
                text = self._compiled.render(prepared, tools, {**fixed, "add_generation_prompt": generate})
            else:
                text = self._by_tokenizer(prepared, tools, generate)
        except Exception as error:  # the template is foreign code
            raise refusal(error) from error
        return self._with_references(text, prepared, self._vision) if self._vision else text

    def show(self, text: str) -> str:
        """See `ChatFormat`."""
        return self.encoder.show(text)

    def ids(self, text: str, *, inside: bool = True) -> list[int]:
        """See `ChatFormat`."""
        return self.encoder.encode(text, inside=inside)

    def ends(self, text: str) -> list[int]:
        """See `ChatFormat`."""
        return [token.start() for token in self.encoder.control.finditer(text)]

    def times(self) -> tuple[str, ...]:
        """The times that the template writes, in the formats that its source contains."""
        now = datetime.now()
        return tuple(now.strftime(form) for form in self._clock_forms)

    def prefill(self, messages: Sequence[Message], tools: Sequence[Message]) -> tuple[str, str, int]:
        """The prompt of the messages before the last one, the text of the whole chat with the last message left open, as
        transformers' ``continue_final_message`` writes it, and where the two begin to differ. Raises AjetError if the
        template refuses the chat or does not write all of that message."""
        *before, last = messages
        usual = self.text(before, tools)
        prepared = self.prepared(messages)
        try:
            begun = self._by_tokenizer(prepared, self.hidden(tools), False, continue_final_message=True)
        except Exception:  # the template is foreign code
            begun = ""
        same = common_start(usual, begun, self.encoder.control)
        at = max((token.start() for token in self.encoder.control.finditer(same)), default=len(same))
        written = [self.encoder.hide(last.get(name) or "") for name in ("content", "reasoning_content")]
        if not begun or not all(text.strip() in begun[at:] for text in written):
            raise AjetError(
                "the chat ends with an assistant message for the answer to continue, but the chat template does not "
                f"write {'its reasoning and' if last.get('reasoning_content') else ''} its content there. Leave that out, or "
                "end the chat with a user message."
            )
        return usual, begun, at

    def _by_tokenizer(
        self, prepared: Sequence[Any], tools: Sequence[Message], generate: bool, **options: Any
    ) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                prepared,
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=generate,
                **self._variables,
                **options,
            )
        )

    def _with_references(self, text: str, messages: Sequence[Message], vision: Vision) -> str:
        """What the template wrote, with the reference of each image after the text that marks it, so that texts of different
        images differ. Raises AjetError if the template does not write every image of the chat."""
        refs = [ref for message in messages for ref in images_of(message)]
        if not refs:
            return text
        first, *others = text.split(vision.token)
        if len(others) != len(refs):
            raise AjetError(
                f"the chat template writes {len(others)} of the chat's {len(refs)} images. Send images in messages of the roles that "
                "it supports, such as user."
            )
        marks = (f"{vision.token}{IMAGE}{ref}{IMAGE}{after}" for ref, after in zip(refs, others, strict=True))
        return first + "".join(marks)

    # ---------------------------------------------------------------- what the template wants

    def _compile(self) -> None:
        """Compile the template, unless the tokenizer chooses among several or writes something else."""
        source = self.tokenizer.chat_template
        if not isinstance(source, str):
            return
        try:  # here, because the core without `ajet[chat]` runs whatever renders no chat
            from jinja2 import TemplateError

            from ajet.chat.jinja import compiled
        except ImportError as error:
            raise AjetError(
                f"rendering chats needs jinja2 ({error}). Install it: pip install 'ajet[chat]'."
            ) from error
        try:
            self._compiled = compiled(source)
        except TemplateError:
            return  # the tokenizer's own error says why
        for messages, tools in ((_PLAIN, []), ([QUESTION, _reasoned(), STUB_CALL, STUB_RESULT], [STUB_TOOL])):
            times = self.times()
            try:
                theirs = self._by_tokenizer(messages, tools, True)
            except Exception:  # refused by the template, for its own reasons
                continue
            if self._tried(messages, tools) != theirs and self.times() == times:
                self._compiled = None
                return

    def _tried(self, messages: Sequence[Any], tools: Sequence[Message] = (), generate: bool = True) -> str:
        """What the template writes for a stub chat; empty if it refuses it."""
        try:
            return self.stub(messages, tools, generate)
        except AjetError:
            return ""

    def _tokens(self) -> tuple[list[str], list[str]]:
        """Special tokens, and added tokens with which the template separates messages; other added tokens that it writes beside
        calls and results."""
        added = {str(t.content): bool(t.special) for t in self.tokenizer.added_tokens_decoder.values()}
        special = {t for t, is_special in added.items() if is_special} | set(
            self.tokenizer.all_special_tokens
        )
        shown = self._tried(_PLAIN, (), False)
        control = special | {t for t in added if t in shown and not t.isspace()}
        calling = self._tried([QUESTION, _reasoned(STUB_CALL), STUB_RESULT], [STUB_TOOL])
        around = {t for t in added if t in calling and not (t.isspace() or t.isalnum())}
        return sorted(control), sorted(around - control)

    def _needs_parts(self) -> bool:
        """Whether the template writes a content that is a list of parts, but not one that is a text."""
        listed = dict(QUESTION)
        _in_parts(listed)
        return ASKED not in self._tried([QUESTION]) and ASKED in self._tried([listed])

    def _learn_what_it_takes(self) -> None:
        """Find the changes with which the template writes calls and reasoning."""

        def written(message: Message) -> str:
            return self._tried([QUESTION, message, STUB_RESULT], [STUB_TOOL])

        def calls() -> bool:
            return any(name in written(STUB_CALL) for name in ("probe", "call00001"))

        def thinks() -> bool:
            before, thought, _ = written(_reasoned(STUB_CALL)).partition(THOUGHT)
            return bool(thought) and "thinking" not in before[-20:]  # a list of parts, written as it is

        def both() -> bool:
            return bool(written(_reasoned(STUB_CALL, content="a"))) or not written(_reasoned(STUB_CALL))

        wanted: list[tuple[Callable[[], bool], list[list[Change]]]] = [
            (lambda: "{'n': 1}" not in written(STUB_CALL), [[_arguments_as_text]]),
            (calls, [[_arguments_as_text], [_without_content], [_arguments_as_text, _without_content]]),
            (thinks, [[_as_reasoning], [_as_tool_plan], [_thought_in_parts]]),
            (both, [[_text_or_thoughts]]),
        ]
        for works, choices in wanted:
            for changes in choices:
                if not works():
                    kept = list(self._changes)
                    self._changes += changes
                    if not works():
                        self._changes = kept


def _reasoned(
    message: Message = MappingProxyType({"role": "assistant"}), content: str = SAID
) -> dict[str, Any]:
    """An assistant's stub message with reasoning."""
    content = "" if message.get("tool_calls") and content == SAID else content
    return {**message, "content": content, "reasoning_content": THOUGHT, "thinking": THOUGHT}


def refusal(error: Exception) -> AjetError:
    """The error for a chat that cannot be rendered."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return AjetError(f"the chat template refuses this chat: {reason}")


# --------------------------------------------------------------------------- changes of messages


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """Arguments as objects, and reasoning under both names that transformers gives it."""
    for call in message.get("tool_calls") or ():
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            function["arguments"] = _object(function["arguments"])
    reasoning = message.get("reasoning_content")
    return {"thinking": reasoning, **message} if reasoning else message


def _object(arguments: str) -> Any:
    """The JSON object in the text, or the text if it is not one."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _in_parts(message: dict[str, Any]) -> None:
    """Content as a list, for templates that read only lists."""
    if isinstance(message.get("content"), str):
        message["content"] = [{"type": "text", "text": message["content"]}] if message["content"] else []


def _arguments_as_text(message: dict[str, Any]) -> None:
    for function in (call["function"] for call in message.get("tool_calls") or ()):
        if isinstance(function.get("arguments"), dict):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)


def _without_content(message: dict[str, Any]) -> None:
    """For templates that write calls only where there is no content."""
    if message.get("tool_calls") and not message.get("content"):
        message.pop("content", None)


def _as_reasoning(message: dict[str, Any]) -> None:
    if message.get("reasoning_content"):
        message["reasoning"] = message["reasoning_content"]


def _as_tool_plan(message: dict[str, Any]) -> None:
    """Cohere's name for reasoning before a call."""
    if message.get("reasoning_content"):
        message["tool_plan"] = message["reasoning_content"]


def _thought_in_parts(message: dict[str, Any]) -> None:
    """Reasoning as a part of the content, as Mistral's templates read it."""
    if message.get("reasoning_content"):
        said = message.get("content")
        parts = [{"type": "text", "text": said}] if isinstance(said, str) and said else said or []
        message["content"] = [{"type": "thinking", "thinking": message["reasoning_content"]}, *parts]


def _text_or_thoughts(message: dict[str, Any]) -> None:
    """The template of gpt-oss writes either text or reasoning beside a call, both as reasoning."""
    said = [message.get("reasoning_content"), message.get("content")]
    if message.get("tool_calls") and all(said):
        both = "\n\n".join(map(str, said))
        message |= {"reasoning_content": both, "thinking": both, "content": ""}
