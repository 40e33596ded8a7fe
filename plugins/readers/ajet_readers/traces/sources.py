"""Files that contain traces: AgentScope Studio's database, OpenTelemetry exports, trajectories in ATIF, logs of OpenAI calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import ajet_atif
from ajet import ConfigError
from ajet.interfaces.reader import content_id, is_trajectory
from ajet_readers.jsonl import parse_line, read_lines
from ajet_readers.traces.feedback import Scale, read_feedback
from ajet_readers.traces.spans import (
    EVALUATION,
    TraceSpan,
    add_evaluation,
    add_span,
    flat,
    seconds,
    status_failed,
)
from ajet_readers.traces.studio import read_studio
from ajet_readers.traces.trace import Program, TraceContents, TracedCall, text_of

Format = Literal["studio", "otel", "atif", "openai"]
_SUFFIXES = {".jsonl", ".ndjson", ".json", ".gz", ".db", ".sqlite", ".sqlite3", ".log"}
_SQLITE = b"SQLite format 3\x00"


def read_traces(path: Path, form: Format | None, scale: Scale) -> TraceContents:
    """All calls and feedback in a file, or in all files of a folder. Raises ConfigError that names the file and the part
    that cannot be read."""
    contents = TraceContents()
    for file in _files(path, form):
        (_READERS[form] if form else _reader_of(file))(file, contents, scale)
    return contents


def _files(path: Path, form: Format | None) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError(f"{path}: no such file or folder. Check the reader's `path`.")
    files = sorted(f for f in path.rglob("*") if f.is_file() and f.suffix in _SUFFIXES)
    if form == "atif":  # Harbor writes results, logs and settings beside each trajectory
        files = [f for f in files if f.name.startswith("trajectory")] or files
    if not files:
        raise ConfigError(f"{path}: contains no traces; files may end with {', '.join(sorted(_SUFFIXES))}.")
    return files


def _reader_of(file: Path) -> Callable[[Path, TraceContents, Scale], None]:
    """The reader for a file's content: a database, trajectories, spans, or else logs."""
    with file.open("rb") as opened:
        if opened.read(len(_SQLITE)) == _SQLITE:
            return read_studio
    for _, record in _records(file):
        if is_trajectory(record):
            return _atif
        spans = {"resourceSpans", "resourceLogs", "spans", "context", "span_id", "spanId"} & set(record)
        return _otel if spans else _openai
    return _openai  # empty


# --------------------------------------------------------------------------- OpenTelemetry


def _otel(file: Path, contents: TraceContents, scale: Scale) -> None:
    """Read spans and log events: OTLP JSON (one object, or a batch per line), or one span per line."""
    for place, record in _records(file):
        try:
            for span, is_log in _spans(record):
                if not is_log:
                    add_span(contents, span, scale)
                elif span.name == EVALUATION:
                    add_evaluation(contents, span, span.attributes, scale)
                else:  # content may be recorded in an event instead of the span
                    add_span(contents, span, scale)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{place}: cannot be read as OpenTelemetry spans ({error}).") from None


def _spans(record: Mapping[str, Any]) -> Iterator[tuple[TraceSpan, bool]]:
    """(span, whether it is a log event)."""
    for resource in record.get("resourceSpans") or ():
        for scope in resource.get("scopeSpans") or ():
            for span in scope.get("spans") or ():
                yield _otlp(span), False
    for resource in record.get("resourceLogs") or ():
        for scope in resource.get("scopeLogs") or ():
            for entry in scope.get("logRecords") or ():
                yield _otlp({**entry, "name": entry.get("eventName")}), True
    for span in record.get("spans") or ():
        yield from _spans(span)
    if "attributes" in record:
        yield _exported(record), False


def _otlp(span: Mapping[str, Any]) -> TraceSpan:
    events = tuple((str(e.get("name")), _key_values(e.get("attributes"))) for e in span.get("events") or ())
    return TraceSpan(
        str(span.get("traceId") or ""),
        str(span.get("spanId") or ""),
        str(span.get("name") or ""),
        seconds(span.get("startTimeUnixNano") or span.get("timeUnixNano")),
        _key_values(span.get("attributes")),
        status_failed(span.get("status")),
        events,
    )


