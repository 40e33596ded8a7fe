"""What the chat template writes after an earlier prompt, once the answer and more messages follow.

The engine's next prompt is the stored ids of the last one, the sampled ids, and this. So the text of the longer
chat must begin with the text of the earlier prompt. Every call is checked: with the proof of
`ajet.chat.incremental` if the template has one, else by rendering and comparing both complete chats.
"""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ajet.chat.templates import Template
from ajet.types import AjetError

if TYPE_CHECKING:
    from ajet.chat.incremental import IncrementalTemplate, Rendered

Message = Mapping[str, Any]

log = logging.getLogger("ajet")

THINKING = "template drops thinking"
TOOLS = "template moves tools"
REWRITTEN = "template rewrites history"

_AROUND = 40
"""Characters shown on each side of a difference."""
_OPENED = re.compile(r"<think>\s*(</think>\s*)?\Z")
_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Written:
    """How a prompt was written: what is needed to continue it."""

    times: tuple[str, ...]
    """The times that the template could have written just before."""
    steps: Rendered | None
    """None if the template is not proven."""

    def copied(self) -> Written:
        """A copy for a chat that must not see how other chats continue."""
        return replace(self, steps=self.steps.copied() if self.steps else None)


@dataclass(frozen=True, slots=True)
class Rest:
    """What follows the text of a prompt: the answer as the template writes it, and all after it."""

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


class Texts(Protocol):
    """Chats as text that distinguishes what the chat format wrote from what the messages contained."""

    def text(self, messages: Sequence[Message], tools: Sequence[Message]) -> str:
        """A chat up to where the assistant begins. Raises AjetError if the format refuses it."""
        ...

    def show(self, text: str) -> str:
        """The text as a model reads it."""
        ...

    def ids(self, text: str) -> list[int]:
        """Tokens of a text from the middle of a chat."""
        ...

    def ends(self, text: str) -> list[int]:
        """Positions of format tokens at which an answer may end."""
        ...


class ByTemplate:
    """The texts of a chat template; see `Texts`."""

    def __init__(self, template: Template) -> None:
        self.text = template.text
        self.show = template.encoder.show
        self._encoder = template.encoder

    def ids(self, text: str) -> list[int]:
        return self._encoder.encode(text, inside=True)

    def ends(self, text: str) -> list[int]:
        return [found.start() for found in self._encoder.control.finditer(text)]


class ByTokens:
    """The chats of a renderer that writes tokens: each character represents the token id of its code point. See
    `Texts`."""

    def __init__(
        self,
        render: Callable[[Sequence[Message], Sequence[Message]], Sequence[int]],
        decode: Callable[[list[int]], str],
        stops: Sequence[int],
    ) -> None:
        self._render, self._decode = render, decode
        self._stops = re.compile("|".join(re.escape(chr(stop)) for stop in stops) or "(?!)")

    def text(self, messages: Sequence[Message], tools: Sequence[Message]) -> str:
        return "".join(map(chr, self._render(messages, tools)))

    def show(self, text: str) -> str:
        return self._decode(self.ids(text))

    def ids(self, text: str) -> list[int]:
        return list(map(ord, text))

    def ends(self, text: str) -> list[int]:
        return [found.start() for found in self._stops.finditer(text)]


