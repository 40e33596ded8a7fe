"""Several explorers on one database, as behind a load balancer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ajet_online.store import TraceStore
from tests.plugins.online.serving import Server, said, starting, user


@pytest.mark.whole
def test_two_explorers_share_conversations_and_feedback(serve: Callable[[], Server], url: str) -> None:
    store = TraceStore.open(url)
    with starting(store) as start_another:
        one, other = serve(), start_another()
        first = one.ask([user("one")])
        second = other.ask([user("one"), said(first), user("two")])
        third = one.ask([user("one"), said(first), user("two"), said(second), user("three")])
        traces = list(store.all())
        assert [trace.parent for trace in traces] == [None, traces[0].id, traces[1].id]
        assert {trace.conversation for trace in traces} == {traces[0].id}
        rated = {"msg_ids": [first.id, third.id], "reward": 1.0, "task_id": "t", "run_id": "0"}
        assert other.post("/feedback", rated).is_success
        again = one.post("/feedback", {**rated, "reward": 0.0, "details": True}).json()
        assert again["rated"] == [] and len(again["unchanged"]) == 2, "only the first feedback counts"
        assert one.post("/commit", {}).is_success
        lease = one.store.lease("a trainer", 1, 60)
        assert lease and other.store.lease("another trainer", 1, 60) is None
    store.close()
