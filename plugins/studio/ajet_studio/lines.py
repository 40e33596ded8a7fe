"""Lines of a journal, read without what the index does not need: the index reads gigabytes of them.

The fields are those of `ajet.rollout.journal`. msgspec skips all others; base64 texts are only measured, not decoded.
"""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

import msgspec

Parsed = TypeVar("Parsed")


class _Tokens(msgspec.Struct, gc=False):
    logprobs: msgspec.Raw
    trained: bool = False


class _CallOfLine(msgspec.Struct, gc=False):
    agent: str = ""
    target: str = ""
    tokens: _Tokens | None = None


class _Break(msgspec.Struct, gc=False):
    cause: str = ""


class Line(msgspec.Struct, gc=False):
    """What the index reads of a line: of an episode, or of a mark (type ``superseded`` or ``replaced``)."""

    type: str
    step: int = 0
    id: str = ""
    phase: str = ""
    task: str = ""
    member: int = 0
    attempt: int = 0
    failure: str | None = None
    reward: float | None = None
    rewards: dict[str, float | None] = {}
    is_success: bool | None = None
    counters: dict[str, int] = {}
    started: float = 0.0
    seconds: float | None = None
    breaks: list[_Break] = []
    trees: dict[str, list[tuple[int, int, msgspec.Raw]]] = {}
    calls: list[_CallOfLine] = []
    from_step: int = 0
    to_step: int | None = None
    keep: list[str] = []
    ids: list[str] = []

    @property
    def tokens(self) -> int:
        """Tokens of the episode, those that calls share counted once."""
        return sum(_numbers(branch[2]) for tree in self.trees.values() for branch in tree)

    @property
    def sampled(self) -> int:
        """Tokens that its calls sampled."""
        return sum(_numbers(call.tokens.logprobs) for call in self.calls if call.tokens)

    @property
    def trained(self) -> int:
        """Sampled tokens of calls that are trained."""
        return sum(_numbers(c.tokens.logprobs) for c in self.calls if c.tokens and c.tokens.trained)

    def agents(self) -> list[str]:
        """The agents that made calls, in the order of their first ones."""
        return list(dict.fromkeys(call.agent for call in self.calls))

    def targets(self) -> list[str]:
        """The targets of its calls."""
        return list(dict.fromkeys(call.target for call in self.calls))


class Times(msgspec.Struct, gc=False):
    """What a line of an episode says of when it ran; zeros if it says nothing."""

    type: str
    started: float = 0.0
    seconds: float | None = None


class Said(msgspec.Struct, gc=False):
    """A message of a chat, as far as a search looks into it."""

    role: str = ""
    content: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None


class Words(msgspec.Struct, gc=False):
    """The part of an episode's line that a search looks into."""

    task: str = ""
    given: Any = None
    response: Any = None
    chats: dict[str, list[tuple[int, Said]]] = {}


class SecondVerdict(msgspec.Struct, gc=False):
    """What another judge said later; without a reward, it failed."""

    reward: float | None = None
    failure: str | None = None


class SecondLine(msgspec.Struct, gc=False):
    """An episode's line of the file that `ajet rejudge` writes. Without ``judged``, the episode could not be judged again."""

    type: str
    id: str = ""
    judged: SecondVerdict | None = None
    unknown: str = ""
    changed: bool = False
    push: tuple[float, float] | None = None
    """The sum of weight times advantage over its tokens, as trained and with the later verdicts."""


class NotALine(ValueError):
    """A line that is not one of this version's journal, with the reason."""


_LINE = msgspec.json.Decoder(Line)
_WORDS = msgspec.json.Decoder(Words)
_TIMES = msgspec.json.Decoder(Times)
_SECOND = msgspec.json.Decoder(SecondLine)


def parse_line(raw: bytes | memoryview) -> Line:
    """The index's part of a line. Raises NotALine."""
    return _parsed(_LINE, raw)


def parse_words(raw: bytes | memoryview) -> Words:
    """The text of an episode's line. Raises NotALine."""
    return _parsed(_WORDS, raw)


def parse_times(raw: bytes) -> Times:
    """When the episode of a line ran. Raises NotALine."""
    return _parsed(_TIMES, raw)


def parse_second(raw: bytes) -> SecondLine:
    """A line of a second judge's file. Raises NotALine."""
    return _parsed(_SECOND, raw)


def parse_whole(raw: bytes) -> Any:
    """A whole line as Python's own types, lone surrogates and NaN included. Raises NotALine."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return json.loads(raw.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise NotALine(f"not JSON ({error})") from None


def finite(value: Any) -> Any:
    """A value of JSON with None in the place of each NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return value


def _parsed(decoder: msgspec.json.Decoder[Parsed], raw: bytes | memoryview) -> Parsed:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise NotALine(f"not a line of this version's journal ({error})") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:  # Python writes NaN and lone surrogates, which JSON has not
        value = finite(json.loads(bytes(raw).decode("utf-8", "replace")))
        return decoder.decode(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except msgspec.ValidationError as error:
        raise NotALine(f"not a line of this version's journal ({error})") from None
    except (ValueError, RecursionError) as error:
        raise NotALine(f"not JSON ({error})") from None


def _numbers(packed: msgspec.Raw) -> int:
    """How many four-byte numbers a quoted base64 text encodes."""
    text = memoryview(packed)
    padding = bytes(text[-3:-1]).count(b"=")
    return ((len(text) - 2) * 3 // 4 - padding) // 4 if len(text) > 2 else 0