class Continuing:
    """Renders chats with a template, and longer ones from shorter ones if that is proven to be equivalent."""

    def __init__(self, texts: Texts, template: Template | None) -> None:
        self._texts, self._template = texts, template
        self._incremental: IncrementalTemplate | None = None
        if template is None:
            return
        from ajet.chat.incremental import prove

        names = _other_names_of_reasoning(template)
        if names is not None:
            self._names = names
            self._incremental = prove(template.source, template.constants())

    @property
    def proven(self) -> bool:
        """Whether longer chats need no complete rendering."""
        return self._proof() is not None

    def _proof(self) -> IncrementalTemplate | None:
        # Read once, because another thread may disprove it meanwhile.
        proof = self._incremental
        return proof if proof and proof.proven else None

    def times(self) -> tuple[str, ...]:
        """The times that the template can write now."""
        return self._template.times() if self._template else ()

    def begin(self, messages: Sequence[Message], tools: Sequence[Message]) -> tuple[str, Written]:
        """A chat as text, and what is needed to continue it. Raises AjetError if the template refuses it."""
        times = self.times()
        text = self._texts.text(messages, tools)
        proof, only_text = self._proof(), Written(times, None)
        if proof is None:
            return text, only_text
        assert self._template
        try:
            found = proof.render(self._prepared(messages), self._template.hidden(tools))
            found = found and (self._template.marked(found[0], messages), found[1])
        except Exception:  # the template is foreign code
            return text, only_text
        if found is None:
            return text, only_text
        if found[0] != text:
            if self.times() == times:  # another environment than the tokenizer's
                log.warning(
                    "the tokenizer of %r renders a chat differently from its chat template alone; from now on the cost of "
                    "each call grows with the length of its chat",
                    getattr(self._template.tokenizer, "name_or_path", "the model"),
                )
                self._incremental = None
            return text, only_text
        return text, Written(times, found[1])

    def rest(
        self,
        earlier: Written | None,
        whole: Callable[[], Sequence[Message]],
        more: Sequence[Message],
        count: int,
        tools: Sequence[Message],
        keep_thinking: bool,
    ) -> Rest:
        """What follows the prompt of ``count`` messages when there are ``more``. ``whole`` returns all of them, and
        is called only if the proof does not decide. With ``keep_thinking``, reasoning that the template leaves out
        of the longer chat may stay. Raises Changed, and AjetError if the template refuses the chat."""
        found = self._by_proof(earlier, more, count) if earlier else None
        found = found or self._by_comparing(whole(), count, tools, keep_thinking)
        # Both compare what the template writes now. The clock is read after them, so that no change is missed.
        now = self.times()
        if earlier and earlier.times != now:
            raise Changed(REWRITTEN, "; ".join(earlier.times), "; ".join(now))
        return found

    def _by_proof(self, earlier: Written, more: Sequence[Message], count: int) -> Rest | None:
        proof, known = self._proof(), earlier.steps
        if proof is None or known is None or known.count != count:
            return None
        assert self._template
        try:
            found = proof.go_on(known, self._prepared(more))
            found = found and (self._template.marked(found[0], more), found[1])
        except Exception:  # the template is foreign code; the complete rendering reports what it refuses
            return None
        if found is None or not found[0].startswith(known.header):
            return None
        text, steps = found
        return Rest(text[len(known.header) :], Written(earlier.times, steps))

    def _by_comparing(
        self, whole: Sequence[Message], count: int, tools: Sequence[Message], keep_thinking: bool
    ) -> Rest:
        after, written = self.begin(whole, tools)
        before = self._texts.text(whole[:count], tools)
        if after.startswith(before):
            return Rest(after[len(before) :], written)
        if keep_thinking:
            rest = self._rest_without_thoughts(whole, count, tools)
            if rest is not None:
                return Rest(rest, written, drops_thinking=True)
        raise Changed(self._cause(whole, count, tools), *self._excerpts(before, after))

    def _rest_without_thoughts(
        self, whole: Sequence[Message], count: int, tools: Sequence[Message]
    ) -> str | None:
        """What follows the prompt if no message has reasoning; None if there is some other difference."""
        thoughtless = [_without_thoughts(message) for message in whole]
        before = _OPENED.sub("", self._texts.text(thoughtless[:count], tools))
        after = self._texts.text(thoughtless, tools)
        return after[len(before) :] if after.startswith(before) else None

    def _cause(self, whole: Sequence[Message], count: int, tools: Sequence[Message]) -> str:
        """What makes the template write earlier messages differently: the part without which it does not."""
        if self._rest_without_thoughts(whole, count, tools) is not None:
            return THINKING
        try:
            without_tools = [self._texts.text(chat, ()) for chat in (whole[:count], whole)]
        except AjetError:
            return REWRITTEN
        moves_tools = bool(tools) and without_tools[1].startswith(without_tools[0])
        return TOOLS if moves_tools else REWRITTEN

    def _excerpts(self, before: str, after: str) -> tuple[str, str]:
        """Both texts around the first character that differs."""
        shorter = range(min(len(before), len(after)))
        at = bisect_left(shorter, True, key=lambda end: before[: end + 1] != after[: end + 1])
        window = slice(max(0, at - _AROUND), at + _AROUND)
        return self._texts.show(before[window]), self._texts.show(after[window])

    def _prepared(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages in the form that the template gets."""
        assert self._template
        prepared = self._template.prepared(messages)
        return [
            {**dict.fromkeys(self._names, m["reasoning_content"]), **m} if "reasoning_content" in m else m
            for m in prepared
        ]


def _other_names_of_reasoning(template: Template) -> list[str] | None:
    """Further names under which the tokenizer passes reasoning to templates; None if it changes messages in other
    ways before the template sees them."""
    message = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    try:
        seen = json.loads(template.of_messages("{{ messages[0] | tojson }}", [message]))
    except (AjetError, ValueError):
        return None
    names = [name for name in seen if name not in message]
    expected = {**dict.fromkeys(names, "b"), **message}
    return names if list(seen.items()) == list(expected.items()) else None


def _without_thoughts(message: Message) -> dict[str, Any]:
    plain = {k: v for k, v in message.items() if k != "reasoning_content"}
    if plain.get("role") == "assistant" and "<think>" in (plain.get("content") or ""):
        plain["content"] = _THOUGHTS.sub("", plain["content"]).lstrip("\n")
    return plain
