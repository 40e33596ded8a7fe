"""The explorer while something around it fails: one line says what, and what was acknowledged stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from ajet_online.pruning import prune
from ajet_online.schema import TraceState
from ajet_online.store import TraceStore
from tests.plugins.online.conftest import Cluster, trace
from tests.plugins.online.serving import CHAT, Server, said, starting, user

Serve = Callable[..., Server]


@pytest.fixture
def server(file: Path) -> Iterator[Server]:
    """An explorer on SQLite, where these faults are the same as on PostgreSQL."""
    store = TraceStore.open(str(file))
    with starting(store) as start:
        yield start()
    store.close()


def chat(server: Server, *messages: Any) -> httpx.Response:
    return server.post("/v1/chat/completions", {"model": "m", "messages": list(messages)})


def problem(answer: httpx.Response) -> str:
    """The error that a client gets."""
    found = str(answer.json()["error"]["message"])
    assert "\n" not in found
    return found


@pytest.mark.whole
def test_it_goes_on_when_its_database_is_back(cluster: Cluster) -> None:
    store = TraceStore.open(cluster.store())
    with starting(store) as start:
        server = start()
        first = server.ask([user("one")])
        feedback = {"msg_ids": [first.id], "reward": 1.0, "task_id": "t"}
        with cluster.crashed():
            for failed in (chat(server, user("two")), server.post("/feedback", feedback)):
                assert failed.status_code == 503 and "Check that the database runs" in problem(failed)
            assert server.get("/health").status_code == 200
        server.ask([user("one"), said(first), user("three")])
        assert server.post("/feedback", feedback).status_code == 200
        one, three = store.all()
        assert (one.reward, three.parent) == (1.0, one.id)
        assert "ajet_online_store_failures_total 2" in server.get("/metrics").text
    store.close()


def test_it_goes_on_when_its_disk_has_space_again(file: Path) -> None:
    store = TraceStore.open(str(file))
    limit = [0]

    def set_limit(connection: Any, *_: Any) -> None:
        if limit[0]:
            connection.execute(f"PRAGMA max_page_count = {limit[0]}")

    event.listen(store._engine, "checkout", set_limit)
    with starting(store) as start:
        server = start()
        first = server.ask([user("one")])
        with store.reading() as connection:
            limit[0] = int(connection.exec_driver_sql("PRAGMA page_count").scalar_one())
        long = user("much text " * 300)
        refused = [chat(server, long) for _ in range(5)]
        assert {answer.status_code for answer in refused[1:]} == {503}
        assert "Free space on its disk; what was acknowledged is kept" in problem(refused[-1])
        acknowledged = [first.id, *(a.json()["id"] for a in refused if a.status_code == 200)]
        limit[0] = 1_000_000
        acknowledged.append(server.ask([user("one"), said(first), user("two")]).id)
        assert [f"chatcmpl-{t.id}" for t in store.all()] == acknowledged
    store.close()


@pytest.mark.whole
def test_feedback_for_a_pruned_reply_is_unknown(server: Server) -> None:
    old, new = server.ask([user("one")]), server.ask([user("two")])
    *_, last = server.store.all()
    assert prune(server.store, last.at) == 1
    body = {"msg_ids": [old.id, new.id], "reward": 1.0, "task_id": "t", "details": True}
    answer = server.post("/feedback", body)
    assert (answer.json()["unknown"], answer.json()["rated"]) == ([old.id], [new.id])


def test_a_conversation_that_was_pruned_while_it_went_on_begins_anew(server: Server) -> None:
    messages = [user("one")]
    messages += [said(server.ask(messages)), user("two")]
    assert prune(server.store, float("inf")) == 1
    messages += [said(server.ask(messages)), user("three")]
    server.ask(messages)
    for found in server.store.all():
        assert (found.parent, found.conversation, len(found.tokens), found.trained) == (
            None,
            found.id,
            0,
            False,
        )
    assert server.engine.tokenizer.decode(server.engine.requests[-1].prompt_ids).count("user") == 3


def test_a_failure_that_nobody_expected_ends_no_later_call(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(new: Any) -> None:
        raise TypeError("set is not JSON serializable")

    monkeypatch.setattr(server.store, "record", fail)
    failed = chat(server, user("one"))
    assert failed.status_code == 503 and "cannot be stored: TypeError: set is not" in problem(failed)
    monkeypatch.undo()
    assert chat(server, user("one")).status_code == 200


@pytest.mark.whole
def test_an_agent_with_letters_of_any_language_is_stored(serve: Serve) -> None:
    server = serve()
    body = {"model": "m", "messages": [user("hi")]}
    answer = httpx.post(f"{server.url}/k/{CHAT}/a/%C3%9Cbersetzer/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert [t.agent for t in server.store.all()] == ["Übersetzer"]


# --------------------------------------------------------------------------- the clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the store's process, which a test sets."""
    now = [1_000_000.0]
    monkeypatch.setattr("ajet_online.store.time", SimpleNamespace(time=lambda: now[0]))
    return now


def test_replies_keep_their_order_when_the_clock_is_set_back(store: TraceStore) -> None:
    store.record([trace("a", at=9000.0)])
    store.record([trace("b", at=5400.0, conversation="a", parent="a"), trace("c", at=5401.0)])
    assert [t.id for t in store.all()] == ["a", "b", "c"]
    assert [t.id for t in store.conversation("a")] == ["a", "b"]
    assert prune(store, 6000.0) == 1, "a conversation is as old as its newest time"
    assert [t.id for t in store.all()] == ["a", "b"]


def leased(store: TraceStore, seconds: float) -> int:
    """A lease of one reply."""
    store.record([trace("a")])
    store.rate(["a"], 1.0, "t", "0")
    store.commit()
    found = store.lease("one", 1, seconds)
    assert found
    return found.id


def test_a_clock_that_is_set_back_frees_no_lease_and_delays_its_end(
    store: TraceStore, clock: list[float]
) -> None:
    lease = leased(store, 600)
    clock[0] -= 3600
    assert store.lease("two", 1, 600) is None, "its trainer still works"
    assert store.renew(lease, 600), "which also moves its end to the new time"
    clock[0] += 601
    assert not store.renew(lease, 600)
    again = store.lease("two", 1, 600)
    assert again
    clock[0] -= 3600
    assert store.lease("one", 1, 600) is None
    clock[0] += 3600 + 601
    assert store.lease("one", 1, 600), "a trainer that crashed delays its replies by the hour, not forever"


def test_a_clock_that_is_set_forward_ends_a_lease_but_trains_nothing_twice(
    store: TraceStore, clock: list[float]
) -> None:
    from ajet_online.versions import Versions

    versions = Versions(store)
    versions.begin("model")
    early = leased(store, 600)
    clock[0] += 3600
    second = store.lease("two", 1, 600)
    assert second and not store.renew(early, 600)
    assert versions.learned(early, "/one", 0) is None, "what it has learned is not used"
    assert versions.learned(second.id, "/two", 0) == 1
    assert [t.state for t in store.all()] == [TraceState.TRAINED]
