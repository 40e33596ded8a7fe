"""A trace: one reply of the explorer, and what became of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.interfaces.engine import Float32, Int32
from ajet_online.schema import TraceState

Message = Mapping[str, Any]
INTEGERS, FLOATS = "<i4", "<f4"
"""Types of the arrays in the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A reply. ``prompt`` int32[P] has the tokens between the parent's reply and this one, or all tokens without a parent;
    ``tokens`` int32[T], ``logprobs`` float32[T] and ``versions`` int32[T], of the weights, are those of the reply."""

    id: str
    """What clients call the reply in their feedback."""
    at: float
    """When it was recorded, in seconds since 1970."""
    key: str
    """Name of the API key, whose conversations no other key continues."""
    agent: str
    target: str
    run: str | None = None
    """What the client called the run of the agent that the reply belongs to (`ajet_online.keys`)."""
    conversation: str
    """The first reply of its chain of parents."""
    parent: str | None
    """The reply whose stored tokens the prompt continues."""
    chat: str = ""
    """A hash of the messages up to the reply, by which the next request finds it; "" for a reply to plain text, or without
    tokens."""
    prompt: Int32
    tokens: Int32
    logprobs: Float32
    versions: Int32
    temperature: float
    trained: bool
    """False for replies that are recorded but never trained: to greedy calls, or without tokens."""
    finish_reason: str
    messages: Sequence[Message]
    """The prompt's messages after the parent's reply. The last one has ``prefix: true`` if the reply continues it."""
    answer: Message
    tools: Sequence[Message] = ()
    state: TraceState = TraceState.RECORDED
    task_id: str | None = None
    run_id: str | None = None
    reward: float | None = None
    rated_at: float | None = None
    """When it got its feedback, in seconds since 1970."""
    comment: str | None = None
    correction: str | None = None
    """The answer that a user would have preferred."""
    step: int | None = None
    """The version of the weights that was trained with it."""
    reason: str | None = None
    """Why it was discarded."""


def without_tokens(trace: Trace) -> Trace:
    """A trace that only tells what was said: nothing continues from its tokens, and it is never trained."""
    return replace(
        trace,
        chat="",
        trained=False,
        prompt=trace.prompt[:0],
        tokens=trace.tokens[:0],
        logprobs=trace.logprobs[:0],
        versions=trace.versions[:1],
    )


def to_row(trace: Trace) -> dict[str, Any]:
    """The columns of a new trace."""
    first = int(trace.versions.min()) if len(trace.versions) else 0
    same = bool((trace.versions == first).all())
    return {
        "id": trace.id,
        "at": trace.at,
        "key": trace.key,
        "agent": trace.agent,
        "target": trace.target,
        "run": trace.run,
        "conversation": trace.conversation,
        "parent": trace.parent,
        "chat": trace.chat,
        "version": first,
        "prompt": _pack(trace.prompt, INTEGERS),
        "tokens": _pack(trace.tokens, INTEGERS),
        "logprobs": _pack(trace.logprobs, FLOATS),
        "versions": None if same else _pack(trace.versions, INTEGERS),
        "temperature": trace.temperature,
        "trained": trace.trained,
        "finish_reason": trace.finish_reason,
        "messages": to_text(list(trace.messages)),
        "answer": to_text(trace.answer),
        "tools": hash_of(trace.tools) if trace.tools else None,
    }


def from_row(row: Mapping[Any, Any]) -> Trace:
    """The trace of a row, joined with the text of its tools."""
    tokens = _unpack(row["tokens"], INTEGERS)
    same = row["versions"] is None
    own = (
        "id",
        "at",
        "key",
        "agent",
        "target",
        "run",
        "conversation",
        "parent",
        "chat",
        "temperature",
        "trained",
        "finish_reason",
    )
    later = ("task_id", "run_id", "reward", "rated_at", "comment", "correction", "step", "reason")
    return Trace(
        **{name: row[name] for name in (*own, *later)},
        prompt=_unpack(row["prompt"], INTEGERS),
        tokens=tokens,
        logprobs=_unpack(row["logprobs"], FLOATS),
        versions=np.full(len(tokens), row["version"], np.int32)
        if same
        else _unpack(row["versions"], INTEGERS),
        messages=json.loads(row["messages"]),
        answer=json.loads(row["answer"]),
        tools=json.loads(row["tools_text"]) if row["tools_text"] else (),
        state=TraceState(row["state"]),
    )


def to_json(trace: Trace) -> dict[str, Any]:
    """A trace for programs that read JSON; arrays are lists."""
    fields = {name: getattr(trace, name) for name in trace.__slots__}
    arrays = {name: value.tolist() for name, value in fields.items() if isinstance(value, np.ndarray)}
    return {**fields, **arrays, "state": trace.state.name.lower()}


def hash_of(tools: Sequence[Message]) -> str:
    """The key of a list of tools."""
    return hashlib.sha256(to_text(list(tools)).encode()).hexdigest()


def to_text(value: Any) -> str:
    """JSON in ASCII: PostgreSQL stores neither zero bytes nor lone surrogates."""
    return json.dumps(value)


def _pack(array: NDArray[Any], kind: str) -> bytes:
    return array.astype(kind).tobytes()


def _unpack(data: bytes, kind: str) -> NDArray[Any]:
    return np.frombuffer(data, kind).astype(kind[1:])
