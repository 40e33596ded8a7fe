"""Episodes as requests of OTLP in protobuf, the only form of spans that Studio reads.

Studio joins a trace to its run by ``gen_ai.conversation.id``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from ajet.interfaces.spans import EpisodeSpan, bundled

LARGEST_REQUEST = 8 << 20
"""Bytes of a request; Studio refuses those above 10 MB."""


def requests_of(spans: Iterable[EpisodeSpan], *, service: str) -> Iterator[bytes]:
    """The bodies of the OTLP requests that hold spans, in their order."""
    for together in bundled(map(_span, spans), LARGEST_REQUEST, Span.ByteSize):
        scoped = ScopeSpans(scope=InstrumentationScope(name="ajet"), spans=together)
        resource = Resource(attributes=_attributes({"service.name": service}))
        request = ExportTraceServiceRequest(
            resource_spans=[ResourceSpans(resource=resource, scope_spans=[scoped])]
        )
        yield request.SerializeToString()


def _span(span: EpisodeSpan) -> Span:
    status = Status(code=Status.STATUS_CODE_OK)
    if span.error is not None:
        status = Status(code=Status.STATUS_CODE_ERROR, message=span.error)
    return Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_id or b"",
        name=span.name,
        kind=Span.SPAN_KIND_CLIENT if span.is_client else Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=_attributes(span.attributes),
        events=[
            Span.Event(
                name=event.name, time_unix_nano=event.time_ns, attributes=_attributes(event.attributes)
            )
            for event in span.events
        ],
        status=status,
    )


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
    return AnyValue(string_value=value)
