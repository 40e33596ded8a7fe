"""A collector that writes the spans that it receives into a file, one request a line, as OTLP JSON."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Collector:
    """What has arrived."""

    file: Path
    url: str = ""
    headers: list[dict[str, str]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    answer: Callable[[int], int] = lambda number: 200
    """The status with which a request is answered, by its number."""

    @property
    def spans(self) -> list[dict[str, Any]]:
        """All spans that were taken, in their order."""
        if not self.file.exists():
            return []
        requests = [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]
        return [
            span
            for request in requests
            for resource in request["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


def attributes(of: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a span, an event or a resource by name, whatever their type."""
    found = {}
    for item in of.get("attributes", ()):
        ((kind, value),) = item["value"].items()
        found[item["key"]] = int(value) if kind == "intValue" else value
    return found


@contextmanager
def collector(file: Path) -> Iterator[Collector]:
    """A collector on a free port."""
    received = Collector(file)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.headers.append({k.lower(): v for k, v in self.headers.items()})
            received.sizes.append(len(body))
            status = received.answer(len(received.sizes))
            if self.path != "/v1/traces":
                status = 404
            if status == 200:
                _write(file, gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    received.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()


def _write(file: Path, body: bytes) -> None:
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = MessageToDict(ExportTraceServiceRequest.FromString(body))
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for key in {"traceId", "spanId", "parentSpanId"} & span.keys():
                    span[key] = base64.b64decode(span[key]).hex()  # OTLP JSON has them in hexadecimal digits
    with file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps(request) + "\n")
