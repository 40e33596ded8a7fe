"""LLM calls from spans of the OpenTelemetry conventions for generative AI."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ajet_readers.traces.feedback import Scale, read_feedback
from ajet_readers.traces.trace import UNKNOWN, Message, Program, TraceContents, TracedCall, text_of

EVALUATION = "gen_ai.evaluation.result"
DETAILS = "gen_ai.client.inference.operation.details"
_CALLS = ("chat", "generate_content", "text_completion", "completion")
_CONTENT = "gen_ai.event.content"
"""In older conventions, each message is an event of the span, with this attribute."""
_ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
_CHOICE = "gen_ai.choice"


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A span or a log event, from any format."""

    trace: str
    span: str
    name: str
    started: float
    attributes: Mapping[str, Any]
    failed: bool = False
    events: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    program: Program = UNKNOWN


def add_span(contents: TraceContents, span: TraceSpan, scale: Scale) -> None:
    """Add a span's call and feedback to ``contents``. Raises ValueError for messages or feedback that cannot be read."""
    attributes = dict(span.attributes)
    for name, fields in span.events:
        if name == DETAILS:
            attributes |= fields
        elif name == EVALUATION:
            add_evaluation(contents, span, fields, scale)
    if "gen_ai.input.messages" not in attributes:
        attributes = _agentscope_1(attributes) | attributes
    if "gen_ai.input.messages" not in attributes:
        attributes |= _older(attributes, span.events)
    operation = attributes.get("gen_ai.operation.name") or attributes.get("llm.request.type")
    if operation not in _CALLS or not attributes.get("gen_ai.input.messages"):
        return
    system = _parts_text(_loaded(attributes.get("gen_ai.system_instructions")) or [])
    messages = list(_messages(attributes["gen_ai.input.messages"]))
    if system:
        messages.insert(0, {"role": "system", "content": system})
    answers = list(_messages(attributes.get("gen_ai.output.messages") or []))
    names = {attributes.get("gen_ai.response.id"), attributes.get("gen_ai.conversation.id")}
    contents.calls.append(
        TracedCall(
            span.trace,
            span.span,
            span.started,
            tuple(messages),
            answers[0] if answers else None,
            str(attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model") or ""),
            span.failed,
            frozenset(str(name) for name in names if name),
            program=span.program,
        )
    )


def add_evaluation(
    contents: TraceContents, span: TraceSpan, attributes: Mapping[str, Any], scale: Scale
) -> None:
    """Add the feedback of an evaluation event: on the response that it names, or else on the span and its trace. The
    span of an agent is not a call, but its evaluation is one of the trace."""
    feedback = read_feedback(attributes, scale)
    if feedback is not None:
        response = attributes.get("gen_ai.response.id")
        names = {str(response)} if response else {span.span, span.trace} - {""}
        contents.feedback.append((frozenset(names), feedback))


def _agentscope_1(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The prompt of a call of AgentScope 1, which records the arguments of its model instead of the messages."""
    arguments = _loaded(attributes.get("agentscope.function.input")) or {
        "args": attributes.get("agentscope.function.input.args"),
        "kwargs": {"messages": attributes.get("agentscope.function.input.kwargs.messages")},
    }
    by_name = arguments.get("kwargs") or {}
    messages = next(iter(arguments.get("args") or ()), None) or by_name.get("messages")
    return {"gen_ai.input.messages": messages} if messages else {}


def _older(
    attributes: Mapping[str, Any], events: Iterable[tuple[str, Mapping[str, Any]]]
) -> dict[str, list[Message]]:
    """The messages of a span in the form of older conventions and OpenLLMetry: in numbered attributes
    (``gen_ai.prompt.0.content``), or one per event."""
    inputs, outputs = _numbered(attributes, "gen_ai.prompt."), _numbered(attributes, "gen_ai.completion.")
    for name, fields in events:
        content = _loaded(fields.get(_CONTENT)) if name in _ROLES or name == _CHOICE else None
        if isinstance(content, Mapping) and name == _CHOICE:
            outputs.append({"role": "assistant", **(content.get("message") or content)})
        elif isinstance(content, Mapping):
            is_tool_result = name == "gen_ai.tool.message" and "id" in content
            call_id = {"tool_call_id": str(content["id"])} if is_tool_result else {}
            inputs.append({"role": _ROLES[name], **content, **call_id})
    return {"gen_ai.input.messages": inputs, "gen_ai.output.messages": outputs}


def _numbered(attributes: Mapping[str, Any], prefix: str) -> list[Message]:
    messages: dict[int, dict[str, Any]] = {}
    calls: dict[tuple[int, int], dict[str, Any]] = {}
    for name, value in attributes.items():
        index, _, field = name.removeprefix(prefix).partition(".")
        if not name.startswith(prefix) or not index.isdecimal():
            continue
        message = messages.setdefault(int(index), {"role": "assistant"})
        kind, _, rest = field.partition(".")
        number, _, part = rest.partition(".")
        if kind == "tool_calls" and number.isdecimal():
            calls.setdefault((int(index), int(number)), {})[part] = value
        else:
            message[field] = value
    for (message_index, call_index), call in sorted(calls.items()):
        function = {"name": str(call.get("name") or ""), "arguments": _arguments(call.get("arguments"))}
        called = {"id": str(call.get("id") or f"call_{call_index}"), "type": "function", "function": function}
        messages[message_index].setdefault("tool_calls", []).append(called)
    return [message for _, message in sorted(messages.items())]


def flat(attributes: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested attributes as dotted names; lists stay as they are."""
    for key, value in attributes.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def seconds(value: Any) -> float:
    """A time as seconds since 1970, from ISO 8601, nanoseconds or seconds since 1970; 0 for anything else."""
    if isinstance(value, str) and not value.isdecimal():
        try:
            return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
        except ValueError:
            return 0.0
    try:
        number = float(value or 0)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number / 1e9 if number > 1e14 else number


def status_failed(status: Any) -> bool:
    """Whether a span's status is an error, in any exporter's form."""
    code = (status.get("code", status.get("status_code")) if isinstance(status, Mapping) else status) or 0
    return code in (2, "2", "ERROR", "STATUS_CODE_ERROR")


def _loaded(value: Any) -> Any:
    """Structured attributes may be recorded as JSON strings."""
    return json.loads(value) if isinstance(value, str) else value


def _messages(value: Any) -> Iterator[Message]:
    items = _loaded(value)
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise ValueError("the span's messages are not a list of messages")
    for item in items:
        if "parts" in item:
            yield from _from_parts(str(item.get("role", "user")), item["parts"] or [])
        elif "role" in item:
            message = {k: item[k] for k in ("role", "content", "tool_calls", "tool_call_id") if k in item}
            yield {**message, "content": _as_text(item.get("content"))}


def _as_text(content: Any) -> Any:
    """Content that consists of text parts as one text; other content as it is."""
    is_text = isinstance(content, list) and all(isinstance(p, Mapping) and "text" in p for p in content)
    return text_of({"content": content}) if is_text else content


def _from_parts(role: str, parts: Iterable[Mapping[str, Any]]) -> Iterator[Message]:
    """A message of parts as messages of chat completions, in which each tool result is a message. Parts before a
    result become a message before it."""
    pending: list[Mapping[str, Any]] = []
    for part in parts:
        if part.get("type") != "tool_call_response":
            pending.append(part)
            continue
        yield from _message(role, pending)
        pending = []
        result = part.get("response", part.get("result", part.get("content", "")))
        yield {
            "role": "tool",
            "tool_call_id": str(part.get("id") or ""),
            "content": result if isinstance(result, str) else json.dumps(result, ensure_ascii=False),
        }
    yield from _message(role, pending)


def _message(role: str, parts: Iterable[Mapping[str, Any]]) -> Iterator[Message]:
    calls = [
        {
            "id": str(part.get("id") or f"call_{i}"),
            "type": "function",
            "function": {"name": str(part.get("name") or ""), "arguments": _arguments(part.get("arguments"))},
        }
        for i, part in enumerate(parts)
        if part.get("type") == "tool_call"
    ]
    text = _parts_text(parts)
    if text or calls:
        message: dict[str, Any] = {"role": role, "content": text or None}
        yield {**message, "tool_calls": calls} if calls else message


def _parts_text(parts: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(str(p.get("content", "")) for p in parts if p.get("type") == "text").strip()


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value or {}, ensure_ascii=False)
