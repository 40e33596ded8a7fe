"""Wires: the HTTP formats of LLM requests, one file each behind one protocol.

A wire turns a request's body into a `ChatRequest`, and answers into its own format, complete or as
server-sent events. It knows nothing of engines, episodes or sockets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from ajet.types import AjetError, FinishReason


class Refused(AjetError):
    """A request that is answered with an error, in one line that the user's framework shows."""

    def __init__(self, message: str, *, code: str, status: int = 400, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retry_after = retry_after
        """Seconds after which the client may try again, if the status is one that it may try again after."""


SHORTER = "shorten the history or use a model with a longer context"


class TooLong(Refused):
    """A request that the model's context does not hold. Each wire says it in the words of its API, which programs look for to
    shorten their history."""

    def __init__(self, what: str, tokens: int, most: int) -> None:
        super().__init__(
            f"{what}, but the model's context holds {most:,} with the answer; {SHORTER}",
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

    def begin(self) -> bytes: ...

    def piece(self, piece: Piece) -> bytes: ...

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

    def events(self, request: ChatRequest, reply_id: str) -> Events: ...

    def error(self, error: Refused) -> dict[str, Any]: ...


@runtime_checkable
class PathWire(Wire, Protocol):
    """A wire of an API whose paths say what the bodies of others do, such as the name of the model."""

    def at(self, path: str) -> Wire:
        """The wire for requests to one URL path, which ends with `path`."""
        ...
