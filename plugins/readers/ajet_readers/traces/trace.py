"""The data that every source of traces yields: LLM calls, feedback, and traces made of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TraceFeedback:
    """Feedback on an answer. ``score`` is between 0 (bad) and 1 (good)."""

    score: float | None = None
    comment: str = ""
    correction: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """The run of a program that made calls, as a source names it; empty where it does not."""

    project: str = ""
    run: str = ""


UNKNOWN = Program()


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One request to a model and its answer, as messages of chat completions."""

    trace: str
    span: str
    started: float
    """Seconds since 1970; 0 if unknown."""
    messages: tuple[Message, ...]
    answer: Message | None
    model: str = ""
    failed: bool = False
    names: frozenset[str] = frozenset()
    """Other ids by which feedback may name the call: response id, conversation id."""
    feedback: tuple[TraceFeedback, ...] = ()
    program: Program = UNKNOWN


@dataclass(frozen=True, slots=True)
class CallTrace:
    """The calls of one trace in order of time, at least one, and the feedback on them."""

    id: str
    calls: tuple[TracedCall, ...]
    feedback: tuple[TraceFeedback, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The ids by which feedback may name the trace: its own, and those of its calls and responses."""
        return frozenset({self.id}).union(*({c.span} | c.names for c in self.calls))

    @property
    def query(self) -> str:
        """What the user asked: the last user message of the first call."""
        questions = [m for m in self.calls[0].messages if m.get("role") == "user"]
        return text_of(questions[-1]) if questions else ""

    @property
    def history(self) -> tuple[Message, ...]:
        """The chat up to the user's question, without the agent's own instructions."""
        messages = self.calls[0].messages
        last = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=-1)
        return tuple(m for m in messages[: last + 1] if m.get("role") not in ("system", "developer"))

    @property
    def response(self) -> str:
        """The text of the last answer that has one."""
        texts = [text_of(c.answer) for c in self.calls if c.answer is not None]
        return next((text for text in reversed(texts) if text), "")

    @property
    def tools(self) -> list[str]:
        """The tools that the answers call, by name, in the order of their first call."""
        calls = (call for c in self.calls for call in (c.answer or {}).get("tool_calls") or ())
        functions = (call.get("function") or {} for call in calls if isinstance(call, Mapping))
        return list(dict.fromkeys(str(function["name"]) for function in functions if function.get("name")))

    @property
    def failed(self) -> bool:
        """Whether the last call failed."""
        return self.calls[-1].failed

    @property
    def score(self) -> float | None:
        """The mean of the feedback's scores, 0 to 1; None if there are none."""
        scores = [f.score for f in self.feedback if f.score is not None]
        return sum(scores) / len(scores) if scores else None

    @property
    def correction(self) -> str:
        """The last answer that a user gave as a correction."""
        return next((f.correction for f in reversed(self.feedback) if f.correction), "")


@dataclass(slots=True)
class TraceContents:
    """The contents of a source: calls, and feedback with the ids of what it is about."""

    calls: list[TracedCall] = field(default_factory=list)
    feedback: list[tuple[frozenset[str], TraceFeedback]] = field(default_factory=list)
    others: int = 0
    """How many records are not chats, such as requests for embeddings."""


def assemble(contents: TraceContents) -> list[CallTrace]:
    """The traces of all calls, the oldest first. A call that occurs twice counts once."""
    by_trace: dict[str, dict[str, TracedCall]] = {}
    for call in contents.calls:
        if call.messages:
            by_trace.setdefault(call.trace, {}).setdefault(call.span, call)
    by_name: dict[str, list[TraceFeedback]] = {}
    for names, feedback in contents.feedback:
        for name in names:
            by_name.setdefault(name, []).append(feedback)
    traces = []
    for identity, calls in by_trace.items():
        ordered = tuple(sorted(calls.values(), key=lambda c: c.started))
        trace = CallTrace(identity, ordered)
        given = [f for c in ordered for f in c.feedback]
        for name in sorted(trace.names):
            given += [f for f in by_name.get(name, ()) if not any(f is g for g in given)]
        traces.append(replace(trace, feedback=tuple(given)))
    return sorted(traces, key=lambda t: (t.calls[0].started, t.id))


def with_feedback(
    contents: TraceContents, more: Iterable[tuple[frozenset[str], TraceFeedback]]
) -> TraceContents:
    """The same calls, with further feedback."""
    return replace(contents, feedback=[*contents.feedback, *more])


def text_of(message: Message | None) -> str:
    """The text of a message, its parts joined."""
    content = (message or {}).get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = [p.get("text") for p in content if isinstance(p, Mapping)]
        return "\n".join(p for p in parts if isinstance(p, str))
    return ""
