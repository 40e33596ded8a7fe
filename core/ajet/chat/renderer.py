"""Messages to tokens and back, by the model's own chat template.

A chat is rendered by the tokenizer's template, or by a renderer of the `renderers` library if there is none.
A next turn is continued from stored ids if the template still writes everything before the answer as it did,
and the answer in full; what follows the answer is rendered. Stop ids, turn ends and tool-call syntax come from
the family or the template, never from constants here.
"""

from __future__ import annotations

import hashlib
import json
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ajet.chat.continuing import (
    REWRITTEN,
    THINKING,
    TOOLS,
    ByTemplate,
    ByTokens,
    Changed,
    Continuing,
    Texts,
    Written,
)
from ajet.chat.families import find_family
from ajet.chat.harmony import find_harmony
from ajet.chat.messages import canonical_tool_arguments
from ajet.chat.streaming import CLOSE, OPEN, AnswerReader, Reader, Rules
from ajet.chat.templates import STUB_TOOL, Template, check_variables, given, plain_copy, refusal
from ajet.types import AjetError, Int32

if TYPE_CHECKING:
    from ajet.chat.vision import Vision

Message = Mapping[str, Any]

DROPPED = "template drops answer"
REFUSED = "not renderable"
_STREAMED = ("qwen3", "llama-3")
"""Families whose way of reading answers `ajet.chat.streaming` supports."""
CAUSES = (THINKING, TOOLS, REWRITTEN, DROPPED, REFUSED)
"""Why a turn cannot be continued from its stored ids."""

_ENDING = 40
"""Characters shown of what the template writes after an answer."""
_ENDS_TRIED = 8
"""Maximum positions at which reading an answer back is tried."""
REMEMBERED = 64
"""Rendered chats that are cached: episodes of one task begin with the same chat."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """An answer as a message. ``malformed`` counts tool calls that could not be read; their text is
    part of ``content``."""

    content: str
    reasoning: str | None
    tool_calls: tuple[tuple[str, str], ...]
    """(name, arguments as JSON text)"""
    malformed: int = 0
    reasoning_tokens: int = 0
    """How many ids are the reasoning, including its markers."""

    def and_text(self, text: str, malformed: int = 0) -> Parsed:
        """A copy with more content."""
        return replace(self, content=self.content + text, malformed=self.malformed + malformed)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the next prompt continues."""

    prompt_tail: list[int]
    """The last ids of the stored prompt, at most 64: enough to see how the answer began."""
    completion: list[int]
    """The sampled ids, with the stop token if it was sampled."""
    answer: Message
    """The assistant message parsed from them, in normal form."""
    new: Sequence[Message]
    """The messages after it."""
    count: int
    """How many messages the whole chat has, including the new ones."""
    whole: Callable[[], Sequence[Message]]
    """Returns the whole chat. It costs the chat's length, so it is called only if the template is not proven."""
    rendered: Written | None = None
    """What is known about the stored prompt's rendering."""


@dataclass(frozen=True, slots=True)
class Increment:
    """What follows the stored prompt and completion in the next prompt."""

    ids: list[int] | None
    """None if the turn cannot be continued from its stored ids."""
    cause: str = ""
    """Why the turn cannot be continued (one of `CAUSES`). If `ids` is set: the difference that the merge policy allowed."""
    was: str = field(default="", compare=False)
    """If the template is the cause: what it wrote there before."""
    now: str = field(default="", compare=False)
    """What the template writes there now."""
    rendered: Written | None = field(default=None, compare=False)
    """What is known about the next prompt's rendering, for the turn after it."""


