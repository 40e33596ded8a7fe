"""What the gateway counts, as Prometheus reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet.capture.respond import Reply
    from ajet.capture.session import Session


@dataclass(slots=True)
class Measured:
    """One call while it is answered."""

    meter: Meter

    def answered(self, reply: Reply) -> None:
        """Its reply is known, or begins."""
        self.meter.calls[reply.status] += 1


@dataclass(slots=True)
class Meter:
    """Counts of one gateway; touched on the engine's loop only."""

    calls: Counter[int] = field(default_factory=Counter)
    """By HTTP status."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that the gateway itself refused, by code."""
    in_flight: int = 0
    disconnects: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    _open: dict[str, list[int]] = field(default_factory=dict)
    """Session's key -> its calls in flight here, and how many of its recorded calls are counted."""

    @contextmanager
    def call(self, session: Session) -> Iterator[Measured]:
        """A call in flight; what it records is counted at its end."""
        recorded = session.record.calls
        state = self._open.setdefault(session.key, [0, len(recorded)])
        state[0] += 1
        self.in_flight += 1
        try:
            yield Measured(self)
        finally:
            self.in_flight -= 1
            state[0] -= 1
            for call in recorded[state[1] :]:
                self.prompt_tokens += call.prompt.length
                self.completion_tokens += len(call.generation.token_ids)
            state[1] = len(recorded)
            if not state[0]:
                del self._open[session.key]

    def text(self) -> str:
        """The exposition format, version 0.0.4."""
        lines: list[str] = []
        for name, kind, help_, values in (
            ("calls_total", "counter", "Answered calls by HTTP status.", _labelled("status", self.calls)),
            (
                "refused_total",
                "counter",
                "Requests that belong to no call, by reason.",
                _labelled("code", self.refused),
            ),
            ("disconnects_total", "counter", "Calls whose client went away.", {"": self.disconnects}),
            ("in_flight", "gauge", "Calls that are being answered.", {"": self.in_flight}),
            (
                "tokens_total",
                "counter",
                "Tokens of recorded calls.",
                {'{kind="prompt"}': self.prompt_tokens, '{kind="completion"}': self.completion_tokens},
            ),
        ):
            lines += [f"# HELP ajet_gateway_{name} {help_}", f"# TYPE ajet_gateway_{name} {kind}"]
            lines += [f"ajet_gateway_{name}{label} {value}" for label, value in values.items()]
        return "\n".join(lines) + "\n"


def _labelled(label: str, counts: Counter[int] | Counter[str]) -> dict[str, int]:
    return {f'{{{label}="{value}"}}': n for value, n in counts.items()}
