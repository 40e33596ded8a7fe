"""Deletes old conversations from a store that others use, and gives their space back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Delete, delete, exists, func, select

from ajet_online.schema import tools, traces
from ajet_online.store import PAGE, TraceStore

PAGES = 500
"""Pages of SQLite's file that are given back in one transaction."""
INCREMENTAL = 2
"""SQLite's ``auto_vacuum`` of files that can give space back in small steps."""


Told = Callable[[int, int], None]
"""Gets how much is done, and how much there is to do."""


def prune(store: TraceStore, before: float, told: Told = lambda done, total: None) -> int:
    """Delete conversations whose last trace was recorded before this time, unless a trainer has traces of them. Returns how many
    traces. At most `PAGE` are deleted in one transaction, between which others write."""
    old = (
        select(traces.c.conversation, func.count().label("traces"))
        .group_by(traces.c.conversation)
        .having(func.max(traces.c.at) < before, func.count(traces.c.lease) == 0)
    )
    with store.reading() as connection:
        total = connection.scalar(select(func.sum(old.subquery().c.traces))) or 0
    deleted, last = 0, ""
    while True:
        page = old.where(traces.c.conversation > last).order_by(traces.c.conversation).limit(PAGE)
        with store.reading() as connection:
            rows = connection.execute(page).all()
        if not rows:
            break
        last = rows[-1].conversation
        for names in _batches(rows):
            # Of a conversation that does not fit, the newest traces first: what is left never lacks a parent.
            still = select(old.where(traces.c.conversation.in_(names)).subquery().c.conversation)
            newest = select(traces.c.number).where(traces.c.conversation.in_(still))
            some = newest.order_by(traces.c.number.desc()).limit(PAGE)
            own = delete(traces).where(traces.c.number.in_(some), traces.c.lease.is_(None))
            for count in _repeated(store, own):
                deleted += count
                told(deleted, total)
    unused = select(tools.c.hash).where(~exists().where(traces.c.tools == tools.c.hash)).limit(PAGE)
    for _ in _repeated(store, delete(tools).where(tools.c.hash.in_(unused))):
        pass
    return deleted


def give_back(store: TraceStore, told: Told = lambda done, total: None) -> int:
    """Give the free space of SQLite's file back to the disk, in small steps. Returns the bytes that stay free in it, for later traces:
    those of a file of an earlier version, see `compact`; or of PostgreSQL, whose autovacuum finds it, 0."""
    if not store.file:
        return 0
    total = free = _pragma(store, "freelist_count")
    while free and _pragma(store, "auto_vacuum") == INCREMENTAL:
        with _taking_turns(), store.alone() as connection:
            driver: Any = connection.connection.driver_connection
            # `execute` would give back a single page, because each is a step without a row.
            driver.executescript(f"PRAGMA incremental_vacuum({PAGES})")
        before, free = free, _pragma(store, "freelist_count")
        told(total - free, total)
        if free >= before:  # others have deleted as much
            break
    return free * _pragma(store, "page_size")


def compact(store: TraceStore) -> None:
    """Rewrite the file of SQLite, which others cannot write meanwhile. From then on `give_back` suffices."""
    with store.alone() as connection:
        connection.exec_driver_sql(f"PRAGMA auto_vacuum = {INCREMENTAL}")
        connection.exec_driver_sql("VACUUM")


def _batches(rows: Sequence[Any]) -> Iterator[list[str]]:
    """The names of conversations, together at most `PAGE` traces; one that has more stands alone."""
    names: list[str] = []
    size = 0
    for row in rows:
        if names and size + row.traces > PAGE:
            yield names
            names, size = [], 0
        names.append(row.conversation)
        size += row.traces
    yield names


def _repeated(store: TraceStore, some: Delete) -> Iterator[int]:
    """Delete rows until none are left, each time in a transaction of its own; how many."""
    count = PAGE
    while count:
        with _taking_turns(), store.writing() as connection:
            count = connection.execute(some).rowcount
        yield count


@contextmanager
def _taking_turns() -> Iterator[None]:
    """A block after which others have as much time: SQLite does not queue those that wait."""
    started = time.monotonic()
    yield
    time.sleep(time.monotonic() - started)


def _pragma(store: TraceStore, name: str) -> int:
    with store.reading() as connection:
        return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