class Chat:
    """Renders chats for one model. Messages and tools are in normal form, see `ajet.chat.messages`. ``variables`` are those
    of the chat template that the user sets; ``vision`` renders images. Raises AjetError if there is no template, or if it does not read
    one of the variables."""

    def __init__(
        self,
        tokenizer: Any,
        model_type: str = "",
        variables: Mapping[str, Any] = MappingProxyType({}),
        vision: Vision | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.vision = vision
        """None if the model reads only text."""
        self._plain = plain_copy(tokenizer)
        if variables:
            check_variables(tokenizer, variables)
        self._family = find_family(tokenizer, self._plain, model_type, variables)
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if not has_template and self._family is None:
            raise AjetError(
                f"the tokenizer of {getattr(tokenizer, 'name_or_path', 'the model')!r} has no chat template, so chats cannot be "
                "rendered. Use an instruction-tuned model or set tokenizer.chat_template."
            )
        options = self._family.template_options() if self._family else variables
        self._template = Template(tokenizer, self._plain, options, vision) if has_template else None
        by_template = self._template if self._family is None else None
        self._harmony = find_harmony(tokenizer, by_template) if by_template else None
        self._call_parser = by_template.call_parser() if by_template and not self._harmony else None
        stops = [*(self._family.reader.get_stop_token_ids() if self._family else [])]
        stops += self._template.stop_token_ids() if self._template else []
        stops = [*self._harmony.stop_token_ids] if self._harmony else stops
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(stops))
        """Tokens that end an answer, the template's own turn end first."""
        only_last = self._template.only_last() if self._template else frozenset[int]()
        self._only_last = only_last | ({self._harmony.return_} if self._harmony else set())
        texts = (
            ByTemplate(self._template)
            if self._template
            else ByTokens(self._render_by_family, self._decode, self.stop_token_ids)
        )
        self._texts: Texts = texts
        self._continuing = Continuing(texts, self._template)
        self._rendered: dict[bytes, tuple[Int32, Written]] = {}
        self._remembering = threading.Lock()

    # ---------------------------------------------------------------- messages to ids

    def render(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[int]:
        """Prompt ids of a chat, up to where the assistant begins. Raises AjetError if the chat format
        refuses the chat. May be called from several threads."""
        ids: list[int] = self.begin(messages, tools)[0].tolist()
        return ids

    def begin(self, messages: Sequence[Message], tools: Sequence[Message]) -> tuple[Int32, Written]:
        """Like `render`, with what `next_turn` needs to know about the rendering. The ids are ``int32[T]``; do not modify
        them."""
        # The members of a group begin with the same chat.
        chat = hashlib.blake2b(json.dumps([messages, tools]).encode(), digest_size=16).digest()
        held = self._rendered.get(chat)
        if held is None or held[1].times != self._continuing.times():
            text, rendered = self._continuing.begin(messages, tools)
            ids = self._template.encoder.encode(text) if self._template else self._texts.ids(text)
            held = np.array(ids, dtype=np.int32), rendered
            held[0].flags.writeable = False
            with self._remembering:
                if len(self._rendered) == REMEMBERED:
                    del self._rendered[next(iter(self._rendered))]
                self._rendered[chat] = held
        return held[0], held[1].copied()

    def _render_by_family(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[int]:
        assert self._family
        try:
            ids = self._family.writer.render_ids(
                given(messages), tools=list(tools) or None, add_generation_prompt=True
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise refusal(error) from error
        return list(ids)

    def render_with_mask(
        self, messages: Sequence[Message], tools: Sequence[Message]
    ) -> tuple[list[int], list[bool]]:
        """Ids of a finished chat, and which of them the assistant would have sampled. Raises AjetError for a
        family whose renderer cannot mark them, and whatever the renderer raises."""
        if self._family is None:
            raise AjetError(
                "supervised fine-tuning needs a chat family that marks the assistant's tokens; this model's chat template "
                "does not. Use a model of a known family."
            )
        rendered = self._family.writer.render(given(messages), tools=list(tools) or None)
        return list(rendered.token_ids), list(rendered.sampled_mask)

    def prefill(
        self, messages: Sequence[Message], tools: Sequence[Message], prompt: Sequence[int]
    ) -> Increment:
        """Ids of the whole prompt after which the answer continues the chat's last message. ``prompt`` is the prompt
        of the messages before it, with stored ids: they are kept, unless the template rewrites them. Raises
        AjetError if the template does not write such a message in full."""
        if self._template is None:
            return Increment([*prompt, *self.prefill_ids(messages[-1].get("content") or "")])
        encode = self._template.encoder.encode
        usual, begun = self._template.prefill(messages, tools)
        end, ids = encode(usual, inside=True), encode(begun, inside=True)
        kept = len(prompt) - len(end)
        if kept > 0 and list(prompt[kept:]) == end:
            return Increment([*prompt[:kept], *ids])
        return Increment([*self.render(messages[:-1], tools)[: -len(end) or None], *ids], REWRITTEN)

    def prefill_ids(self, text: str) -> list[int]:
        """Ids of the beginning of an answer, directly after a prompt. Texts of special tokens in it are plain
        text."""
        if self._template:
            return self._template.encoder.plain(text)
        return list(self._plain.encode(text, add_special_tokens=False))

    def written(self, answer: Message) -> str:
        """What the model would write to say ``answer``: its text without the token that ends the turn,
        for scripted engines. Raises AjetError if the chat format refuses it."""
        if self._template is None:
            raise AjetError("the tokenizer has no chat template to write answers with")
        return self._template.written(answer)

    # ---------------------------------------------------------------- continuing stored ids

    def next_turn(self, turn: Turn, tools: Sequence[Message], *, keep_thinking: bool = False) -> Increment:
        """What follows the stored ids of a turn in the next prompt, if the template writes everything before the
        answer as before, and the answer in full. With ``keep_thinking`` the turn also continues if the template
        would leave reasoning out. Depends only on its arguments and the template's clock; costs the length of the
        answer and the new messages if the template is proven, else that of the whole chat."""
        count = turn.count - len(turn.new) - 1
        more = [turn.answer, *turn.new]
        try:
            rest = self._continuing.rest(turn.rendered, turn.whole, more, count, tools, keep_thinking)
            at, in_full = self._end_of_answer(rest.text, turn)
            ids = self._following(rest.text, at, turn)
        except Changed as found:
            return Increment(None, found.cause, found.was, found.now)
        except AjetError:
            return Increment(None, REFUSED)
        dropped = rest.drops_thinking or in_full == THINKING
        if in_full == DROPPED or (dropped and not keep_thinking):
            said = self._decode(self._upto_stop(turn.completion))
            return Increment(None, in_full, said, self._texts.show(rest.text[:at]))
        drift = THINKING if dropped else ""
        if turn.completion and turn.completion[-1] in self._only_last:
            if not keep_thinking:
                end = self._texts.show(rest.text[at : at + _ENDING])
                return Increment(None, REWRITTEN, self.text_of(turn.completion[-1]), end)
            drift = drift or REWRITTEN
        return Increment(ids, drift, rendered=rest.written)

    def _end_of_answer(self, rest: str, turn: Turn) -> tuple[int, str]:
        """Where the answer ends in the text after its prompt, and what of the answer is missing there: nothing,
        `THINKING`, or more (`DROPPED`)."""
        texts = [text.strip() for text in self._in_full(turn)]
        ends = self._texts.ends(rest)
        if not ends or (self._template and not (self._template.ending.token or self._template.ending.header)):
            content = self._shown_content(turn.answer)
            ends = [max(rest.find(content), 0) + len(content)]
        if self._template and not self._template.ending.token and self._template.ending.text:
            written = self._template.ending.text  # the turn's end is plain text
            before = {end - len(written) for end in ends if rest[:end].endswith(written)}
            ends = sorted({*ends, *before})
        if (
            self._texts.show(rest[: ends[0]]).strip() in texts
        ):  # the usual case, and cheaper to test than equal words
            return ends[0], ""
        said = [text.split() for text in texts]
        for end in ends:
            words = self._texts.show(rest[:end]).split()
            if words in said:
                return end, ""
            if len(words) > max(map(len, said)):
                break
        if self._harmony:
            ends = [end for end in ends if rest.startswith(self._harmony.closing, end)]
        missing = [(end, self._missing(rest[:end], turn)) for end in ends[:_ENDS_TRIED]]
        return min(missing, key=lambda found: ["", THINKING, DROPPED].index(found[1]))

    def _in_full(self, turn: Turn) -> list[str]:
        """The texts that count as the full answer, up to white space: what was sampled, and for an answer that is only
        text also that text, which ends before a stop string."""
        answer = turn.answer
        said = [self._decode(self._upto_stop(turn.completion))]
        if not answer.get("tool_calls") and not answer.get("reasoning_content"):
            said.append(str(answer.get("content") or ""))
        return said

    def _shown_content(self, answer: Message) -> str:
        """The answer's text as it appears in rendered chats, without the space around it."""
        content = str(answer.get("content") or "").strip()
        return str(self._template.encoder.hide(content)) if self._template else content

    def _missing(self, written: str, turn: Turn) -> str:
        """What the template left out of an answer; the written text is read as if it had been sampled."""
        ids = self._texts.ids(written)
        # In Harmony a tool call without its end counts as cut off, and the header is part of the text.
        harmony = self._harmony
        found = self.parse([*ids, harmony.call], []) if harmony else self.parse(ids, turn.prompt_tail)
        answer = turn.answer
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in answer.get("tool_calls") or ()]
        if (
            found.content.strip() != (answer.get("content") or "").strip()
            or found.malformed
            or _spelled(found.tool_calls) != _spelled(calls)
        ):
            return DROPPED
        thoughts = (answer.get("reasoning_content") or "").strip()
        return "" if (found.reasoning or "").strip() == thoughts else THINKING

    def _following(self, rest: str, at: int, turn: Turn) -> list[int]:
        """Ids of what follows the answer, without the token that ends it if that was sampled."""
        ids = self._texts.ids(rest[at:])
        last = turn.completion[-1] if turn.completion else None
        if self._template is None:
            return ids[1:] if last in self.stop_token_ids else ids
        marker = self._template.encoder.control.match(rest, at)
        if marker is None:
            return ids
        end = self._template.encoder.ids[marker[0]]
        ending = self._template.ending
        ends = last in self.stop_token_ids and (end in self.stop_token_ids or last in self._only_last)
        if last == end or (ends and ending.token):
            return ids[1:]
        space = ending.closing if not ending.closing.strip() and rest[:at].endswith(ending.closing) else ""
        return self._texts.ids(space + rest[at:]) if space else ids

    # ---------------------------------------------------------------- ids to messages

    def parse(self, completion: list[int], prompt: list[int]) -> Parsed:
        """An answer's ids as a message. Raises nothing, whatever was sampled."""
        ids = self._harmony.turn(completion) if self._harmony else self._upto_stop(completion)
        try:
            return self._read(ids, prompt)
        except Exception:  # in a tool call: deep nesting, numbers of thousands of digits, …
            return self._read_upto_fault(ids, prompt)

    def reader(self, prompt: list[int]) -> Reader | None:
        """Reads an answer while it is sampled, with the result that `parse` gives at the end; None if nothing is
        known before the end. Raises nothing."""
        known = self._family is None or self._family.writer.config.name in _STREAMED
        if (
            not known
            or self._cleans_up
            or (self._family and self._rules.thinks and not self._rules.think_ids)
        ):
            return None
        if self._harmony:
            return self._harmony.reader(prompt)
        opened = self._rules.thinks and self.parse(self._ids("a"), prompt).reasoning is not None
        return AnswerReader(self.tokenizer, self._rules, opened)

    def text_reader(self) -> AnswerReader | None:
        """Reads a text that is not a chat's answer, up to the token that ends it."""
        rules = Rules(frozenset(self.stop_token_ids), frozenset())
        return None if self._cleans_up else AnswerReader(self.tokenizer, rules, False)

    def text(self, completion: list[int]) -> str:
        """A text that is not a chat's answer, up to the token that ends it."""
        return self._decode(self._upto_stop(completion))

    def text_of(self, token: int) -> str:
        """The text of one token."""
        return self._decode([token])

    @cached_property
    def vocabulary(self) -> int:
        """Upper bound of the tokenizer's token ids; some ids below it may have no token."""
        return int(max(self.tokenizer.get_vocab().values())) + 1

    @cached_property
    def shows_tools(self) -> bool:
        """Whether prompts contain the tools of a call. Some chat templates leave them out without an error."""
        question = [{"role": "user", "content": "?"}]
        try:
            return self.render(question, [STUB_TOOL]) != self.render(question, [])
        except AjetError:  # refused, so not left out without an error
            return True

    @cached_property
    def _rules(self) -> Rules:
        """How `_read` reads answers, found by probing it."""
        stops = frozenset(self.stop_token_ids)
        added = frozenset(self.tokenizer.added_tokens_decoder) - stops
        if self._harmony:
            return Rules(stops, frozenset({self._harmony.start}))
        if self._family is None:
            parser, thinks = self._call_parser, bool(self._template and self._template.thinks)
            calls = frozenset(i for i in added if parser and parser.extract([i])[0] != [i])
            return Rules(stops, calls, thinks=thinks)
        read = self._family.reader.parse_response
        a, b = self._ids("a"), self._ids("b")
        calls = frozenset(i for i in added if read([i]).tool_calls)
        think_ids = [self._ids(mark) for mark in (OPEN, CLOSE)]
        thinks = bool(read([*think_ids[0], *a, *think_ids[1], *b]).reasoning_content)
        # Headers of a turn: some readers do not count what is before one as part of the answer.
        forgets = frozenset(i for i in added - calls if not read([*a, i, *b]).content.startswith("a"))
        return Rules(
            stops,
            calls,
            holds=forgets,
            first_holds=added - calls - {i for ids in think_ids for i in ids},
            thinks=thinks,
            think_ids=(think_ids[0][0], think_ids[1][0])
            if thinks and max(map(len, think_ids)) == 1
            else None,
            strips=True,
            json_calls=bool(read(self._ids('{"name": "probe", "parameters": {}}')).tool_calls),
        )

    @cached_property
    def _cleans_up(self) -> bool:
        """Whether decoding removes spaces that it produced before."""
        ids = self._ids("a .")
        return self._decode(ids) != str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def _read(self, ids: list[int], prompt: list[int]) -> Parsed:
        """Like `parse`, but may raise whatever readers of tool calls raise."""
        if self._harmony:
            found, thoughts = self._harmony.parse(ids, prompt)
            parsed = _parsed(found.content, found.reasoning_content, found.tool_calls)
            return replace(parsed, reasoning_tokens=thoughts if parsed.reasoning else 0)
        if self._family is None:
            return self._parse(ids, prompt)
        end = _first(self._rules.holds, ids)
        found = self._family.reader.parse_response(ids[:end], prompt_ids=prompt)
        parsed = _parsed(found.content, found.reasoning_content, found.tool_calls)
        if parsed.reasoning:
            parsed = replace(parsed, reasoning_tokens=self._thought_end(ids[:end]))
        return parsed if end == len(ids) else parsed.and_text(self._decode(ids[end:]))

    def _read_upto_fault(self, ids: list[int], prompt: list[int]) -> Parsed:
        """Reads up to the tool call that cannot be read; from there on everything is text."""
        for end in reversed([n for n, i in enumerate(ids) if i in self._rules.calls]):
            try:
                return self._read(ids[:end], prompt).and_text(self._decode(ids[end:]), malformed=1)
            except Exception:
                continue
        return Parsed(self._decode(ids), None, (), 1)

    def _parse(self, ids: list[int], prompt: list[int]) -> Parsed:
        """Reads by what the template shows: its reasoning, and tool calls as it writes them."""
        thought, end = None, 0
        if self._template and self._template.thinks:
            opened = self._decode(prompt[-16:]).rstrip().endswith("<think>")
            if opened or self._decode(ids).lstrip().startswith("<think>"):
                end = self._thought_end(ids)
                thought = self._decode(ids[:end]).partition("</think>")[0]
                thought = thought.lstrip().removeprefix("<think>").strip()
                ids = ids[end:]
        calls: list[Any] = []
        if self._call_parser:
            ids, calls = self._call_parser.extract(ids)
        content = self._decode(ids)
        content = content if thought is None else content.lstrip("\n")
        parsed = _parsed(content.rstrip() if calls else content, thought, calls)
        return replace(parsed, reasoning_tokens=end if parsed.reasoning else 0)

    def _thought_end(self, ids: list[int]) -> int:
        """How many of the first ids are an answer's reasoning, including the marker that ends it."""
        if self._rules.think_ids:
            close = self._rules.think_ids[1]
            return ids.index(close) + 1 if close in ids else _first(self._rules.calls, ids)
        end = bisect_left(range(len(ids) + 1), True, key=lambda n: CLOSE in self._decode(ids[:n]))
        return min(end, len(ids))

    def _upto_stop(self, ids: list[int]) -> list[int]:
        return ids[: _first(self._rules.stops, ids)]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _decode(self, ids: list[int]) -> str:
        known = self.vision.plain(ids) if self.vision else ids
        return str(self.tokenizer.decode(known, skip_special_tokens=False)) if ids else ""


def _first(wanted: frozenset[int], ids: list[int]) -> int:
    """The index of the first of some tokens, or the length."""
    return min(map(ids.index, wanted.intersection(ids)), default=len(ids))


def _spelled(calls: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, canonical_tool_arguments(arguments)) for name, arguments in calls]


def _parsed(content: str, reasoning: str | None, calls: Sequence[Any]) -> Parsed:
    good: list[Any] = []
    bad: list[Any] = []
    for call in calls:
        # Arguments that are not JSON are texts in formats that do not quote them.
        readable = call.status == "ok" or (call.status == "invalid_json" and isinstance(call.arguments, dict))
        (good if readable and isinstance(call.name, str) and call.name else bad).append(call)
    content += "".join(c.raw for c in bad if c.raw not in content)
    reasoning = (reasoning or "").strip()  # also if it was cut off
    return Parsed(content, reasoning or None, tuple((c.name, _as_json(c.arguments)) for c in good), len(bad))


def _as_json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
