"""What a store has gained since a reader last looked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from ajet_online.schema import traces
from ajet_online.store import PAGE, TraceStore

SETTLED = 10.0
"""Seconds after which no transaction commits traces with smaller numbers, or ratings with an earlier time."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a reader has come."""

    number: int
    """Of a trace."""
    rated: float
    """When a trace was rated, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class StoreChanges:
    """See `changes`."""

    conversations: Sequence[str]
    """Their names."""
    mark: Mark
    more: bool


def newest(store: TraceStore, count: int) -> Mark:
    """The mark after which the newest ``count`` traces come."""
    with store.reading() as connection:
        last = int(connection.scalar(select(func.max(traces.c.number))) or 0)
    return Mark(max(0, last - count), time.time() - SETTLED)


def changes(store: TraceStore, since: Mark) -> StoreChanges:
    """The conversations in which traces were recorded or rated since a mark, the oldest first; those of at most `PAGE` traces at
    once. Conversations of the last `SETTLED` seconds come again next time."""
    settled = time.time() - SETTLED
    names: dict[str, None] = {}
    ends: list[Any] = []
    more = False
    with store.reading() as connection:
        for column, at, known in (
            (traces.c.number, traces.c.at, since.number),
            (traces.c.rated_at, traces.c.rated_at, since.rated),
        ):
            page = select(column, at, traces.c.conversation).where(column > known)
            rows = connection.execute(page.order_by(column).limit(PAGE)).all()
            full = len(rows) == PAGE
            ends.append(max((row[0] for row in rows if full or row[1] < settled), default=known))
            names |= dict.fromkeys(row.conversation for row in rows)
            more |= full
    return StoreChanges(list(names), Mark(*ends), more)
