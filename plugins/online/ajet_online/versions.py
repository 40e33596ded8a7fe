"""Versions of the weights: which exist, which of them explorers serve, and what users think of each."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Subquery, and_, delete, func, insert, select, update

from ajet import ConfigError
from ajet_online.schema import Stage, TraceState, leases, traces, versions
from ajet_online.settings import LARGEST
from ajet_online.store import TraceStore, within


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of the weights. Number 0 is the model before any training."""

    number: int
    parent: int | None
    """The version that it was trained from."""
    path: str
    """The folder of its checkpoint; of version 0 the model."""
    stage: Stage
    lease: int | None = None
    """The lease of the traces that it has learned from."""
    reward: float | None = None
    """On the validation tasks."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """What the gate has measured."""
    reason: str | None = None
    """Why it was rejected or withdrawn."""
    at: float = 0.0
    """When it was trained, in seconds since 1970."""


class Versions:
    """The versions in a store. Its methods may be called from any thread and raise StoreFailed if the database fails."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store

    def begin(self, model: str) -> Version:
        """Version 0, which is ``model``. Raises ConfigError if the store began with another model."""
        values = {"number": 0, "path": model, "stage": Stage.PUBLISHED, "at": time.time()}
        with self._store.writing() as connection:
            if _read(connection, versions.c.number == 0) == []:
                connection.execute(insert(versions).values(values))
            (first,) = _read(connection, versions.c.number == 0)
        if first.path != model:
            raise ConfigError(
                f"the store's first model is {first.path}, not {model}. Name that model, or another store."
            )
        return first

    def all(self) -> list[Version]:
        """Every version, by number."""
        with self._store.reading() as connection:
            return _read(connection)

    def serving(self) -> Version | None:
        """The version that explorers serve: the newest published one. None before `begin`."""
        with self._store.reading() as connection:
            return _serving(connection)

    def published(self) -> list[Version]:
        """The published versions, by number; the last one is served."""
        with self._store.reading() as connection:
            return _read(connection, versions.c.stage == Stage.PUBLISHED)

    def learned(self, lease: int, path: str, parent: int) -> int | None:
        """Note that the checkpoint at ``path`` has learned from the traces of a lease, which are marked as trained and not leased
        again. The lease itself ends with `publish` or `reject`. Returns the number of the new candidate; None if the lease is
        gone, because it had expired and another trainer may have taken its traces: then the checkpoint must not be used.
        Repeating the call changes nothing."""
        with self._store.deciding() as connection:
            known = connection.scalar(select(versions.c.number).where(versions.c.lease == lease))
            if known is not None:
                return int(known)
            if connection.scalar(select(leases.c.id).where(leases.c.id == lease)) is None:
                return None
            number = int(connection.scalar(select(func.max(versions.c.number))) or 0) + 1
            values = {
                "number": number,
                "parent": parent,
                "path": path,
                "stage": Stage.CANDIDATE,
                "lease": lease,
                "at": time.time(),
            }
            connection.execute(insert(versions).values(values))
            own = update(traces).where(traces.c.state == TraceState.LEASED, traces.c.lease == lease)
            connection.execute(own.values(state=TraceState.TRAINED, step=number, lease=None))
        return number

    def publish(self, number: int, reward: float | None, report: Mapping[str, Any]) -> bool:
        """Let explorers serve a candidate. If explorers no longer serve the version from which it was trained, reject it instead,
        make its traces ready to be learned again, and return False."""
        with self._store.deciding() as connection:
            serving = _serving(connection)
            (candidate,) = _read(connection, versions.c.number == number)
            assert serving  # version 0 is never withdrawn
            held = serving.number == candidate.parent
            values = {"stage": Stage.PUBLISHED, "reward": reward, "report": json.dumps(report)}
            if not held:
                (parent,) = _read(connection, versions.c.number == candidate.parent)
                why = (
                    "withdrawn"
                    if parent.stage == Stage.WITHDRAWN
                    else f"followed by version {serving.number}"
                )
                values |= {"stage": Stage.REJECTED, "reason": f"version {parent.number} was {why} meanwhile"}
                own = update(traces).where(traces.c.state == TraceState.TRAINED, traces.c.step == number)
                connection.execute(own.values(state=TraceState.READY, step=None))
            _decided(connection, candidate, values)
        return held

    def reject(self, number: int, reward: float | None, report: Mapping[str, Any], reason: str) -> None:
        """Keep a candidate back."""
        values = {"stage": Stage.REJECTED, "reward": reward, "report": json.dumps(report), "reason": reason}
        with self._store.writing() as connection:
            (candidate,) = _read(connection, versions.c.number == number)
            _decided(connection, candidate, values)

    def measured(self, number: int, reward: float, report: Mapping[str, Any]) -> None:
        """Note the reward of a version on the validation tasks."""
        with self._store.writing() as connection:
            own = update(versions).where(versions.c.number == number)
            connection.execute(own.values(reward=reward, report=json.dumps(report)))

    def withdraw(self, to: int, reason: str) -> list[int]:
        """Withdraw every published version after ``to``, which is then served; returns them. Raises ConfigError if ``to`` is not
        published, or its checkpoint was removed."""
        with self._store.deciding() as connection:
            published = {v.number: v.path for v in _read(connection, versions.c.stage == Stage.PUBLISHED)}
            if to not in published:
                known = ", ".join(map(str, published)) or "none"
                raise ConfigError(f"version {to}: is not published. Published: {known}.")
            if to and not Path(published[to]).is_dir():
                raise ConfigError(
                    f"version {to}: its checkpoint {published[to]} no longer exists. Name another version."
                )
            later = [number for number in published if number > to]
            own = update(versions).where(versions.c.number.in_(later))
            connection.execute(own.values(stage=Stage.WITHDRAWN, reason=reason))
        return later

    def moved(self, number: int, path: str) -> None:
        """Note where the checkpoint of a version is now."""
        with self._store.writing() as connection:
            connection.execute(update(versions).where(versions.c.number == number).values(path=path))

    def rated(self, number: int) -> int:
        """How many replies of a version have a reward."""
        own = and_(traces.c.version == number, traces.c.reward.is_not(None))
        with self._store.reading() as connection:
            return connection.execute(select(func.count()).where(own)).scalar_one()

    def count_ratings(self, number: int) -> int:
        """How many ratings a version has; see `ratings`."""
        with self._store.reading() as connection:
            return connection.execute(select(func.count()).select_from(_ratings([number]))).scalar_one()

    def ratings(self, numbers: Sequence[int], bounds: tuple[float, float]) -> dict[int, NDArray[np.float64]]:
        """The ratings of these versions: of each episode (what a key has rated with one task and run) the mean reward of the
        replies that the version has given. Rewards beyond ``bounds``, which an earlier job allowed, count as these. The API keys
        take turns, so that of the first ratings none has more than its share; those of a key are in the order in which they
        were given."""
        return {number: rewards for number, (rewards, _) in self.votes(numbers, bounds).items()}

    def votes(
        self, numbers: Sequence[int], bounds: tuple[float, float]
    ) -> dict[int, tuple[NDArray[np.float64], Sequence[str]]]:
        """The `ratings` of these versions, and the API key of each."""
        episodes = _ratings(numbers, bounds).c
        order = episodes.at, episodes.first
        turn = func.row_number().over(partition_by=(episodes.version, episodes.key), order_by=order)
        wanted = select(episodes.version, episodes.reward, episodes.key).order_by(turn, *order)
        votes: dict[int, tuple[list[float], list[str]]] = {number: ([], []) for number in numbers}
        with self._store.reading() as connection:
            for version, reward, key in connection.execute(wanted):
                votes[version][0].append(reward)
                votes[version][1].append(key)
        return {number: (np.array(rewards, np.float64), keys) for number, (rewards, keys) in votes.items()}


