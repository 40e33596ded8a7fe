"""The store of traces, which explorer and trainer share. Every method is one transaction."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    case,
    delete,
    func,
    insert,
    select,
    text,
    union,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from ajet import ConfigError
from ajet_online.database import READS, Access, guarded, open_database, shown
from ajet_online.schema import TraceState, facts, leases, tools, traces
from ajet_online.settings import LARGEST
from ajet_online.trace import Trace, from_row, hash_of, to_row, to_text, without_tokens

DECIDING = 7_265_109
"""PostgreSQL's advisory lock while it is decided who learns from what, or which version is served."""
PAGE = 500
"""Rows that are read or written at once."""


@dataclass(frozen=True, slots=True)
class Rated:
    """What a feedback has done, by the ids of traces."""

    new: Sequence[str]
    unchanged: Sequence[str]
    """They had feedback before, which stays."""
    unknown: Sequence[str]
    """They do not exist, or were pruned."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Traces that one trainer has taken."""

    id: int
    traces: Sequence[Trace]


@dataclass(frozen=True, slots=True)
class Status:
    """What the store contains."""

    states: dict[TraceState, int]
    """How many traces are in each state."""
    ratings: dict[int, tuple[int, float]]
    """By weight version: how many of its traces are rated, and their mean reward."""


