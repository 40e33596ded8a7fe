"""Rendered text to tokens. Special tokens count only where the chat format wrote them.

In a message their texts are plain text, so that a message cannot forge a turn: before a chat is rendered, marks that no
real chat contains (Unicode noncharacters) replace them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.chat.vision import Vision

_LITERAL, SAID, THOUGHT, ASKED = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
"""Marks: a special token's text in a message, and in stubs the answer, its reasoning, the question."""
IMAGE = "\ufdd4"
"""The mark around the reference of an image, directly after the text with which the template marks images."""
_REF = re.compile(f"{IMAGE}(sha256:[0-9a-f]{{64}}){IMAGE}")
_FIRST = 0xF0000
"""Private-use characters after `_LITERAL` number the texts that it replaces."""
_HIDDEN = re.compile(f"{_LITERAL}[\U000f0000-\U000ffffd]")
_SHORT, _MANY_SHORT = 256, 1024
"""Characters of texts whose ids are kept, and how many are: the episodes of a group often get the same answers from tools."""
_ANCHORS = ("\n", "a", ".")
"""Texts after which tokenizers add no prefix space of their own."""


def plain_copy(tokenizer: Any) -> Any:
    """A copy of a tokenizer to which special tokens are plain text."""
    plain = deepcopy(tokenizer)
    plain.split_special_tokens = True
    return unlimited(plain)


def unlimited(tokenizer: Any) -> Any:
    """A tokenizer that encodes the same without transformers' warning about long texts: an episode that is too long says so itself."""
    same = copy(tokenizer)
    same.model_max_length = sys.maxsize
    return same


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of some texts."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


class Encoder:
    """Encodes rendered chats. ``control`` are the tokens that structure a chat: they count where the template
    wrote them; in values that `hide` has processed they are plain text. So are ``around``, tokens around calls and results, in
    tools and their results."""

    def __init__(
        self,
        tokenizer: Any,
        plain: Any,
        control: Sequence[str],
        around: Sequence[str] = (),
        vision: Vision | None = None,
    ) -> None:
        self.tokenizer = unlimited(tokenizer)
        self._vision = vision
        self.ids: dict[str, int] = {t: tokenizer.convert_tokens_to_ids(t) for t in control}
        self.control = any_of(control)
        self._plain = plain
        self._head: Any = cache(lambda encode, anchor: encode(anchor))
        self._short: Any = lru_cache(_MANY_SHORT)(
            lambda text: tuple(self.tokenizer.encode(text, add_special_tokens=False))
        )
        unknown = getattr(tokenizer, "unk_token_id", None)
        self._forbidden = frozenset(self.ids.values()) - {unknown}
        always = [*control, _LITERAL, SAID, THOUGHT, ASKED, IMAGE]
        self._texts = [*always, *around]
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._hides, self._hides_in_results = any_of(always), any_of(self._texts)
        self._hidden_around = re.compile(f"({any_of(self._mark(text) for text in around).pattern})")
        token = next((t for t, i in self.ids.items() if i in self._forbidden), "")
        self._same_after_control = self._encode(f"{token}a")[1:] == self._encode("a")

    def hide(self, value: Any, result: bool = False) -> Any:
        """A copy of a message or tool in which marks replace the texts of control tokens, with ``result`` also those around calls and
        results."""
        if isinstance(value, str):
            hides = self._hides_in_results if result else self._hides
            return hides.sub(lambda m: self._mark(m[0]), value)
        if isinstance(value, Mapping):
            return {self.hide(k, result): self.hide(v, result) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(v, result) for v in value]
        return value

    def _mark(self, text: str) -> str:
        return _LITERAL + chr(_FIRST + self._numbers[text])

    def show(self, text: str) -> str:
        """Rendered text with the marks replaced by their texts."""
        text = _REF.sub(lambda m: f"[{m[1][7:15]}]", text) if IMAGE in text else text
        return _HIDDEN.sub(lambda m: self._texts[ord(m[0][1]) - _FIRST], text)

    def encode(self, text: str, *, inside: bool = False) -> list[int]:
        """Ids of rendered text; ``inside``: the text is in the middle of a chat, not at its beginning."""
        if IMAGE in text and self._vision:
            return self._with_images(text, self._vision, inside)
        if _LITERAL not in text:
            middle = inside and not self.control.match(text)
            ids = self._middle(self._encode, text) if middle else self._encode(text)
            written = sum(self.ids[t] in self._forbidden for t in self.control.findall(text))
            # More than were written: the tokenizer's normaliser has turned other text into some.
            if sum(map(ids.count, self._forbidden.intersection(ids))) == written:
                return ids
        encoded: list[int] = []
        end = 0
        for token in self.control.finditer(text):
            encoded += self._segment(text[end : token.start()], inside or end > 0, end > 0)
            encoded.append(self.ids[token[0]])
            end = token.end()
        return encoded + self._segment(text[end:], inside or end > 0, end > 0)

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
        return self._safe(encodable(text), middle=True)

    def _segment(self, text: str, inside: bool, after_control: bool) -> list[int]:
        """Ids of the text between two control tokens that the template wrote."""
        ids: list[int] = []
        middle = inside and not (after_control and self._same_after_control)
        for number, part in enumerate(self._hidden_around.split(text)):
            shown = self.show(part)
            # A token's text letter by letter, or it would be the token again.
            for said in shown if number % 2 else [shown]:
                ids += self._safe(said, middle=middle or bool(ids))
        return ids

    def _safe(self, text: str, middle: bool) -> list[int]:
        ids = self._middle(self._split, text) if middle else self._split(text)
        if self._forbidden.isdisjoint(ids):
            return ids
        # Tokens that only the template makes special: split their texts.
        literals, (first, *others) = self.control.findall(text), self.control.split(text)
        words = [first, *(w for t, other in zip(literals, others, strict=True) for w in (*t, other))]
        ids = [i for word in words if word for i in self._middle(self._split, word)]
        if not self._forbidden.isdisjoint(ids):  # the tokenizer's normaliser makes some of other letters
            ids = [
                i for letter in text for i in self._middle(self._split, letter) if i not in self._forbidden
            ]
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


def encodable(value: Any) -> Any:
    """A copy without lone surrogates, which no tokenizer accepts."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, Mapping):
        return {encodable(k): encodable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(v) for v in value]
    return value
