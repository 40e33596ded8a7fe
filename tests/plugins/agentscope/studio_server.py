"""The two addresses of AgentScope Studio that a run is sent to, on a local port: what arrives is decoded and kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

REGISTER, TRACES = "/trpc/registerRun", "/v1/traces"


@dataclass
class Studio:
    """What has arrived, in order: (path, registered run or list of spans)."""

    arrived: list[tuple[str, Any]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Bytes of the requests with spans."""
    answer: Callable[[str], int] = lambda path: 200
    """The status for a request; what is refused is not kept."""
    url: str = ""

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The runs that were registered."""
        return [content for path, content in self.arrived if path == REGISTER]

    @property
    def traces(self) -> list[list[Span]]:
        """The spans of each trace, in the order of their arrival."""
        traces: dict[bytes, list[Span]] = {}
        for path, content in self.arrived:
            for span in content if path == TRACES else ():
                traces.setdefault(span.trace_id, []).append(span)
        return list(traces.values())


def attributes(item: Any) -> dict[str, Any]:
    """The attributes of a span or an event."""
    return {pair.key: _value(pair.value) for pair in item.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def studio_server() -> Iterator[Studio]:
    """A block with a server; ``studio.url`` is its address."""
    studio = Studio()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = studio.answer(self.path)
            if status == 200:
                studio.arrived.append((self.path, self._content(body)))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def _content(self, body: bytes) -> Any:
            if self.path == REGISTER:
                return json.loads(body)
            assert self.path == TRACES and self.headers["content-type"] == "application/x-protobuf"
            assert "content-encoding" not in self.headers
            studio.sizes.append(len(body))
            (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
            (scope,) = resource.scope_spans
            return list(scope.spans)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    studio.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield studio
    finally:
        server.shutdown()
        server.server_close()
