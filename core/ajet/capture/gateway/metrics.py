"""The gateway's counters, in Prometheus format."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.capture.session import Session


SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, math.inf)
"""Upper bounds of the histogram of calls."""


@dataclass(slots=True)
class GatewayMeter:
    """Counters of one gateway; used only on the engine's loop."""

    calls: Counter[int] = field(default_factory=Counter)
    """By HTTP status."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that the gateway itself refused, by code."""
    in_flight: int = 0
    disconnects: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    """Of all calls that have ended, however."""
    _within: list[int] = field(default_factory=lambda: [0] * len(SECONDS))
    """How many took at most so long."""
    _counted: dict[int, list[int]] = field(default_factory=dict)
    """Session -> its calls in flight here, and how many of its recorded calls are counted."""

    def call(self, session: Session) -> _OpenCall:
        """A block during which a call is in flight; the tokens it records are counted at the end."""
        return _OpenCall(self, session)

    def took(self, seconds: float) -> None:
        """Count the duration of a call."""
        self.seconds += seconds
        for place, bound in enumerate(SECONDS):
            self._within[place] += seconds <= bound

    def text(self) -> str:
        """The exposition format, version 0.0.4."""
        buckets = {
            f'_bucket{{le="{bound:g}"}}'.replace("inf", "+Inf"): count
            for bound, count in zip(SECONDS, self._within, strict=True)
        }
        return exposition(
            "ajet_gateway",
            (
                ("calls_total", "counter", "Answered calls by HTTP status.", labelled("status", self.calls)),
                (
                    "refused_total",
                    "counter",
                    "Requests that belong to no call, by reason.",
                    labelled("code", self.refused),
                ),
                ("disconnects_total", "counter", "Calls whose client went away.", {"": self.disconnects}),
                (
                    "call_seconds",
                    "histogram",
                    "Seconds until calls have ended, their streams included.",
                    {**buckets, "_sum": self.seconds, "_count": self._within[-1]},
                ),
                (
                    "build_info",
                    "gauge",
                    "The version of AgentJet.",
                    labelled("version", {version("ajet"): 1}),
                ),
                ("in_flight", "gauge", "Calls that are being answered.", {"": self.in_flight}),
                (
                    "tokens_total",
                    "counter",
                    "Tokens of recorded calls.",
                    {'{kind="prompt"}': self.prompt_tokens, '{kind="completion"}': self.completion_tokens},
                ),
            ),
        )


def exposition(prefix: str, metrics: Iterable[tuple[str, str, str, Mapping[str, float]]]) -> str:
    """Metrics in Prometheus' exposition format, version 0.0.4: name, kind, help, and values by labels or, in histograms and
    summaries, by suffixes with labels."""
    lines: list[str] = []
    for name, kind, help_, values in metrics:
        lines += [f"# HELP {prefix}_{name} {help_}", f"# TYPE {prefix}_{name} {kind}"]
        lines += [f"{prefix}_{name}{label} {value}" for label, value in values.items()]
    return "\n".join(lines) + "\n"


def labelled(label: str, counts: Mapping[Any, int]) -> dict[str, int]:
    """Counts with one label."""
    return {f'{{{label}="{value}"}}': n for value, n in counts.items()}


class _OpenCall:
    __slots__ = ("_began", "_meter", "_session", "_state")

    def __init__(self, meter: GatewayMeter, session: Session) -> None:
        self._meter = meter
        self._session = session
        self._state = meter._counted.setdefault(id(session), [0, len(session.record.calls)])

    def __enter__(self) -> None:
        self._began = time.monotonic()
        self._meter.in_flight += 1
        self._state[0] += 1

    def __exit__(self, *exc: object) -> None:
        meter, state, recorded = self._meter, self._state, self._session.record.calls
        meter.in_flight -= 1
        meter.took(time.monotonic() - self._began)
        state[0] -= 1
        for call in recorded[state[1] :]:
            meter.prompt_tokens += call.prompt.length
            meter.completion_tokens += len(call.generation.token_ids)
        state[1] = len(recorded)
        if not state[0]:
            del meter._counted[id(self._session)]
