"""Episodes as OTLP spans: one trace an episode, with a span for each call and each tool.

The names of attributes are those of OpenTelemetry's conventions for generative AI; ours begin with ``ajet.``. Studio
joins a trace to its run by ``gen_ai.conversation.id``.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from ajet import EpisodeEnd
from ajet.interfaces.events import EpisodeCall
from ajet_agentscope.studio.messages import Message, tool_calls, written

LARGEST_REQUEST = 8 << 20
"""Bytes of a request; Studio refuses those above 10 MB."""


def requests_of(
    event: EpisodeEnd, *, conversation: str, model_of: Callable[[str], str], service: str
) -> Iterator[bytes]:
    """The bodies of the OTLP requests that hold an episode's spans, its root span first. ``model_of`` names a target's
    model."""
    for spans in _within(LARGEST_REQUEST, _Trace(event, conversation, model_of).spans()):
        scoped = ScopeSpans(scope=InstrumentationScope(name="ajet"), spans=spans)
        resource = Resource(attributes=_attributes({"service.name": service}))
        request = ExportTraceServiceRequest(
            resource_spans=[ResourceSpans(resource=resource, scope_spans=[scoped])]
        )
        yield request.SerializeToString()


def _within(size: int, spans: Iterator[Span]) -> Iterator[list[Span]]:
    """Spans in lists of at most ``size`` bytes; a larger one is alone."""
    together: list[Span] = []
    total = 0
    for span in spans:
        if together and total + span.ByteSize() > size:
            yield together
            together, total = [], 0
        together.append(span)
        total += span.ByteSize()
    yield together


class _Trace:
    """The spans of an episode."""

    def __init__(self, event: EpisodeEnd, conversation: str, model_of: Callable[[str], str]) -> None:
        self._event, self._conversation, self._model_of = event, conversation, model_of
        self._trace_id, self._root_id = secrets.token_bytes(16), secrets.token_bytes(8)
        began = event.started or time.time() - event.seconds
        last = max((call.started + call.seconds for call in event.calls), default=0.0)
        self._whole = began, max(began + event.seconds, last)

    def spans(self) -> Iterator[Span]:
        """The episode, then its calls and tools in their order."""
        yield self._episode()
        asked: dict[str, _ToolCall] = {}
        for call, chat in zip(self._event.calls, self._event.messages, strict=True):
            *prompt, answer = chat
            began, ended = self._times(call)
            for message in prompt:
                if message.get("role") == "tool" and message.get("tool_call_id") in asked:
                    yield self._tool(asked.pop(str(message["tool_call_id"])), message, began)
            yield self._call(call, prompt, answer)
            for identity, name, arguments in tool_calls(answer):
                asked[identity] = _ToolCall(identity, name, arguments, ended)

    def _episode(self) -> Span:
        event = self._event
        agents = ", ".join(dict.fromkeys(call.agent for call in event.calls))
        question = event.task.messages or [{"role": "user", "content": event.task.query}]
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agents,
            "gen_ai.input.messages": written(question),
            "ajet.episode.id": event.id,
            "ajet.task.id": event.task.id,
            "ajet.phase": event.phase,
            "ajet.step": event.step,
        }
        if event.failure:
            attributes["error.type"] = event.failure
        if event.response is not None:
            answer = {"role": "assistant", "content": _text(event.response)}
            attributes["gen_ai.output.messages"] = written([answer], finish_reason="stop")
        span = self._span(f"invoke_agent {agents}".strip(), attributes, self._whole)
        span.span_id = self._root_id
        span.ClearField("parent_span_id")
        if event.failure:
            span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=_plain(event.error)))
        else:  # a failed episode was not judged
            verdict = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": event.reward}
            if event.is_success is not None:
                verdict["gen_ai.evaluation.score.label"] = "pass" if event.is_success else "fail"
            span.events.add(
                name="gen_ai.evaluation.result",
                time_unix_nano=span.end_time_unix_nano,
                attributes=_attributes(verdict),
            )
        return span

    def _call(self, call: EpisodeCall, prompt: Sequence[Message], answer: Message) -> Span:
        model = self._model_of(call.target)
        reason = "length" if call.truncated else "tool_call" if answer.get("tool_calls") else "stop"
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.agent.name": call.agent,
            "gen_ai.request.model": model,
            "gen_ai.input.messages": written(prompt),
            "gen_ai.output.messages": written([answer], finish_reason=reason),
            "gen_ai.response.finish_reasons": [reason],
            "ajet.target": call.target,
        }
        if call.prompt_tokens is not None:
            attributes["gen_ai.usage.input_tokens"] = call.prompt_tokens
            attributes["gen_ai.usage.output_tokens"] = call.sampled_tokens
        return self._span(f"chat {model}", attributes, self._times(call), Span.SPAN_KIND_CLIENT)

    def _tool(self, tool: _ToolCall, result: Message, answered: float) -> Span:
        """From the answer that asks for the tool to the request that holds its result."""
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool.name,
            "gen_ai.tool.call.id": tool.id,
            "gen_ai.tool.call.arguments": _text(tool.arguments),
            "gen_ai.tool.call.result": _text(result.get("content") or ""),
        }
        return self._span(f"execute_tool {tool.name}", attributes, (tool.asked, max(tool.asked, answered)))

    def _times(self, call: EpisodeCall) -> tuple[float, float]:
        """Start and end of a call, in seconds since 1970; those of the episode if they are unknown."""
        return (call.started, call.started + call.seconds) if call.started else self._whole

    def _span(
        self,
        name: str,
        attributes: Mapping[str, Any],
        times: tuple[float, float],
        kind: Span.SpanKind.ValueType = Span.SPAN_KIND_INTERNAL,
    ) -> Span:
        began, ended = (int(seconds * 1e9) for seconds in times)
        common = {"gen_ai.conversation.id": self._conversation, "gen_ai.provider.name": "agentjet"}
        return Span(
            trace_id=self._trace_id,
            span_id=secrets.token_bytes(8),
            parent_span_id=self._root_id,
            name=_plain(name),
            kind=kind,
            start_time_unix_nano=began,
            end_time_unix_nano=ended,
            attributes=_attributes({**common, **attributes}),
            status=Status(code=Status.STATUS_CODE_OK),
        )


@dataclass(frozen=True, slots=True)
class _ToolCall:
    """A tool call whose result has not been seen yet; ``asked`` is when the answer with it ended."""

    id: str
    name: str
    arguments: Any
    asked: float


def _attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in values.items()]


def _value(value: Any) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case list():
            return AnyValue(array_value=ArrayValue(values=[_value(item) for item in value]))
    return AnyValue(string_value=_plain(str(value)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _plain(text: str) -> str:
    """Text that UTF-8 can write: a model's answer may contain halves of characters."""
    return text.encode("utf-8", "replace").decode()
