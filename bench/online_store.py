"""Measures the store of online training with a million traces: feedback, leases, opening, and bytes per trace.

    .venv/bin/python bench/online_store.py                       # SQLite in a temporary folder
    .venv/bin/python bench/online_store.py --store postgresql://user@host/name

Traces have a prompt of 200 tokens and a reply of 100. A hundredth is rated and committed. Figures are milliseconds; the
largest of all repetitions is that of the 99th percentile. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ajet_online.store import TraceStore
from ajet_online.trace import Trace

PROMPT, REPLY = 200, 100
PART = 2000
"""Traces that are recorded at once."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", help="URL of an empty database (default: a file of SQLite)")
    parser.add_argument("--traces", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        where = options.store or str(Path(folder) / "traces.db")
        print(json.dumps({"online_store": measure(where, options.traces)}))


def measure(where: str, count: int) -> dict[str, Any]:
    """The figures of a store at a path or URL."""
    store = TraceStore.open(where)
    draw = np.random.default_rng(0)
    started = time.perf_counter()
    for first in range(0, count, PART):
        store.record([made(n, draw) for n in range(first, min(first + PART, count))])
        print(f"\r{min(first + PART, count):,} traces", end="", file=sys.stderr, flush=True)
    recording = time.perf_counter() - started
    chosen = random.Random(0).sample(range(count), max(count // 100, 200))
    rated = timed(lambda n: store.rate([name(n)], 1.0, f"task-{n}", "0"), chosen)
    again = timed(lambda n: store.rate([name(n)], 1.0, f"task-{n}", "0"), chosen[:200])
    committed = timed(lambda _: store.commit(), [0])
    leased = timed(lambda n: store.lease(f"trainer {n}", 16, 600), range(50))
    read = timed(lambda n: store.conversation(name(n)), chosen[:200])
    status = timed(lambda _: store.status(), range(5))
    size = store.size()
    store.close()
    opened = timed(lambda _: TraceStore.open(where).close(), range(5))
    return {
        "traces": count,
        "bytes_per_trace": round(size / count),
        "recorded_per_second": round(count / recording),
        "feedback_ms_p50": rated[0],
        "feedback_ms_p99": rated[1],
        "repeated_feedback_ms_p99": again[1],
        "commit_ms": committed[1],
        "lease_of_16_ms_p50": leased[0],
        "lease_of_16_ms_p99": leased[1],
        "conversation_ms_p99": read[1],
        "status_ms_p99": status[1],
        "open_ms_p99": opened[1],
    }


def name(number: int) -> str:
    """The id of a trace."""
    return f"{number:024x}"


def made(number: int, draw: np.random.Generator) -> Trace:
    """A generated trace."""
    return Trace(
        id=name(number),
        at=float(number),
        key="bench",
        agent="agent",
        target="policy",
        conversation=name(number),
        parent=None,
        prompt=draw.integers(0, 50_000, PROMPT, np.int32),
        tokens=draw.integers(0, 50_000, REPLY, np.int32),
        logprobs=-draw.random(REPLY, np.float32),
        versions=np.full(REPLY, number // 10_000, np.int32),
        temperature=1.0,
        trained=True,
        finish_reason="stop",
        messages=[{"role": "user", "content": "word " * PROMPT}],
        answer={"role": "assistant", "content": "word " * REPLY},
    )


def timed(work: Callable[[int], Any], numbers: Sequence[int]) -> tuple[float, float]:
    """Median and 99th percentile of the milliseconds that ``work`` takes for each number."""
    taken = []
    for number in numbers:
        started = time.perf_counter()
        work(number)
        taken.append(1000 * (time.perf_counter() - started))
    return tuple(round(float(np.percentile(taken, p)), 2) for p in (50, 99))  # type: ignore[return-value]


if __name__ == "__main__":
    main()