def _exported(span: Mapping[str, Any]) -> TraceSpan:
    """A span as the SDKs' exporters write it: plain attributes, and ids in `context` or at the top level."""
    context = span.get("context") or span
    attributes = span["attributes"]
    if isinstance(attributes, list):
        return _otlp(span)
    events = tuple(
        (str(e.get("name")), dict(flat(e.get("attributes") or {}))) for e in span.get("events") or ()
    )
    return TraceSpan(
        _identifier(context.get("trace_id") or context.get("traceId")),
        _identifier(context.get("span_id") or context.get("spanId")),
        str(span.get("name") or ""),
        seconds(span.get("start_time") or span.get("startTime") or span.get("startTimeUnixNano")),
        dict(flat(attributes or {})),
        status_failed(span.get("status")),
        events,
    )


def _identifier(value: Any) -> str:
    return str(value or "").removeprefix("0x")


def _key_values(items: Any) -> dict[str, Any]:
    return dict(flat({item["key"]: _any_value(item.get("value") or {}) for item in items or ()}))


def _any_value(value: Mapping[str, Any]) -> Any:
    """An OTLP value, which is in one of several typed fields."""
    if "arrayValue" in value:
        return [_any_value(item) for item in value["arrayValue"].get("values") or ()]
    if "kvlistValue" in value:
        return {i["key"]: _any_value(i.get("value") or {}) for i in value["kvlistValue"].get("values") or ()}
    if "intValue" in value:
        return int(value["intValue"])
    return next((value[name] for name in ("stringValue", "doubleValue", "boolValue") if name in value), None)


# --------------------------------------------------------------------------- trajectories


def _atif(file: Path, contents: TraceContents, scale: Scale) -> None:
    """Read trajectories: one object, a list, or one in each line."""
    for place, record in _records(file):
        try:
            contents.calls += trajectory_calls(record)
        except ajet_atif.UNREADABLE as error:
            raise ConfigError(f"{place}: cannot be read as a trajectory in ATIF ({error!r}).") from None


def trajectory_calls(trajectory: Mapping[str, Any]) -> Iterator[TracedCall]:
    """The calls of a trajectory and of those embedded in it. Raises one of `ajet_atif.UNREADABLE` for anything else."""
    identity = str(
        trajectory.get("trajectory_id") or trajectory.get("session_id") or content_id(dict(trajectory))
    )
    of, time = None, 0.0  # traces sort their calls by it, and a step need not have one
    for call in ajet_atif.calls_of(trajectory):
        one, agent = call.trajectory, call.trajectory["agent"]
        began = seconds(call.step.get("timestamp"))
        of, time = one, max(time, began) if one is of else began
        yield TracedCall(
            identity,
            call.name,
            time,
            call.messages,
            call.answer,
            str(call.step.get("model_name") or agent.get("model_name") or ""),
            names=frozenset(str(one[name]) for name in ("trajectory_id", "session_id") if one.get(name)),
            program=Program(str(agent["name"]), str(one.get("session_id") or "")),
        )


# --------------------------------------------------------------------------- logs of OpenAI calls


def _openai(file: Path, contents: TraceContents, scale: Scale) -> None:
    """Read requests and responses of the chat completions or Responses API, as proxies, batches and transcripts store
    them."""
    for place, record in _records(file):
        try:
            if _is_list(record):
                contents.others += 1
                continue
            contents.calls.append(_logged(record, scale))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{place}: cannot be read as a call of chat completions ({error}).") from None


def _is_list(record: Mapping[str, Any]) -> bool:
    """Whether the answer to a request is a list, as of embeddings, moderations and models."""
    response = _first(record, "response", "completion") or record
    response = response.get("body") or response
    if "choices" in response or "output" in response or "messages" in response:
        return False
    return isinstance(_first(response, "data", "results"), list)