class TraceStore:
    """Open it with `TraceStore.open`; close it at the end. Its methods may be called from any thread. All raise StoreFailed if the
    database fails."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._turn = threading.Lock() if engine.dialect.name == "sqlite" else nullcontext()
        """Held by the thread of this process that writes: SQLite looks only now and then whether it may."""
        self._insert = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    @classmethod
    def open(cls, where: str, access: Access = "create") -> TraceStore:
        """The store at a URL or path; see `open_database`. A new one is empty."""
        return cls(open_database(where, access))

    @property
    def file(self) -> Path | None:
        """Its file of SQLite; None of PostgreSQL."""
        url = self._engine.url
        return Path(url.database) if url.get_backend_name() == "sqlite" else None

    @property
    def name(self) -> str:
        """Its file, or its URL without the password."""
        return str(self.file or shown(self._engine))

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A block that is one transaction, and the only one that writes on SQLite."""
        with guarded(self._engine), self._turn, self._engine.begin() as connection:
            yield connection

    @contextmanager
    def deciding(self) -> Iterator[Connection]:
        """A block that is one transaction, and the only one of its kind: what it has read of leases and versions stays so."""
        with self.writing() as connection:
            if connection.dialect.name == "postgresql":  # SQLite has only one writer anyway
                connection.execute(text(f"SELECT pg_advisory_xact_lock({DECIDING})"))
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A block that only reads, without waiting for writers."""
        with guarded(self._engine), self._engine.connect() as connection:
            yield connection.execution_options(**{READS: True})

    @contextmanager
    def alone(self) -> Iterator[Connection]:
        """A block outside transactions, for what SQLite does in none."""
        with guarded(self._engine), self._engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    # ---------------------------------------------------------------- the explorer

    def record(self, new: Sequence[Trace]) -> None:
        """Add traces. Those that are already there stay as they are, so a repeated call changes nothing. A trace whose
        conversation was pruned meanwhile begins a new one, without tokens: those before them are gone."""
        lists = {hash_of(trace.tools): to_text(list(trace.tools)) for trace in new if trace.tools}
        with self.writing() as connection:
            new = _with_parents(connection, new)
            for values, table in (
                ([{"hash": name, "text": written} for name, written in lists.items()], tools),
                ([to_row(trace) for trace in new], traces),
            ):
                if values:
                    connection.execute(self._insert(table).on_conflict_do_nothing(), values)

    def rate(
        self,
        ids: Sequence[str],
        reward: float | None,
        task_id: str,
        run_id: str,
        *,
        comment: str | None = None,
        correction: str | None = None,
        key: str | None = None,
    ) -> Rated:
        """Give feedback to traces, if a ``key`` is given only to those with it: others are unknown. Only the first one of a trace
        counts. Raises ValueError if ``reward`` is not finite."""
        if reward is not None and not abs(reward) < float("inf"):
            raise ValueError("reward must be a finite number")
        unique = list(dict.fromkeys(ids))
        values = {
            "state": TraceState.RATED,
            "reward": reward,
            "task_id": task_id,
            "run_id": run_id,
            "comment": comment,
            "correction": correction,
            "rated_at": time.time(),
        }
        known: set[str] = set()
        new: set[str] = set()
        with self.reading() as connection:
            for part in _parts(unique):  # a statement takes only so many values
                own = and_(traces.c.id.in_(part), *_with_key(key))
                known |= set(connection.scalars(select(traces.c.id).where(own)))
        there = [name for name in unique if name in known]
        if there:  # unknown ids take no turn of those that write
            with self.writing() as connection:
                for part in _parts(there):
                    own = and_(traces.c.id.in_(part), traces.c.state == TraceState.RECORDED)
                    rating = update(traces).where(own).values(values)
                    new |= set(connection.scalars(rating.returning(traces.c.id)))
        return Rated(
            [name for name in there if name in new],
            [name for name in there if name not in new],
            [name for name in unique if name not in known],
        )

    def commit(
        self,
        task_id: str | None = None,
        run_id: str | None = None,
        before: float | None = None,
        *,
        key: str | None = None,
    ) -> int:
        """Let trainers take rated traces: all, or those of a task, of a run, rated until ``before``, or with a key. Returns how
        many."""
        conditions = [traces.c.state == TraceState.RATED, *_with_key(key)]
        conditions += [traces.c.task_id == task_id] if task_id is not None else []
        conditions += [traces.c.run_id == run_id] if run_id is not None else []
        conditions += [traces.c.rated_at <= before] if before is not None else []
        with self.writing() as connection:
            return connection.execute(
                update(traces).where(*conditions).values(state=TraceState.READY)
            ).rowcount

    def conversation(self, name: str) -> list[Trace]:
        """The traces of a conversation, in the order in which they were recorded."""
        with self.reading() as connection:
            return _read(connection, traces.c.conversation == name)

    def conversations(self, names: Sequence[str]) -> dict[str, list[Trace]]:
        """The traces of some conversations, in the order in which they were recorded."""
        by_name: dict[str, list[Trace]] = {name: [] for name in names}
        for part in _parts(list(names)):
            with self.reading() as connection:
                for trace in _read(connection, traces.c.conversation.in_(part)):
                    by_name[trace.conversation].append(trace)
        return {name: own for name, own in by_name.items() if own}

    def chain(self, key: str, run: str | None, chats: Sequence[str]) -> list[Trace]:
        """The reply of a run, or of none, with an API key that ends one of these chats, the first of them that is there, with its
        parents before it; [] if there is none."""
        with self.reading() as connection:
            # From the index alone: thousands of replies may end equal chats.
            ended = select(traces.c.chat).where(traces.c.key == key, traces.c.chat.in_(chats)).distinct()
            known = set(connection.scalars(ended))
            for chat in chats:
                own = and_(traces.c.key == key, traces.c.chat == chat, traces.c.run.is_not_distinct_from(run))
                # Of equal chats the one that was recorded last.
                newest = (
                    select(traces.c.id, traces.c.conversation).where(own).order_by(traces.c.number.desc())
                )
                if chat in known and (last := connection.execute(newest.limit(1)).one_or_none()):
                    return _chain(connection, last.id, last.conversation)
        return []

    def chain_to(self, key: str, run: str | None, name: str) -> list[Trace]:
        """The reply with this id, of a run or of none with an API key, with its parents before it; [] if there is none."""
        own = and_(traces.c.id == name, traces.c.key == key, traces.c.run.is_not_distinct_from(run))
        with self.reading() as connection:
            row = connection.execute(select(traces.c.id, traces.c.conversation).where(own)).one_or_none()
            return _chain(connection, row.id, row.conversation) if row else []

    def replies_of(
        self, *, run: str | None = None, reply: str | None = None, key: str | None = None
    ) -> list[str]:
        """The ids of the replies of a run, or of the conversation of a reply, to a key or to any."""
        conversation = select(traces.c.conversation).where(traces.c.id == reply).scalar_subquery()
        own = traces.c.run == run if run is not None else traces.c.conversation == conversation
        with self.reading() as connection:
            query = select(traces.c.id).where(own, *_with_key(key)).order_by(traces.c.number)
            return list(connection.scalars(query))

    # ---------------------------------------------------------------- the trainer

    def ready(self, *, by_run: bool = False) -> int:
        """How many tasks have ready traces, or how many runs of tasks."""
        return self._units([TraceState.READY], by_run)

    def waiting(self, *, by_run: bool = False) -> int:
        """How many tasks, or runs of tasks, wait for a trainer, whether committed or not."""
        return self._units([TraceState.RATED, TraceState.READY], by_run)

    def _units(self, states: Sequence[TraceState], by_run: bool) -> int:
        unit = (traces.c.key, traces.c.task_id, *((traces.c.run_id,) if by_run else ()))
        # One query per state: each has an index of its own.
        parts = [select(*unit).where(traces.c.state == state).distinct() for state in states]
        with self.reading() as connection:
            units = union(*parts).subquery()
            return int(connection.execute(select(func.count()).select_from(units)).scalar_one())

    def lease(self, trainer: str, count: int, seconds: float, *, by_run: bool = False) -> Lease | None:
        """Take all ready traces of the first so many tasks, or runs of tasks, for ``seconds`` from now; None if there are none, or
        while a lease is held: of two updates of the same version at the same time only one could be published."""
        now = time.time()
        with self.deciding() as connection:
            _end_expired(connection, now)
            if connection.scalar(select(leases.c.id)) is not None:
                return None
            chosen = _first_ready(connection, count, by_run)
            if not chosen:
                return None
            number = secrets.randbits(62)  # SQLite would count on from a deleted lease's number again
            connection.execute(insert(leases).values(id=number, trainer=trainer, expires=now + seconds))
            for part in _parts(chosen):
                own = and_(traces.c.state == TraceState.READY, traces.c.number.in_(part))
                connection.execute(update(traces).where(own).values(state=TraceState.LEASED, lease=number))
            taken = _read(connection, and_(traces.c.state == TraceState.LEASED, traces.c.lease == number))
        return Lease(number, taken)

    def renew(self, lease: int, seconds: float) -> bool:
        """Let a lease last ``seconds`` from now. False if it has expired and others may have taken its traces: then nothing that was
        learned from them may be kept, and `Versions.learned` keeps nothing."""
        with self.writing() as connection:
            _end_expired(connection, time.time())
            renewed = update(leases).where(leases.c.id == lease).values(expires=time.time() + seconds)
            return bool(connection.execute(renewed).rowcount)

    def release(self, lease: int) -> int:
        """Return the traces of a lease, which are ready again. Returns how many."""
        with self.writing() as connection:
            return _release(connection, [lease])

    def release_all(self, trainer: str) -> int:
        """Return the traces of all leases of a trainer. Returns how many."""
        with self.writing() as connection:
            own = connection.scalars(select(leases.c.id).where(leases.c.trainer == trainer))
            return _release(connection, list(own))

    def holder(self) -> str | None:
        """The trainer that holds a lease; None if none does."""
        with self.reading() as connection:
            return connection.scalar(select(leases.c.trainer))

    def discard(self, ids: Collection[str], reason: str) -> int:
        """Mark traces that will not be trained. Returns how many were not marked yet."""
        changed = 0
        with self.writing() as connection:
            for part in _parts(list(ids)):
                open_ones = and_(
                    traces.c.id.in_(part), traces.c.state.not_in([TraceState.TRAINED, TraceState.DISCARDED])
                )
                values = {"state": TraceState.DISCARDED, "lease": None, "reason": reason}
                changed += connection.execute(update(traces).where(open_ones).values(values)).rowcount
        return changed

    # ---------------------------------------------------------------- commands

    def status(self) -> Status:
        """What the store contains."""
        with self.reading() as connection:
            columns = (
                traces.c.state,
                traces.c.version,
                func.count(),
                func.count(traces.c.reward),
                func.sum(within(traces.c.reward, (-LARGEST, LARGEST))),
            )
            rows = connection.execute(select(*columns).group_by(traces.c.state, traces.c.version)).all()
        states = dict.fromkeys(TraceState, 0)
        sums: dict[int, tuple[int, float]] = {}
        for state, version, count, rated, reward in rows:
            states[TraceState(state)] += count
            before = sums.get(version, (0, 0.0))
            sums[version] = before[0] + rated, before[1] + (reward or 0.0)
        return Status(states, {v: (n, total / n) for v, (n, total) in sorted(sums.items()) if n})

    def size(self) -> int:
        """Bytes of the whole database on its disk."""
        if file := self.file:
            return sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))
        with self.reading() as connection:
            return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())

    def count(self) -> int:
        """How many traces there are."""
        with self.reading() as connection:
            return int(connection.execute(select(func.count()).select_from(traces)).scalar_one())

    def all(self) -> Iterator[Trace]:
        """Every trace, in the order in which they were recorded."""
        return self._pages(traces.c.number > 0)

    def rated(self) -> Iterator[Trace]:
        """Every trace with feedback, in the order in which they were recorded."""
        return self._pages(traces.c.rated_at.is_not(None))

    def _pages(self, condition: Any) -> Iterator[Trace]:
        last = 0
        while True:
            page = _whole().where(condition, traces.c.number > last).limit(PAGE)
            with self.reading() as connection:
                rows = connection.execute(page).mappings().all()
            if not rows:
                return
            yield from map(from_row, rows)
            last = rows[-1]["number"]

    def agree(self, name: str, value: str, problem: str) -> None:
        """Note what holds for all traces, such as the model's vocabulary. Raises ConfigError with ``problem`` if the store says
        otherwise."""
        with self.writing() as connection:
            connection.execute(self._insert(facts).on_conflict_do_nothing(), {"name": name, "value": value})
            stored = connection.execute(select(facts.c.value).where(facts.c.name == name)).scalar_one()
        if stored != value:
            raise ConfigError(f"store {shown(self._engine)}: {problem}")


@contextmanager
def opened(where: str, access: Access) -> Iterator[TraceStore]:
    """The store at a URL or path, open within the block. Raises ConfigError if there is none."""
    store = TraceStore.open(where, access)
    try:
        yield store
    finally:
        store.close()


def within(reward: ColumnElement[float], bounds: tuple[float, float]) -> ColumnElement[float]:
    """A reward, or the bound that it is beyond: before rewards had bounds, any finite number could be stored."""
    low, high = bounds
    return case((reward < low, low), (reward > high, high), else_=reward)


def _whole() -> Select[Any]:
    joined = traces.outerjoin(tools, traces.c.tools == tools.c.hash)
    return select(traces, tools.c.text.label("tools_text")).select_from(joined).order_by(traces.c.number)


def _read(connection: Connection, condition: Any) -> list[Trace]:
    return [from_row(row) for row in connection.execute(_whole().where(condition)).mappings()]


def _with_parents(connection: Connection, new: Sequence[Trace]) -> list[Trace]:
    """New traces, each with a parent in its conversation or without one."""
    parents = list({trace.parent for trace in new if trace.parent})
    there: dict[str, str] = {}
    for part in _parts(parents):
        known = select(traces.c.id, traces.c.conversation).where(traces.c.id.in_(part))
        there |= {row.id: row.conversation for row in connection.execute(known)}
    linked = []
    for trace in new:
        if trace.parent and there.get(trace.parent) != trace.conversation:
            trace = replace(without_tokens(trace), parent=None, conversation=trace.id)
        there[trace.id] = trace.conversation
        linked.append(trace)
    return linked


def _chain(connection: Connection, name: str, conversation: str) -> list[Trace]:
    """A reply with its parents before it; [] if one of them is not in the store."""
    others = {trace.id: trace for trace in _read(connection, traces.c.conversation == conversation)}
    chain = []
    above: str | None = name
    while above is not None:
        if above not in others:
            return []
        chain.append(others[above])
        above = others[above].parent
    return chain[::-1]


def _first_ready(connection: Connection, count: int, by_run: bool) -> list[int]:
    """The numbers of all ready traces of the tasks, or runs, that were recorded first."""
    units: dict[tuple[str, ...], list[int]] = {}
    last = 0
    columns = (traces.c.number, traces.c.key, traces.c.task_id, traces.c.run_id)

    def unit(row: Any) -> tuple[str, ...]:
        return (row.key, row.task_id, *((row.run_id,) if by_run else ()))

    while len(units) < count:
        ready = select(*columns).where(traces.c.state == TraceState.READY, traces.c.number > last)
        rows = connection.execute(ready.order_by(traces.c.number).limit(PAGE)).all()
        if not rows:
            break
        last = rows[-1].number
        for row in rows:
            units.setdefault(unit(row), []).append(row.number)
    chosen = list(units)[:count]
    later = select(*columns).where(
        traces.c.state == TraceState.READY,
        traces.c.number > last,
        traces.c.task_id.in_({task for _, task, *_ in chosen}),
    )
    for row in connection.execute(later):
        if unit(row) in units:
            units[unit(row)].append(row.number)
    return [number for one in chosen for number in units[one]]


def _end_expired(connection: Connection, now: float) -> None:
    expired = list(connection.scalars(select(leases.c.id).where(leases.c.expires < now)))
    if expired:
        _release(connection, expired)


def _release(connection: Connection, numbers: Sequence[int]) -> int:
    leased = and_(traces.c.state == TraceState.LEASED, traces.c.lease.in_(numbers))
    count: int = connection.execute(
        update(traces).where(leased).values(state=TraceState.READY, lease=None)
    ).rowcount
    connection.execute(delete(leases).where(leases.c.id.in_(numbers)))
    return count


def _with_key(key: str | None) -> list[ColumnElement[bool]]:
    return [] if key is None else [traces.c.key == key]


def _parts(ids: list[Any]) -> Iterable[list[Any]]:
    return (ids[start : start + PAGE] for start in range(0, len(ids), PAGE))
