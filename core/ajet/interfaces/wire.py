"""A wire: an HTTP format of LLM requests.

A wire turns the body of a request into a `ChatRequest`, and answers into its own format, complete or as server-sent events. It
knows nothing of engines, episodes or sockets. A plugin returns its wires from the hook ``ajet_wires``; the built-in ones are in
`ajet.capture.wires`, and follow the same protocol.

A request that a wire cannot honour must not be answered as if it could: `Wire.parse` raises `Refused` for it, with a reason that
names the parameter. The functions below the protocol read the fields of a body in this way.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from ajet.types import AjetError, FinishReason

__all__ = [
    *("Wire", "PathWire", "Events", "ChatRequest", "Answer", "Piece", "Refused", "TooLong"),
    *("read_object", "text", "number", "flag", "mapping", "objects", "stops", "Faults", "invalid"),
    *("brief", "in_words", "sse"),
]


class Refused(AjetError):
    """A request that is answered with an error, in one line that the user's framework shows."""

    def __init__(self, message: str, *, code: str, status: int = 400, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retry_after = retry_after
        """Seconds after which the client may try again, if the status is one that it may try again after."""


class TooLong(Refused):
    """A request that the model's context does not hold. Each wire says it in the words of its API, which programs look for to
    shorten their history."""

    def __init__(self, what: str, tokens: int, most: int) -> None:
        super().__init__(
            f"{what}, but the model's context holds {most:,} with the answer; shorten the history or use a model with a longer "
            "context",
            code="context_length_exceeded",
        )
        self.tokens = tokens
        """Of the prompt, at least."""
        self.most = most
        """Maximum tokens of the prompt and the answer together."""


@dataclass(slots=True)
class ChatRequest:
    """A request of any wire. ``None`` means that the client did not set the field.

    It is not frozen because each field would cost three times as much, and every call creates one.
    """

    model: str
    messages: Sequence[Mapping[str, Any]]
    """In the chat completions form; the client's own objects where the wire is chat completions."""
    tools: Sequence[Mapping[str, Any]]
    """In the chat completions form."""
    told: Sequence[Mapping[str, Any]] = ()
    """Tools that some message describes, in the same form: the answer may call them, too, but the prompt does not list them."""
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    logprobs: bool = False
    """Whether the answer contains the logprob of each token of its text."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the model's chat template."""
    may_call: bool = True
    """Whether the answer may call tools. If not, they are in the prompt all the same, and the answer is text."""
    must_call: str | None = None
    """The answer must call a tool: this one, or any if empty."""
    one_call: bool = False
    """Whether the answer may call at most one tool."""
    json_schema: Mapping[str, Any] | None = None
    """The answer's text must be JSON that fits; an empty schema takes any JSON object."""
    continues: bool = False
    """Whether the answer continues the last message, which is the assistant's, instead of being a turn of its own."""
    after: str | None = None
    """Id of an earlier reply, whose chat the messages continue."""
    instructed: bool = False
    """Whether the first message is the request's own instructions, which hold for it alone: a request that continues its reply has
    others, or none."""
    prompt: str | Sequence[int] | None = None
    """Text or token ids to continue, instead of messages."""
    left_out: Sequence[str] = ()
    """What the prompt does without, in words for the user: tools that only the API's own host can run, thoughts that are
    encrypted. Counted by `Session`."""
    only_count: bool = False
    """Whether only the tokens of the prompt are asked for: nothing is sampled or recorded."""
    size: int = 0
    """Bytes of the request's body: at least as many as its texts have characters."""
    apart: bool = False
    """Whether other clients wait for the loop, so that slow work runs off the loop."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice: the assistant message in the chat completions form, and what it cost in tokens."""

    message: Mapping[str, Any]
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    logprobs: tuple[tuple[str, float], ...] | None = None
    """(text, logprob) of each token of the text, if the request asked for them; beside calls, of all tokens after the thoughts."""
    reasoning_tokens: int | None = None
    """How many of the completion's tokens are reasoning, including its markers; None if they were not counted."""
    stop: str | None = None
    """The stop string of the request that ended the answer, if one did."""
    last_reasoning: str = field(default="", compare=False)
    """The last piece of reasoning that was streamed."""
    misfit: Refused | None = field(default=None, compare=False)
    """Why it does not have the form that the request wants."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of a streamed answer. The pieces of a choice make up its ``content`` and its
    ``reasoning_content``; tool calls are sent complete, at the end."""

    choice: int
    kind: Literal["content", "reasoning"]
    text: str


class Events(Protocol):
    """Encodes one streamed reply as server-sent events."""

    def begin(self) -> bytes:
        """What comes before the first piece; empty if nothing does."""
        ...

    def piece(self, piece: Piece) -> bytes:
        """Some text, as soon as it is sampled."""
        ...

    def end(self, answers: Sequence[Answer]) -> bytes:
        """Tool calls, finish reasons, usage, and whatever closes a stream."""
        ...

    def fail(self, error: Refused) -> bytes:
        """An error after the stream has begun."""
        ...


class Wire(Protocol):
    """An HTTP format: which requests it covers, how to parse them, and how to write answers."""

    path: str
    """The end of the URL path, such as ``/chat/completions``."""

    def parse(self, body: bytes) -> ChatRequest:
        """Raises Refused, naming each parameter that cannot be honoured."""
        ...

    def reply(self, request: ChatRequest, answers: Sequence[Answer], reply_id: str) -> dict[str, Any]:
        """The complete reply. ``reply_id`` is hexadecimal; the wire adds its format's prefix."""
        ...

    def events(self, request: ChatRequest, reply_id: str) -> Events:
        """Encodes the reply to a request with `ChatRequest.stream`."""
        ...

    def error(self, error: Refused) -> dict[str, Any]:
        """An error as the API's clients expect it. Its status is ``error.status``."""
        ...


@runtime_checkable
class PathWire(Wire, Protocol):
    """A wire of an API whose paths say what the bodies of others do, such as the name of the model."""

    def at(self, path: str) -> Wire:
        """The wire for requests to one URL path, which ends with `path`."""
        ...


MOST_CONTAINERS = 100_000
"""Maximum objects and lists of a body: its opening brackets are counted, including those in texts."""
MOST_VALUES = 1_000_000
"""Maximum values of a body: its commas are counted likewise."""
MOST_MEMBERS = 100_000
"""Maximum keys of all objects of a body, which take much longer to read than numbers of a list: texts before a colon are counted."""
_MEMBER = re.compile(rb'"\s*:')
MOST_STOPS = 64
"""Maximum stop texts: each is searched in every piece of an answer."""
_LONGEST = 60
"""Maximum characters of a client's value in an error, which is one line."""
_MOST_NAMED = 10
"""Maximum faults of a request that an error names."""
_OFF = {
    *("background", "bad_words", "continuous_usage_stats", "defer_loading", "documents", "echo", "functions"),
    *("frequency_penalty", "ignore_eos", "include_stop_str_in_output", "input_examples", "logit_bias"),
    *("logprobs", "mcp_servers", "min_p", "min_tokens", "presence_penalty", "return_token_ids"),
    *("return_tokens_as_token_ids", "stop_token_ids", "suffix", "top_k", "top_logprobs", "use_beam_search"),
}
"""Fields that ask for nothing where they are false, 0 or empty, because that is their default."""


class Faults:
    """Collects what a request asks for and is not supported, so that one error names all of it."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._hosted: dict[str, Any] = {}
        """Tools that the API's own host would run: their types, by their places."""
        self._left_out: dict[str, None] = {}

    @property
    def left_out(self) -> tuple[str, ...]:
        """See `ChatRequest.left_out`."""
        return tuple(self._left_out)

    def leave_out(self, what: str) -> None:
        """Note something that the prompt does without."""
        self._left_out[what] = None

    def hosted(self, where: str, kind: str) -> None:
        """Leave out a tool that the API's own host would run: a model may always do without a tool."""
        self._hosted[where] = kind
        self.leave_out(kind)

    def forced(self, name: str | None, tools: Sequence[Mapping[str, Any]]) -> None:
        """Refuse the tools that were left out if only they could be called: ``name`` must be, any tool if it is empty."""
        names = [tool["function"]["name"] for tool in tools]
        if name is not None and (name not in names if name else not names):
            for where, kind in self._hosted.items():
                self.parameter(where, kind)

    def parameter(self, name: str, value: Any = ...) -> None:
        """Add a parameter, or one value of it."""
        self._found.setdefault(name if value is ... else f"{name}={brief(value)}", "unsupported_parameter")

    def parameters(self, data: Mapping[str, Any], known: Collection[str], where: str = "") -> None:
        """Add all unknown parameters that ask for something. Who sends ``enable_thinking: false`` does not get it."""
        for name in sorted(data.keys() - known):
            if data[name] or (data[name] is not None and name not in _OFF):
                is_plain = len(name) <= _LONGEST and name.isidentifier()
                self.parameter(where + (name if is_plain else brief(name)))

    def content(self, where: str, kind: Any) -> None:
        """Add a part of a message that is not text."""
        self._found.setdefault(f"{where}={brief(kind)}", "unsupported_content")

    def refuse(self, supported: str) -> None:
        """Raises Refused if there is any; ``supported`` tells the user what this wire can do."""
        if self._found:
            codes = set(self._found.values())
            code = codes.pop() if len(codes) == 1 else "unsupported_parameter"
            names = ", ".join(itertools.islice(self._found, _MOST_NAMED))
            if (more := len(self._found) - _MOST_NAMED) > 0:
                names += f", … and {more:,} more"
            raise Refused(f"cannot honour {names} of this request; remove it ({supported})", code=code)


def invalid(reason: str) -> Refused:
    """A request that breaks the rules of its API."""
    return Refused(reason, code="invalid_request")


def brief(value: Any) -> str:
    """A client's value for an error: JSON, ASCII, one short line."""
    text = ""
    try:
        for part in json.JSONEncoder().iterencode(value):
            text += part
            if len(text) > _LONGEST:
                return f"{text[:_LONGEST]}…"
    except RecursionError:
        return "…"
    return text


def read_object(body: bytes) -> dict[str, Any]:
    """A request's JSON object without its null fields. Raises Refused, also for a body that would take long to
    read."""
    for what, most, marks in (("objects and lists", MOST_CONTAINERS, b"{["), ("values", MOST_VALUES, b",")):
        if len(body) > most and (count := sum(body.count(mark) for mark in marks)) > most:
            raise Refused(
                f"the request's body has {count:,} {what}; at most {most:,} are read",
                code="request_too_large",
                status=413,
            )
    if body.count(b":") > MOST_MEMBERS and any(itertools.islice(_MEMBER.finditer(body), MOST_MEMBERS, None)):
        raise Refused(
            f"the request's objects have more than {MOST_MEMBERS:,} keys; no more are read",
            code="request_too_large",
            status=413,
        )
    try:
        data = json.loads(body.decode())  # skips guessing the encoding
    except (ValueError, RecursionError) as error:
        raise Refused(f"the request body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise invalid("the request body must be a JSON object")
    return {k: v for k, v in data.items() if v is not None}


def number(
    data: Mapping[str, Any], name: str, kind: type, low: float | None = None, high: float | None = None
) -> Any:
    """A number of ``kind`` in its bounds (whole ones fit in 64 bits), or None."""
    value = data.get(name)
    if value is None:
        return None
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    ok = ok and (math.isfinite(value) if kind is float else value == int(value))
    if not ok or (low is not None and value < low) or (high is not None and value > high):
        raise invalid(f"{name} is {brief(value)}; expected {kind.__name__} in [{low}, {high}]")
    return kind(value)


def flag(data: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """True or false."""
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid(f"{name} is {brief(value)}; expected true or false")
    return value


def text(data: Mapping[str, Any], name: str, where: str = "") -> str:
    """A required text."""
    value = data.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}{name} must be text, not {brief(value)}")
    return value


def mapping(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object, empty if it is missing."""
    value = data.get(name)
    if value is not None and not isinstance(value, dict):
        raise invalid(f"{name} must be an object, not {brief(value)}")
    return value or {}


def objects(value: Any, name: str) -> list[Mapping[str, Any]]:
    """A list of objects, as it is."""
    if not isinstance(value, list) or [v for v in value if not isinstance(v, dict)]:
        raise invalid(f"{name} must be a list of objects")
    return value


def stops(value: Any, name: str = "stop") -> tuple[str, ...]:
    """The stop texts of a request: one, several or none."""
    texts = [value] if isinstance(value, str) else (value or [])
    if not isinstance(texts, list) or not all(isinstance(s, str) and s for s in texts):
        raise invalid(f"{name} must be text or a list of texts")
    if len(texts) > MOST_STOPS:
        raise invalid(f"{name} has {len(texts)} texts; at most {MOST_STOPS} are allowed")
    return tuple(texts)


def sse(data: Mapping[str, Any], event: str | None = None) -> bytes:
    """A server-sent event. ASCII, so that no text can break it."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def in_words(error: Refused, too_long: str) -> str:
    """The text of an error; where the prompt is too long, after the words that an API's clients look for."""
    if not isinstance(error, TooLong):
        return str(error)
    return f"{too_long.format(tokens=error.tokens, most=error.most, longest=error.most - 1)} ({error})"
