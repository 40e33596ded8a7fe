"""What the store of online training contains: as JSON for programs, and as tables for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, func, insert, select, true, update

from ajet_online.schema import TraceState, facts, traces
from ajet_online.settings import LARGEST
from ajet_online.store import TraceStore, within
from ajet_online.versions import Versions

NEWEST = 20_000
"""Replies that the tables of keys, runs and reasons count."""
_MOST_ROWS = 200
_BOUNDS = "rewards"


def overview(store: TraceStore) -> dict[str, Any]:
    """Traces by state, and each version with its stage, its validation reward and its ratings."""
    status, versions = store.status(), Versions(store)
    serving = versions.serving()
    known = {version.number: version for version in versions.all()}
    listed = {}
    for number in sorted({*known, *status.ratings}):
        count, mean = status.ratings.get(number, (0, None))
        version = known.get(number)
        listed[str(number)] = {
            "stage": version.stage.name.lower() if version else None,
            "parent": version.parent if version else None,
            "validation": version.reward if version else None,
            "rated": count,
            "rating": mean,
            "reason": version.reason if version else None,
            "path": version.path if version else None,
            "at": version.at if version else None,
        }
    return {
        "traces": {state.name.lower(): count for state, count in status.states.items()},
        "serving": serving.number if serving else None,
        "versions": listed,
    }


def tables(store: TraceStore) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The versions of the weights, the served one before the newest ones, with what gate and rollback said of them; replies by
    state; and the newest replies by API key, by run, and by the reason for which they were discarded."""
    seen = overview(store)
    versions = [
        {
            "version": int(number),
            "stage": "served" if int(number) == seen["serving"] else one["stage"],
            "learned from": one["parent"],
            "validation": one["validation"],
            "rated": one["rated"],
            "mean reward": one["rating"],
            "trained at": moment(one["at"]),
            "why": one["reason"],
            "checkpoint": one["path"],
        }
        for number, one in reversed(seen["versions"].items())
    ]
    versions.sort(key=lambda version: version["stage"] != "served")
    columns, newest = traces.c, f"of the newest {NEWEST:,} replies"
    discarded = columns.state == TraceState.DISCARDED
    return {
        "Versions of the weights": versions,
        "Replies": [{"state": name, "replies": count} for name, count in seen["traces"].items()],
        f"API keys {newest}": _groups(store, "API key", columns.key),
        f"Runs {newest}": _groups(store, "run", columns.run),
        f"Reasons why some {newest} were discarded": _groups(store, "reason", columns.reason, discarded),
    }


def _groups(
    store: TraceStore, name: str, column: ColumnElement[Any], where: ColumnElement[bool] | None = None
) -> list[dict[str, Any]]:
    """The newest replies by the value of a column, the group with the latest reply first."""
    since = select(func.max(traces.c.number) - NEWEST).scalar_subquery()
    rewards = func.avg(within(traces.c.reward, (-LARGEST, LARGEST)))
    last = func.max(traces.c.at)
    rows = (
        select(column, func.count(), func.count(traces.c.reward), rewards, last)
        .where(traces.c.number > since, column.is_not(None), true() if where is None else where)
        .group_by(column)
        .order_by(last.desc())
        .limit(_MOST_ROWS)
    )
    with store.reading() as connection:
        return [
            {name: value, "replies": replies, "rated": rated, "mean reward": mean, "last reply": moment(at)}
            for value, replies, rated, mean, at in connection.execute(rows)
        ]


def moment(at: float | None) -> str | None:
    """A time in ISO 8601; None without one."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") if at else None


def note_bounds(store: TraceStore, bounds: tuple[float, float]) -> None:
    """Note the lowest and the highest reward that feedback may give from now on."""
    value = json.dumps(bounds)
    with store.writing() as connection:
        if not connection.execute(update(facts).where(facts.c.name == _BOUNDS).values(value=value)).rowcount:
            connection.execute(insert(facts).values(name=_BOUNDS, value=value))


def bounds_of(store: TraceStore) -> tuple[float, float]:
    """The bounds that were noted last; 0 and 1 if none were."""
    with store.reading() as connection:
        noted = connection.scalar(select(facts.c.value).where(facts.c.name == _BOUNDS))
    low, high = json.loads(noted or "[0, 1]")
    return low, high