def _logged(record: Mapping[str, Any], scale: Scale) -> TracedCall:
    request = _first(record, "request", "body", "kwargs") or record
    request = request.get("body") or request
    response = _first(record, "response", "completion") or record
    response = response.get("body") or response
    messages = request.get("messages")
    if messages is None and request.get("input"):
        messages = list(_items(request["input"]))
    if not isinstance(messages, list) or not all(isinstance(m, Mapping) and "role" in m for m in messages):
        raise ValueError(f"has neither `messages` nor `input`; the record has {', '.join(map(repr, record))}")
    choices = response.get("choices") or [{}]
    answer = choices[0].get("message") or _together(_items(response.get("output") or ()))
    if answer is None and messages and messages[-1].get("role") == "assistant":
        *messages, answer = messages  # a transcript
    if not isinstance(answer, Mapping | None):
        raise ValueError("its answer is not a message")
    response_id = response.get("id") if response is not record else None
    identity = next(
        (str(record[k]) for k in ("trace_id", "conversation_id", "custom_id", "id") if record.get(k)), ""
    )
    identity = identity or str(response_id or content_id({"messages": messages, "answer": answer}))
    return TracedCall(
        identity,
        str(record.get("span_id") or response_id or content_id({"messages": messages})),
        seconds(
            _first(record, "timestamp", "created_at", "start_time")
            or _first(response, "created", "created_at")
        ),
        tuple(messages),
        answer,
        str(response.get("model") or request.get("model") or ""),
        bool(record.get("error") or response.get("error")),
        frozenset(str(record[k]) for k in ("conversation_id", "request_id") if record.get(k)),
        _own_feedback(record, scale),
    )


def _items(value: Any) -> Iterator[dict[str, Any]]:
    """Input or output of the Responses API as messages of chat completions."""
    for item in [{"role": "user", "content": value}] if isinstance(value, str) else value:
        match item.get("type", "message"):
            case "message":
                yield {"role": item["role"], "content": text_of(item)}
            case "function_call":
                function = {"name": item["name"], "arguments": item.get("arguments") or "{}"}
                call = {"id": str(item.get("call_id") or ""), "type": "function", "function": function}
                yield {"role": "assistant", "content": None, "tool_calls": [call]}
            case "function_call_output":
                output = item.get("output")
                content = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
                yield {"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": content}


def _together(messages: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The items of one answer as a single message."""
    messages = list(messages)
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    text = "\n".join(message["content"] for message in messages if message["content"])
    if not messages:
        return None
    return {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}


def _own_feedback(record: Mapping[str, Any], scale: Scale) -> tuple[Any, ...]:
    feedback = record.get("feedback")
    if isinstance(feedback, list):
        items = [item for item in feedback if isinstance(item, Mapping)]
    elif isinstance(feedback, Mapping):
        items = [feedback]
    elif feedback is not None:
        items = [{"thumbs" if isinstance(feedback, str) else "score": feedback}]
    else:
        items = [
            {k: record[k] for k in ("score", "rating", "thumbs", "comment", "correction") if k in record}
        ]
    return tuple(f for f in (read_feedback(item, scale) for item in items) if f is not None)


def _first(record: Mapping[str, Any], *names: str) -> Any:
    return next((record[name] for name in names if record.get(name)), None)


def _records(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, object) for each line, or for each object of a file that is one object or a list. A .json file may
    contain lines, as the OpenTelemetry collector writes them."""
    if file.suffix == ".json" and not _has_lines(file):
        try:
            whole = json.loads(file.read_text(encoding="utf-8-sig"))
        except (ValueError, OSError, RecursionError) as error:
            raise ConfigError(f"{file}: not JSON ({error}).") from None
        for number, record in enumerate(whole if isinstance(whole, list) else [whole]):
            if not isinstance(record, dict):
                raise ConfigError(f"{file}: item {number} is not an object.")
            yield f"{file}: item {number}", record
        return
    for number, line in enumerate(read_lines(file), start=1):
        if line.strip():
            place = f"{file}:{number}"
            yield place, parse_line(line, place, "Fix the line.")


def _has_lines(file: Path) -> bool:
    """Whether the first line that is not empty is a whole JSON object."""
    first = next((line for line in read_lines(file) if line.strip()), b"")
    try:
        return isinstance(json.loads(first.decode("utf-8-sig")), dict)
    except (ValueError, RecursionError):
        return False


_READERS: Mapping[Format, Callable[[Path, TraceContents, Scale], None]] = {
    "studio": read_studio,
    "otel": _otel,
    "atif": _atif,
    "openai": _openai,
}
