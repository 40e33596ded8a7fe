"""Episodes as OpenTelemetry spans, sent to any collector."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from ajet import AjetError, Logger
from ajet.interfaces.events import EpisodeEnd, RunStart
from ajet.interfaces.helpers import Outbox
from ajet.interfaces.logger import Metrics
from ajet.interfaces.progress import current_progress
from ajet.interfaces.spans import EpisodeSpan, bundled, episode_spans, model_of
from ajet_loggers.tool import needs

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

LARGEST_REQUEST = 2 << 20
"""Characters of text in one request. A larger span is sent alone."""
EXPORTER_LOG = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_SECRET = re.compile(r"authorization|api[-_]?key|token|secret|cookie|password", re.IGNORECASE)


class OpenTelemetry(Logger):
    """Sends each finished episode as spans of generative AI over OTLP/HTTP: its calls, tools, tokens and reward.

    A thread sends them, so the run never waits for the collector. Episodes that cannot be sent are counted and left out.
    Metrics of steps are not sent. OpenTelemetry's variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``..._HEADERS``,
    ``..._CERTIFICATE``, ``..._COMPRESSION``, ``..._TIMEOUT``) hold.
    """

    name = "otel"

    endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^/@]+/",
        description="Address of the collector's traces, such as http://localhost:4318/v1/traces; default: what "
        "OTEL_EXPORTER_OTLP_ENDPOINT says, else this one.",
    )
    headers: dict[str, str] = Field(
        {}, description="Further headers of each request; secrets belong into OTEL_EXPORTER_OTLP_HEADERS."
    )
    contents: bool = Field(
        True, description="Send what was asked and answered; otherwise only names, times, tokens and rewards."
    )
    service: str = Field("AgentJet", min_length=1, description="The name of the service that sends.")
    waiting: int = Field(
        1000, ge=1, description="How many episodes may wait to be sent; further ones are left out."
    )
    flush_seconds: float = Field(
        5.0,
        gt=0,
        description="Maximum seconds that the end of a run waits for episodes that are not sent yet.",
    )
    _outbox: Outbox | None = PrivateAttr(None)
    _exporter: _Exporter | None = PrivateAttr(None)
    _spans: Callable[..., Iterator[EpisodeSpan]] = PrivateAttr()

    @model_validator(mode="after")
    def _is_installed(self) -> Self:
        needs("opentelemetry.exporter.otlp.proto.http", self.name)  # which needs OpenTelemetry's SDK
        return self

    @field_validator("headers")
    @classmethod
    def _holds_no_secret(cls, headers: dict[str, str]) -> dict[str, str]:
        for name in filter(_SECRET.search, headers):
            raise ValueError(
                f"{name} looks like a secret, and a copy of the job is kept with each run; set it in the environment: "
                f"OTEL_EXPORTER_OTLP_HEADERS='{name}=…'"
            )
        return headers

    def run_start(self, event: RunStart) -> None:
        """Begin to send."""
        self._exporter = _Exporter(self.endpoint, self.headers, self.service, str(event.run_dir))
        self._outbox = Outbox(
            f"logger {self.name}",
            self.endpoint or "the OpenTelemetry collector",
            current_progress().say,
            unit="episodes",
            waiting=self.waiting,
        )
        self._spans = partial(episode_spans, model_of=partial(model_of, event.config), contents=self.contents)

    def episode_end(self, event: EpisodeEnd) -> None:
        """Hand an episode to the thread that sends."""
        if self._outbox is not None and self._exporter is not None:
            conversation = f"{event.run_dir.name}/{event.id}"
            spans = partial(self._spans, event, conversation=conversation)
            exporter = self._exporter
            self._outbox.put(lambda: exporter.send(spans()))

    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        """Metrics of steps are not sent."""

    def close(self) -> None:
        """Send what still waits, for ``flush_seconds`` at most, and say how many episodes were not sent."""
        if self._outbox is not None and self._exporter is not None:
            self._outbox.close(self.flush_seconds)
            self._exporter.close()
            self._outbox = self._exporter = None


class _Exporter:
    """OpenTelemetry's exporter, made when the first spans are sent, with errors instead of lines in its log."""

    def __init__(self, endpoint: str | None, headers: Mapping[str, str], service: str, run_dir: str) -> None:
        self._endpoint, self._headers = endpoint, headers
        self._resource = {"service.name": service, "ajet.run.dir": run_dir}
        self._exporter: Any = None

    def send(self, spans: Iterable[EpisodeSpan]) -> None:
        """Send spans. Raises AjetError with the exporter's reason if the collector does not take them."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        if self._exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            self._exporter = OTLPSpanExporter(endpoint=self._endpoint, headers=self._headers)
        log, reasons = logging.getLogger(EXPORTER_LOG), _Reasons()
        log.addFilter(reasons)
        try:
            for together in bundled(spans, LARGEST_REQUEST, _length):
                sent = self._exporter.export([self._readable(span) for span in together])
                if sent is not SpanExportResult.SUCCESS:
                    raise AjetError(reasons.last or "the collector did not take the spans")
        finally:
            log.removeFilter(reasons)

    def close(self) -> None:
        """End a request that is being repeated."""
        if self._exporter is not None:
            self._exporter.shutdown()

    def _readable(self, span: EpisodeSpan) -> ReadableSpan:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode

        def context(span_id: bytes) -> SpanContext:
            trace_id, sampled = int.from_bytes(span.trace_id), TraceFlags(TraceFlags.SAMPLED)
            return SpanContext(trace_id, int.from_bytes(span_id), is_remote=False, trace_flags=sampled)

        return ReadableSpan(
            span.name,
            context=context(span.span_id),
            parent=None if span.parent_id is None else context(span.parent_id),
            resource=Resource(self._resource),
            attributes=span.attributes,
            events=[Event(e.name, e.attributes, e.time_ns) for e in span.events],
            kind=SpanKind.CLIENT if span.is_client else SpanKind.INTERNAL,
            instrumentation_scope=InstrumentationScope("ajet"),
            status=Status(StatusCode.OK) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.start_ns,
            end_time=span.end_ns,
        )


class _Reasons(logging.Filter):
    """Keeps what the exporter logs in the thread that made this, instead of showing it: the run says it once."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()
        self.last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is shown: those of other threads are."""
        if record.thread == self.thread:
            self.last = record.getMessage()
        return record.thread != self.thread


def _length(span: EpisodeSpan) -> int:
    return sum(len(value) for value in span.attributes.values() if isinstance(value, str))
