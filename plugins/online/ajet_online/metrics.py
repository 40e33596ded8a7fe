"""What an explorer's `/metrics` tells of the store: what waits for the trainer, and what gate and rollback have decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import func, select

from ajet.capture.gateway.metrics import labelled
from ajet_online.schema import Stage, TraceState, leases, traces
from ajet_online.store import TraceStore
from ajet_online.versions import Version

Metric = tuple[str, str, str, Mapping[str, float]]
"""Name, kind, help, and values by labels."""
_WAITING = (TraceState.RATED, TraceState.READY, TraceState.LEASED)


def store_metrics(store: TraceStore, known: Sequence[Version]) -> list[Metric]:
    """Metrics of a store with these versions. Raises StoreFailed."""
    waiting = (
        select(traces.c.state, func.count()).where(traces.c.state.in_(_WAITING)).group_by(traces.c.state)
    )
    with store.reading() as connection:
        rows = connection.execute(waiting).all()
        updating = connection.scalar(select(func.count()).select_from(leases))
    replies = {state.name.lower(): 0 for state in _WAITING} | {TraceState(s).name.lower(): n for s, n in rows}
    stages = Counter({stage.name.lower(): 0 for stage in Stage})
    stages.update(version.stage.name.lower() for version in known if version.number)
    last = max((version.at for version in known if version.number), default=0.0)
    return [
        (
            "waiting_replies",
            "gauge",
            "Replies that wait for the trainer, by state.",
            labelled("state", replies),
        ),
        ("versions", "gauge", "Versions of the weights, by stage.", labelled("stage", stages)),
        ("updating", "gauge", "Whether a trainer makes an update.", {"": updating or 0}),
        ("last_update_timestamp_seconds", "gauge", "When the last version was trained.", {"": last}),
    ]
