"""Messages to tokens and back, for one model.

A chat is rendered by the tokenizer's template, or by a renderer of the `renderers` library if there is none. A next turn
is continued from stored ids if the format still writes everything before the answer as it did, and the answer in full;
what follows the answer is rendered. Turn ends, thoughts and tool calls are found by rendering stub chats.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ajet.chat.answers import Answers, MarkedAnswers, Parsed
from ajet.chat.bodies import ReadCall
from ajet.chat.calls import CallReader, Calls
from ajet.chat.continuing import REWRITTEN, THINKING, TOOLS, Changed, Continuing, Written
from ajet.chat.encoding import ASKED, SAID, any_of, plain_copy
from ajet.chat.format import ChatFormat
from ajet.chat.harmony import find_harmony
from ajet.chat.library import ByRenderer, find_renderer
from ajet.chat.messages import canonical_tool_arguments, spoken, thoughts
from ajet.chat.reading import FoundReader, find_reader
from ajet.chat.shape import THINK, AnswerShape, Prober, written
from ajet.chat.streaming import AnswerReader, stop_at
from ajet.chat.template import QUESTION, STUB_CALL, STUB_RESULT, STUB_TOOL, Template, check_variables, given
from ajet.chat.texts import without_header
from ajet.types import AjetError, Int32

if TYPE_CHECKING:
    from ajet.chat.vision import Vision

Message = Mapping[str, Any]

DROPPED = "template drops answer"
REFUSED = "not renderable"
CAUSES = (THINKING, TOOLS, REWRITTEN, DROPPED, REFUSED)
"""Why a turn cannot be continued from its stored ids."""

_USUAL_ID = re.compile(r"[A-Za-z0-9]{9}|functions\..*:\d+")
_ENDING = 40
"""Characters shown of what the template writes after an answer."""
_ENDS_TRIED = 8
"""Maximum positions at which reading an answer back is tried."""
REMEMBERED = 64
"""Rendered chats that are cached: episodes of one task begin with the same chat."""
TAIL = 64
"""Prompt tokens that show how an answer began: the generation header."""
_VARIANTS = 16
"""Chats with other template variables that are cached."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the next prompt continues."""

    prompt_tail: list[int]
    """The last ids of the stored prompt, enough to see how the answer began: `TAIL`, and what the prompt has of the answer."""
    completion: list[int]
    """The sampled ids, with the stop token if it was sampled."""
    answer: Message
    """The assistant message parsed from them, in normal form."""
    new: Sequence[Message]
    """The messages after it."""
    count: int
    """How many messages the whole chat has, including the new ones."""
    whole: Callable[[], Sequence[Message]]
    """Returns the whole chat."""
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
    """Renders chats for one model and reads its answers. Messages and tools are in normal form, see `ajet.chat.messages`.

    ``variables`` are those of the chat template that the user sets; ``vision`` renders images; ``stops`` are further
    tokens that end an answer. ``call_example`` shows how the model writes a call, if nothing else does; without
    ``reads_calls``, calls stay text. Raises AjetError if there is no template, or if it does not read one of the variables.
    """

    def __init__(
        self,
        tokenizer: Any,
        model_type: str = "",
        variables: Mapping[str, Any] = MappingProxyType({}),
        vision: Vision | None = None,
        *,
        stops: Sequence[int] = (),
        call_example: str = "",
        reads_calls: bool = True,
    ) -> None:
        self.tokenizer = tokenizer
        self.vision = vision
        """None if the model reads only text."""
        self._plain = plain_copy(tokenizer)
        self._made_of = (model_type, dict(variables), stops, call_example, reads_calls)
        self._reads_calls = reads_calls
        check_variables(tokenizer, variables)
        self._format: ChatFormat
        if getattr(tokenizer, "chat_template", None):
            self._format = Template(tokenizer, self._plain, variables, vision)
        elif renderer := find_renderer(self._plain, model_type):
            self._format = ByRenderer(renderer, tokenizer)
        else:
            raise AjetError(
                f"the tokenizer of {self.name!r} has no chat template, so chats cannot be rendered. Use an instruction-tuned model "
                "or set tokenizer.chat_template."
            )
        self._template = self._format if isinstance(self._format, Template) else None
        control = self._format.control
        folder = getattr(tokenizer, "name_or_path", "") or "/"
        known_stops = [*_eos(tokenizer), *generation_stops(Path(folder, "generation_config.json")), *stops]
        source = str(getattr(tokenizer, "chat_template", None) or "")
        prober = Prober(self._format, control, source, set(map(self.text_of, known_stops)))
        self._shape: AnswerShape = prober.shape()
        ids = [tokenizer.convert_tokens_to_ids(token) for token in self._shape.stop_tokens()]
        self.stop_token_ids: tuple[int, ...] = tuple(
            dict.fromkeys([*ids, *self._format.stop_token_ids, *known_stops])
        )
        """Tokens that end an answer, the format's own turn end first."""
        self._only_last = frozenset(map(tokenizer.convert_tokens_to_ids, self._shape.only_last()))
        self._harmony = find_harmony(tokenizer, self._shape, self.stop_token_ids)
        self._found = FoundReader(None, "text, as rollout.tool_calls says")
        added = {str(token.content) for token in tokenizer.added_tokens_decoder.values()}
        if self._harmony:
            self._answers: Answers = self._harmony
            self._going_on: Answers = self._harmony
            self.stop_token_ids = self._harmony.stop_token_ids
            self._found = FoundReader(None, "Harmony, the format of gpt-oss")
        else:
            if reads_calls:
                self._found = self._find_reader(call_example, control)
            # A model may think though its chat template never writes a thought.
            thinks = not self._shape.thoughts and added.issuperset(THINK)
            shape = replace(self._shape, thoughts=THINK) if thinks else self._shape
            self._answers = self._marked(shape, self._found.reader)
            self._going_on = self._marked(shape, self._found.reader, inside=True)
        self._text = self._marked(replace(self._shape, thoughts=None, said=("", "")), None, inside=True)
        self._continuing = Continuing(self._format, self._shape)
        self._rendered: dict[bytes, tuple[Int32, Written]] = {}
        self._variants: dict[str, Chat] = {}
        self._remembering = threading.Lock()

    @property
    def name(self) -> str:
        """The model's name, for errors."""
        return getattr(self.tokenizer, "name_or_path", "") or "the model"

    def with_variables(self, variables: Mapping[str, Any]) -> Chat:
        """A chat whose template gets further variables. Raises ConfigError for one that the template does not read."""
        if not variables:
            return self
        model_type, own, stops, example, reads = self._made_of
        check_variables(self.tokenizer, variables, "chat_template_kwargs")
        key = json.dumps(variables, sort_keys=True, default=str)
        chat = self._variants.get(key)
        if chat is None:
            chat = Chat(
                self.tokenizer,
                model_type,
                {**own, **variables},
                self.vision,
                stops=stops,
                call_example=example,
                reads_calls=reads,
            )
            with self._remembering:
                if len(self._variants) >= _VARIANTS:
                    del self._variants[next(iter(self._variants))]
                self._variants[key] = chat
        return chat

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
        if held is None or held[1].times != self._format.times():
            rendered = self._continuing.begin(messages, tools)
            held = np.array(self._format.ids(rendered.text, inside=False), dtype=np.int32), rendered
            held[0].flags.writeable = False
            with self._remembering:
                if len(self._rendered) == REMEMBERED:
                    del self._rendered[next(iter(self._rendered))]
                self._rendered[chat] = held
        return held[0], held[1].copied()

    def sampled(self, rendered: Written, answer: Message) -> list[int]:
        """Ids that the model samples to say ``answer`` after a prompt, with the token that ends it, also if the format writes none
        or another one at the end of a chat. Raises AjetError if the format does not write all of the answer, up to the space
        around its text."""
        thought = thoughts(answer)
        *begun, text = self._continuing.answer(rendered, answer, thought)
        ends = ((at, self._format.ids(text[at:])[0]) for at in self._format.ends(text))
        at, stop = next((end for end in ends if end[1] in self.stop_token_ids), (None, self._stop_of(answer)))
        said = text.removesuffix(self._shape.ending.text) if at is None else text[:at]
        if missing := _missing_in(self._format.show(said).replace(thought, "", 1), answer):
            raise AjetError(f"the chat template does not write {' and '.join(missing)} of an answer in full")
        before = [i for head in begun for i in [*self._format.ids(head), *self.prefill_ids(thought)]]
        return [*before, *self._format.ids(said), stop]

    def _stop_of(self, answer: Message) -> int:
        """The token that ends an answer after which the format writes none: the one with which the next message begins."""
        ending = (self._shape.call_ending if answer.get("tool_calls") else None) or self._shape.ending
        token = self.tokenizer.convert_tokens_to_ids(ending.header) if ending.header else None
        return token if token in self.stop_token_ids else self.stop_token_ids[0]

    def prefill(
        self, messages: Sequence[Message], tools: Sequence[Message], prompt: Sequence[int]
    ) -> Increment:
        """Ids of the whole prompt after which the answer continues the chat's last message. ``prompt`` is the prompt
        of the messages before it, with stored ids: they are kept, unless the template rewrites them. Raises
        AjetError if the template does not write such a message in full."""
        before = self._continuing.begin(messages[:-1], tools)
        if self._template is None:
            said = self.prefill_ids(messages[-1].get("content") or "")
            rendered = before.prefilled(before.text + "".join(map(chr, said)))
            return Increment([*prompt, *said], rendered=rendered)
        usual, begun, at = self._template.prefill(messages, tools)
        rendered = before.prefilled(begun)
        end, ids = self._format.ids(usual[at:]), self._format.ids(begun[at:])
        kept = len(prompt) - len(end)
        if kept > 0 and list(prompt[kept:]) == end:
            return Increment([*prompt[:kept], *ids], rendered=rendered)
        anew = self._format.ids(usual, inside=False)
        return Increment([*anew[: -len(end) or None], *ids], REWRITTEN, rendered=rendered)

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
        calls = answer.get("tool_calls") or ()
        if calls and self._found.reader and self._found.source != "the chat template":
            assert isinstance(self._answers, MarkedAnswers)
            objects = given([answer])[0]["tool_calls"]
            named = [
                ReadCall(c["function"]["name"], c["function"]["arguments"], c.get("id") or "")
                for c in objects
            ]
            return self._answers.written(
                answer.get("content") or "", answer.get("reasoning_content") or "", named
            )
        return written(self._format, self._shape, answer)

    def written_ids(self, text: str) -> list[int]:
        """Ids of what the model would write to say a text of a user, without the token that ends the turn. No part of the text becomes
        an added token, so it ends no turn and calls no tool. Raises AjetError if the chat format refuses it."""
        before, _, after = self.written({"role": "assistant", "content": SAID}).partition(SAID)
        ids = self._format.ids(before)
        for part in self._added.split(text):
            for piece in part if self._added.fullmatch(part) else (part,):
                ids += self.prefill_ids(piece)
        return ids + self._format.ids(after)

    @cached_property
    def _added(self) -> re.Pattern[str]:
        added = (str(token.content) for token in self.tokenizer.added_tokens_decoder.values())
        return re.compile(f"({any_of(token for token in added if not token.isspace()).pattern})")

    # ---------------------------------------------------------------- continuing stored ids

    def next_turn(self, turn: Turn, tools: Sequence[Message], *, keep_thinking: bool = False) -> Increment:
        """What follows the stored ids of a turn in the next prompt, if the template writes everything before the
        answer as before, and the answer in full. With ``keep_thinking`` the turn also continues if the template
        would leave reasoning out. Depends only on its arguments and the template's clock; renders the chat once."""
        count = turn.count - len(turn.new) - 1
        try:
            rest = self._continuing.rest(turn.rendered, turn.whole, count, tools, keep_thinking)
            at, in_full = self._end_of_answer(rest.text, turn, tools)
            ids = self._following(rest.text, at, turn)
        except Changed as found:
            return Increment(None, found.cause, found.was, found.now)
        except AjetError:
            return Increment(None, REFUSED)
        dropped = rest.drops_thinking or in_full == THINKING
        if in_full == DROPPED or (dropped and not keep_thinking):
            said = self._decode(self._upto_stop(turn.completion))
            return Increment(None, in_full, said, self._format.show(rest.text[:at]))
        drift = THINKING if dropped else ""
        if turn.completion and turn.completion[-1] in self._only_last:
            if not keep_thinking:
                end = self._format.show(rest.text[at : at + _ENDING])
                return Increment(None, REWRITTEN, self.text_of(turn.completion[-1]), end)
            drift = drift or REWRITTEN
        return Increment(ids, drift, rendered=rest.written)

    def _end_of_answer(self, rest: str, turn: Turn, tools: Sequence[Message]) -> tuple[int, str]:
        """Where the answer ends in the text after its prompt, and what of the answer is missing there: nothing,
        `THINKING`, or more (`DROPPED`)."""
        ends, ending = self._format.ends(rest), self._shape.ending
        if not ends or not (ending.token or ending.header):
            content = self._shown_content(turn.answer)
            ends = [max(rest.find(content), 0) + len(content)]
        if not ending.token and ending.text:  # the turn's end is plain text
            before = {end - len(ending.text) for end in ends if rest[:end].endswith(ending.text)}
            ends = sorted({*ends, *before})
        # The usual case, and cheaper than equal words.
        first = self._format.show(rest[: ends[0]]).strip()
        if any(text.strip() == first for text in self._in_full(turn)):
            return ends[0], ""
        said = [text.split() for text in self._in_full(turn)]
        for end in ends:
            words = self._format.show(rest[:end]).split()
            if words in said:
                return end, ""
            if len(words) > max(map(len, said)):
                break
        if self._template:
            ends = [end for end in ends if rest.startswith(self._turn_ends, end)] or ends
        missing = [(end, self._missing(rest[:end], turn, tools)) for end in ends[:_ENDS_TRIED]]
        return min(missing, key=lambda pair: ["", THINKING, DROPPED].index(pair[1]))

    @cached_property
    def _turn_ends(self) -> tuple[str, ...]:
        """Texts of the tokens that end a turn in a history."""
        if self._harmony:
            return self._harmony.closing
        return tuple(t for t in (self._shape.ending.token, *map(self.text_of, self.stop_token_ids)) if t)

    def _in_full(self, turn: Turn) -> Iterator[str]:
        """The texts that count as the full answer, up to white space: for an answer that is only text that text, which ends before
        a stop string; and what was sampled, which is decoded only if it is asked for."""
        answer = turn.answer
        if not answer.get("tool_calls") and not answer.get("reasoning_content"):
            yield str(answer.get("content") or "")
        yield self._decode(self._upto_stop(turn.completion))

    def _shown_content(self, answer: Message) -> str:
        """The answer's text as it appears in rendered chats, without the space around it."""
        content = str(answer.get("content") or "").strip()
        return str(self._template.encoder.hide(content)) if self._template else content

    def _missing(self, written: str, turn: Turn, tools: Sequence[Message]) -> str:
        """What the template left out of an answer; the written text is read as if it had been sampled."""
        text = self._format.show(written)
        if isinstance(self._answers, MarkedAnswers):
            # The longer chat may not begin the thought that the prompt began.
            ends = self._shape.thoughts is not None and self._shape.thoughts[1] in text
            opened = ends and self._answers.opened(self._decode(turn.prompt_tail))
            parsed = self._answers.parse_text(text, opened, tools)[0]
        else:
            # In Harmony a tool call without its end counts as cut off, and the header is part of the text.
            assert self._harmony
            parsed = self._harmony.parse([*self._format.ids(written), self._harmony.call], [], tools)
        answer = turn.answer
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in answer.get("tool_calls") or ()]
        if parsed.content.strip() != (answer.get("content") or "").strip() or _spelled(
            parsed.tool_calls
        ) != _spelled(calls):
            return DROPPED
        thoughts = (answer.get("reasoning_content") or "").strip()
        return "" if (parsed.reasoning or "").strip() == thoughts else THINKING

    def _following(self, rest: str, at: int, turn: Turn) -> list[int]:
        """Ids of what follows the answer, without the token that ends it if that was sampled."""
        ids = self._format.ids(rest[at:])
        last = turn.completion[-1] if turn.completion else None
        if self._template is None:
            return ids[1:] if last in self.stop_token_ids else ids
        marker = self._template.encoder.control.match(rest, at)
        if marker is None:
            return ids
        end = self._template.encoder.ids[marker[0]]
        ending = self._shape.ending
        own = end in self.stop_token_ids or marker[0] == ending.token or last in self._only_last
        if last == end or (last in self.stop_token_ids and own and ending.token):
            return ids[1:]
        space = ending.closing if not ending.closing.strip() and rest[:at].endswith(ending.closing) else ""
        return self._format.ids(space + rest[at:]) if space else ids

    # ---------------------------------------------------------------- ids to messages

    def parse(
        self,
        completion: list[int],
        prompt: list[int],
        tools: Sequence[Message] = (),
        *,
        goes_on: bool = False,
    ) -> Parsed:
        """An answer's ids as a message, with calls of the ``tools`` that the request offers. ``prompt`` are the last ids
        before it, as in `Turn`; ``goes_on`` tells whether they have a part of the answer. Raises nothing, whatever was sampled."""
        ids = completion if self._harmony else self._upto_stop(completion)
        parsed = (self._going_on if goes_on else self._answers).parse(
            ids, prompt, tools if self._reads_calls else (), ended=len(ids) < len(completion)
        )
        if not any(parsed.call_ids):
            return parsed
        written = parsed.call_ids
        known = [i if i not in written[:n] and self._takes_id(i) else "" for n, i in enumerate(written)]
        return replace(parsed, call_ids=tuple(known))

    def _takes_id(self, written: str) -> bool:
        """Whether the chat template takes the id of a call; some raise an error for what is not nine letters and digits."""
        (call,) = STUB_CALL["tool_calls"]
        calling = {**STUB_CALL, "tool_calls": [{**call, "id": written}]}
        try:
            self._format.stub(
                [QUESTION, calling, {**STUB_RESULT, "tool_call_id": written}], [STUB_TOOL], True
            )
        except AjetError:
            return bool(_USUAL_ID.fullmatch(written))
        return True

    def reader(
        self, prompt: list[int], tools: Sequence[Message] = (), *, goes_on: bool = False
    ) -> AnswerReader | None:
        """Reads an answer while it is sampled, with the result that `parse` gives at the end; None if nothing is
        known before the end. Raises nothing."""
        answers = self._going_on if goes_on else self._answers
        return None if self._cleans_up else answers.reader(prompt, tools if self._reads_calls else ())

    def text_reader(self) -> AnswerReader | None:
        """Reads a text that is not a chat's answer, up to the token that ends it."""
        return None if self._cleans_up else self._text.reader([], ())

    def text(self, completion: list[int]) -> str:
        """A text that is not a chat's answer, up to the token that ends it."""
        return self._decode_inside(self._upto_stop(completion))

    def spelling(
        self, completion: list[int], first: int, content: str | None, stops: tuple[str, ...], goes_on: bool
    ) -> dict[int, str]:
        """Which ids of an answer spell its ``content``, from number ``first`` on and before the token or text that ends it; all of
        these if the content is None, or no piece of their text. The text of each by its number."""
        ids = self._upto_stop(completion)
        decode = self._decode_inside if first or goes_on else self._decode
        text = decode(ids[first:])
        text = text[: stop_at(text, stops)]
        at = -1 if content is None else text.rfind(content)
        begin, end = (at, at + len(content or "")) if at >= 0 else (0, len(text))

        def spelled(number: int) -> str:
            return decode(ids[first:number])

        numbers = range(first, len(ids) + 1)
        before = bisect_left(numbers, True, key=lambda n: len(spelled(n)) > begin) - 1
        until = bisect_left(numbers, True, key=lambda n: spelled(n).startswith(text[:end]))
        inside = {n: self._decode_inside([ids[n]]) for n in numbers[before:until]}
        return inside if goes_on or 0 not in inside else inside | {0: self._decode([ids[0]])}

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
        try:
            return self._format.stub([QUESTION], [STUB_TOOL], True) != self._format.stub([QUESTION], [], True)
        except AjetError:  # refused, so not left out without an error
            return True

    @cached_property
    def calls_fault(self) -> str:
        """Why a request with tools cannot be answered: the model's calls cannot be read. Empty if they can, or if the user
        wants them as text."""
        if self._harmony or self._found.reader or not self._reads_calls or not self.shows_tools:
            return ""
        return (
            f"AgentJet cannot read how {self.name} writes tool calls; tried: {'; '.join(self._found.tried)}. Show one call in "
            "rollout.call_example, or set rollout.tool_calls: text to get calls as text"
        )

    @property
    def found(self) -> FoundReader:
        """How tool calls are read."""
        return self._found

    @property
    def shape(self) -> AnswerShape:
        """What surrounds answers."""
        return self._shape

    # ---------------------------------------------------------------- parts

    def _find_reader(self, example: str, control: Any) -> FoundReader:
        shape = self._shape

        def write(calls: Sequence[ReadCall], said: str) -> str:
            functions = [
                {
                    "id": c.id or f"call{n:05}",
                    "type": "function",
                    "function": {"name": c.name, "arguments": dict(c.arguments)},
                }
                for n, c in enumerate(calls)
            ]
            tools = [{**STUB_TOOL, "function": {**STUB_TOOL["function"], "name": c.name}} for c in calls]
            message = {"role": "assistant", "content": said, "tool_calls": functions}
            text = self._format.stub([QUESTION, message], tools, False).partition(ASKED)[2]
            return shape.upto_end(text, control)

        def parse(reader: CallReader, text: str, tools: Sequence[Message]) -> Calls:
            text = without_header(text, shape.header, control)
            answers = self._marked(shape, reader)
            opened = shape.thoughts is not None and shape.thoughts[1] in text and answers.opened(shape.header)
            parsed = answers.parse_text(text, opened, tools)[0]
            calls = (ReadCall(name, json.loads(arguments)) for name, arguments in parsed.tool_calls)
            return Calls(parsed.content, tuple(calls))

        return find_reader(self.tokenizer, write, shape, control, example, self.shows_tools, parse)

    def _marked(
        self, shape: AnswerShape, reader: CallReader | None, *, inside: bool = False
    ) -> MarkedAnswers:
        decode, before = (self._decode_inside, self._letter) if inside else (self._decode, [])
        return MarkedAnswers(decode, self.tokenizer, shape, reader, self.stop_token_ids, before)

    @cached_property
    def _cleans_up(self) -> bool:
        """Whether decoding removes spaces that it produced before."""
        ids = list(self.tokenizer.encode("a .", add_special_tokens=False))
        return self._decode(ids) != str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def _upto_stop(self, ids: list[int]) -> list[int]:
        return ids[: min((ids.index(stop) for stop in self.stop_token_ids if stop in ids), default=len(ids))]

    def _decode(self, ids: list[int]) -> str:
        known = self.vision.plain(ids) if self.vision else ids
        return str(self.tokenizer.decode(known, skip_special_tokens=False)) if ids else ""

    @cached_property
    def _letter(self) -> list[int]:
        return self.prefill_ids("a")

    def _decode_inside(self, ids: list[int]) -> str:
        """The text of ids within a text: some tokenizers, such as Llama 2's, strip the space with which a text begins."""
        return self._decode([*self._letter, *ids])[len(self._decode(self._letter)) :]


def _eos(tokenizer: Any) -> list[int]:
    eos = getattr(tokenizer, "eos_token_id", None)
    return [i for i in (eos if isinstance(eos, list | tuple) else [eos]) if i is not None]


def generation_stops(config: Path) -> list[int]:
    """The tokens that end an answer by a model's ``generation_config.json``; none if there is no such file."""
    try:
        eos = json.loads(config.read_text()).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        return []
    return [i for i in (eos if isinstance(eos, list) else [eos]) if isinstance(i, int)]


def _spelled(calls: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, canonical_tool_arguments(arguments)) for name, arguments in calls]


def _missing_in(text: str, answer: Message) -> list[str]:
    """What a text lacks of an answer besides its thoughts and space."""
    said = spoken(answer).strip()
    missing = [] if said in text else ["the text"]
    names = [call["function"]["name"] for call in answer.get("tool_calls") or ()]
    calls = text.replace(said, "", 1)  # which may tell of a call
    return [*missing, *(f"the call of {n}" for n in dict.fromkeys(names) if calls.count(n) < names.count(n))]