def _ratings(numbers: Sequence[int], bounds: tuple[float, float] = (-LARGEST, LARGEST)) -> Subquery:
    columns = traces.c
    return (
        select(
            columns.version,
            columns.key,
            (func.sum(within(columns.reward, bounds)) / func.count()).label("reward"),
            func.min(columns.rated_at).label("at"),
            func.min(columns.number).label("first"),
        )
        .where(columns.reward.is_not(None), columns.version.in_(numbers))
        .group_by(columns.version, columns.key, columns.task_id, columns.run_id)
        .subquery()
    )


def distance(known: Collection[Version], sampled: int, learning: int) -> int:
    """How many updates lie between two versions along the tree of versions: the staleness of a reply."""
    parents = {version.number: version.parent for version in known}
    above = _ancestors(parents, sampled)
    for steps, number in enumerate(_ancestors(parents, learning)):
        if number in above:
            return steps + above.index(number)
    return len(above)  # of a version that the store no longer knows


def _ancestors(parents: Mapping[int, int | None], number: int) -> list[int]:
    ancestors = []
    current: int | None = number
    while current is not None:
        ancestors.append(current)
        current = parents.get(current)
    return ancestors


def _decided(connection: Connection, candidate: Version, values: Mapping[str, Any]) -> None:
    connection.execute(update(versions).where(versions.c.number == candidate.number).values(**values))
    connection.execute(delete(leases).where(leases.c.id == candidate.lease))


def _serving(connection: Connection) -> Version | None:
    published = _read(connection, versions.c.stage == Stage.PUBLISHED)
    return published[-1] if published else None


def _read(connection: Connection, *conditions: Any) -> list[Version]:
    rows = connection.execute(select(versions).where(*conditions).order_by(versions.c.number)).mappings()
    return [
        Version(
            **{name: row[name] for name in ("number", "parent", "path", "lease", "reward", "reason", "at")},
            stage=Stage(row["stage"]),
            report=json.loads(row["report"]) if row["report"] else {},
        )
        for row in rows
    ]
