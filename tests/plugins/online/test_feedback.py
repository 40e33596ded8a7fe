"""Feedback by run, by conversation and by thumb; corrections; run names in keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from ajet_online import store as store_module
from ajet_online.episodes import usable
from ajet_online.feedback import id_of_reply
from ajet_online.keys import Key, Keys
from ajet_online.schema import TraceState
from ajet_online.settings import OnlineSettings
from ajet_online.store import TraceStore
from ajet_online.versions import Versions
from tests.plugins.online.conftest import trace
from tests.plugins.online.serving import ADMIN, CHAT, OTHER, RATER, Server, said, user

Serve = Callable[..., Server]


@pytest.fixture
def url(file: Path) -> str:
    """SQLite is enough here."""
    return f"sqlite:///{file}"


def by_id(store: TraceStore) -> dict[str, Any]:
    return {found.id: found for found in store.all()}


@pytest.mark.whole
def test_a_client_names_its_run_with_its_key_and_rates_the_run(serve: Serve) -> None:
    server = serve()
    first = server.ask([user("a")], f"{CHAT}~task-1.0")
    server.ask([user("a"), said(first), user("b")], f"{CHAT}~task-1.0")
    server.ask([user("a")], f"{CHAT}~task-1.1")
    server.ask([user("a")])
    path = httpx.post(
        f"{server.url}/k/{CHAT}~task-1.0/v1/chat/completions", json={"model": "m", "messages": [user("c")]}
    )
    assert path.status_code == 200
    assert [t.run for t in server.store.all()] == ["task-1.0", "task-1.0", "task-1.1", None, "task-1.0"]
    given = server.post("/feedback", {"run": "task-1.0", "reward": 1.0, "task_id": "task-1", "run_id": 0})
    assert len(given.json()["rated"]) == 3
    again = server.post("/feedback", {"run": "task-1.0", "reward": 0.0})
    assert (len(again.json()["unchanged"]), again.json()["rated"]) == (3, [])
    assert server.post("/feedback", {"run": "none", "reward": 0.0}).json()["unknown"] == ["none"]
    rated = [t for t in server.store.all() if t.state == TraceState.RATED]
    assert {(t.task_id, t.run_id, t.reward) for t in rated} == {("task-1", "0", 1.0)}


def test_runs_do_not_continue_each_others_conversations(serve: Serve) -> None:
    server = serve()
    first = server.ask([user("a")], f"{CHAT}~one")
    server = serve()
    server.ask([user("a"), said(first), user("b")], f"{CHAT}~two")
    server.ask([user("a"), said(first), user("b")], f"{CHAT}~one")
    one, two, three = server.store.all()
    assert two.parent is None and three.parent == one.id


def test_a_secret_may_contain_the_separator() -> None:
    keys = Keys([Key("a", "secret~with-tilde-1234", ("chat",)), Key("b", "plain-secret-012345", ("chat",))])
    sent = [
        keys.find(text)
        for text in ("secret~with-tilde-1234", "secret~with-tilde-1234~run", "plain-secret-012345~r.1")
    ]
    assert [(s.key.name, s.run) for s in sent if s] == [("a", None), ("a", "run"), ("b", "r.1")]
    assert keys.find("plain-secret-012345~no run") is keys.find("wrong~run") is keys.find(None) is None


def test_a_thumb_on_a_conversation(serve: Serve) -> None:
    server = serve()
    first = server.ask([user("a")])
    second = server.ask([user("a"), said(first), user("b")])
    given = server.post("/feedback", {"conversation": second.id, "thumb": "up", "comment": "thanks"})
    assert len(given.json()["rated"]) == 2
    assert {(t.reward, t.comment, t.run_id) for t in server.store.all()} == {(1.0, "thanks", "0")}
    other = server.ask([user("c")])
    server.post("/feedback", {"conversation": other.id, "thumb": "down"})
    assert [t.reward for t in server.store.all()] == [1.0, 1.0, 0.0]


def test_rewards_have_the_bounds_of_the_job_and_thumbs_give_them(serve: Serve) -> None:
    server = serve(rewards=(1.0, 5.0))
    for feedback in ({"reward": 5}, {"reward": 1.5}, {"thumb": "up"}, {"thumb": "down"}):
        given = server.post("/feedback", {"conversation": server.ask([user("a")]).id, **feedback})
        assert given.status_code == 200
    assert [t.reward for t in server.store.all()] == [5.0, 1.5, 5.0, 1.0]
    refused = server.post("/feedback", {"run": "a", "reward": 0})
    assert refused.status_code == 400 and "\n" not in refused.json()["error"]["message"]
    assert "reward must be a number from 1 to 5" in refused.text


@pytest.mark.parametrize(
    "bounds", [[1, 0], [0, 0], [0, 1e7], [float("nan"), 1], [0, float("inf")], [0], 1, ["a", 1]]
)
def test_bounds_of_rewards_are_two_finite_numbers(bounds: Any) -> None:
    with pytest.raises(ValidationError, match="rewards"):
        OnlineSettings(rewards=bounds)


def test_a_run_and_a_conversation_are_tasks_of_their_own(serve: Serve) -> None:
    server = serve()
    first = server.ask([user("a")])
    second = server.ask([user("a"), said(first), user("b")])
    server.ask([user("a")], f"{CHAT}~one")
    server.post("/feedback", {"conversation": second.id, "thumb": "up", "task_id": None})
    server.post("/feedback", {"run": "one", "thumb": "up"})
    conversation = next(server.store.all()).id
    assert [t.task_id for t in server.store.all()] == [conversation, conversation, "one"]


def test_a_long_run_is_rated_in_several_statements(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PAGE", 2)
    server = serve()
    server.store.record([trace(f"r{n}", run="long", key="app") for n in range(5)])
    given = server.post("/feedback", {"run": "long", "thumb": "up"})
    assert given.json()["rated"] == [f"r{n}" for n in range(5)]
    assert server.post("/feedback", {"run": "long", "thumb": "up"}).json()["rated"] == []


@pytest.mark.whole
def test_a_key_with_feedback_all_rates_replies_to_every_key(serve: Serve) -> None:
    server = serve()
    name = server.ask([user("a")], OTHER).id
    given = server.post("/feedback", {"conversation": name, "thumb": "up"}, RATER)
    assert given.json()["rated"] == [name.removeprefix("chatcmpl-")]


def test_a_key_neither_rates_nor_commits_the_replies_to_another(serve: Serve) -> None:
    server = serve()
    theirs, run, own = (server.ask([user("a")], key).id for key in (OTHER, f"{OTHER}~order-1", CHAT))
    for form in (
        {"msg_ids": [theirs], "task_id": "t"},
        {"conversation": theirs, "task_id": "t"},
        {"run": "order-1"},
        {"msg_ids": [run], "task_id": "t"},
    ):
        answer = server.post("/feedback", {**form, "reward": 0, "details": True}).json()
        assert not answer["rated"] and not answer["unchanged"] and len(answer["unknown"]) == 1
    for name in (theirs, run):
        server.post(
            "/feedback", {"msg_ids": [name], "reward": 1, "task_id": "order-77", "run_id": "0"}, RATER
        )
    server.post("/feedback", {"msg_ids": [own], "reward": 0, "task_id": "order-77", "run_id": "1"})
    for body in ({"task_id": "order-77"}, {"run_id": "0"}, {"time_threshold": 4e9}, b""):
        server.post("/commit", body)
    assert [trace.state for trace in server.store.all()] == [
        TraceState.RATED,
        TraceState.RATED,
        TraceState.READY,
    ]
    assert server.post("/commit", b"", RATER).json()["message"] == "2 committed"


def test_replies_to_two_keys_are_never_of_one_task(store: TraceStore) -> None:
    store.record([trace("a", key="shop"), trace("b", key="shop"), trace("x", key="other")])
    for name, run in (("a", "0"), ("b", "1"), ("x", "2")):
        store.rate([name], 1.0, "order-77", run)
    assert store.waiting() == 2
    store.commit(key="shop")
    assert store.ready() == 1
    store.commit()
    lease = store.lease("t", 1, 60)
    assert lease and [found.id for found in lease.traces] == ["a", "b"]
    found = usable(
        [*lease.traces, trace("x", key="other", task_id="order-77", run_id="2", reward=1.0)],
        store.conversation,
        lambda _: None,
        target="policy",
        split=False,
        context=100,
    )
    assert [len(task.runs) for task in found.tasks] == [2, 1]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (f"chatcmpl-{'0' * 24}", "0" * 24),
        (f"resp_{'a' * 24}", "a" * 24),
        (f"{'a' * 24}-3", f"{'a' * 24}-3"),
        (f"x{'a' * 24}", None),
        (f"chatcmpl-{'0' * 24}\n", None),
        ("a" * 30_000_000, None),
    ],
)
def test_the_id_of_a_reply_is_all_of_what_the_client_got(given: str, name: str | None) -> None:
    assert id_of_reply(given) == name


def test_a_correction_needs_no_reward(serve: Serve) -> None:
    server = serve()
    reply = server.ask([user("a")])
    given = server.post("/feedback", {"msg_ids": [reply.id], "correction": "better", "task_id": "t"})
    assert given.json()["rated"] == [reply.id]
    (found,) = server.store.all()
    assert (found.correction, found.reward, found.state) == ("better", None, TraceState.RATED)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"reward": 1}, "exactly one of msg_ids, run and conversation"),
        ({"msg_ids": ["a"], "run": "b", "reward": 1}, "exactly one of msg_ids, run and conversation"),
        ({"run": "a"}, "reward must be a number from 0 to 1, "),
        ({"run": "a", "thumb": "sideways"}, "thumb must be up or down"),
        ({"run": "a", "thumb": "up", "reward": 1}, "give reward or thumb, not both"),
        (
            {"msg_ids": ["a"], "thumb": "up"},
            "task_id is missing; for a rating of one reply, give the reply's id",
        ),
        ({"run": "a", "thumb": "up", "correction": "b"}, "a correction is of one reply"),
        *(
            (
                {"run": "a", "reward": reward},
                "reward must be a number from 0 to 1, the bounds that plugins.online.rewards ",
            )
            for reward in (1e308, -1e-9, 1.0000001, 10**400, float("nan"), float("inf"), "1", True, [1], {})
        ),
        ({"run": "a", "thumb": True}, "thumb must be up or down"),
        ({"run": "a", "thumb": ["up"]}, "thumb must be up or down"),
        ({"msg_ids": ["a"], "reward": 1, "task_id": "a\ud800"}, "task_id has zero characters or halves"),
        ({"msg_ids": ["a\0"], "reward": 1, "task_id": "t"}, "msg_ids has zero characters or halves"),
        ({"run": "a", "reward": 1, "comment": "\0"}, "comment has zero characters or halves"),
        ({"run": "a", "rewrd": 1}, "unknown field 'rewrd'; this page takes msg_ids, reward, task_id"),
        (
            {"msg_ids": ["a" * 65], "reward": 1, "task_id": "t"},
            "the id of a reply is a string of at most 64 characters",
        ),
        ({"msg_ids": ["a", 1], "reward": 1, "task_id": "t"}, "the id of a reply is a string of"),
        ({"conversation": "a" * 65, "reward": 1}, "the id of a reply is a string of at most 64 characters"),
        (
            {"msg_ids": ["a"], "reward": 1, "task_id": "\u00fc" * 257},
            "task_id has more than 256 characters",
        ),
        ({"msg_ids": ["a"], "reward": 1, "task_id": "t", "run_id": 10**300}, "run_id has more than 256"),
    ],
)
def test_unclear_feedback_is_refused(standing: Server, body: dict[str, Any], problem: str) -> None:
    answer = standing.post("/feedback", body)
    assert answer.status_code == 400 and problem in answer.text


@pytest.mark.parametrize("time", [1795446000000, -1, float("nan"), 10**400, True, "now"])
def test_a_time_that_is_not_in_seconds_since_1970_commits_nothing(standing: Server, time: Any) -> None:
    answer = standing.post("/commit", {"time_threshold": time})
    assert answer.status_code == 400 and "time_threshold must be a time in seconds, not milli" in answer.text


def test_an_admin_sees_the_status_and_rolls_back(serve: Serve, store: TraceStore) -> None:
    server = serve()
    versions = Versions(store)
    versions.begin("model")
    store.record([trace("a")])
    store.rate(["a"], 1.0, "t", "0")
    store.commit()
    lease = store.lease("t", 1, 60)
    assert lease and versions.learned(lease.id, "/one", 0) == 1 and versions.publish(1, 0.5, {})
    found = server.get("/online/status", ADMIN).json()
    assert found["serving"] == 1 and found["traces"]["trained"] == 1
    assert (found["versions"]["1"]["stage"], found["versions"]["1"]["validation"]) == ("published", 0.5)
    assert "checkpoint /one no longer exists" in server.post("/rollback", {"version": 1}, ADMIN).text
    assert server.post("/rollback", {"version": 0}, ADMIN).json() == {"status": "success", "withdrawn": [1]}
    assert server.get("/v1/online/status", ADMIN).json()["serving"] == 0
    assert "version 7: is not published" in server.post("/rollback", {"version": 7}, ADMIN).text
    assert server.get("/online/status", OTHER).status_code == 403
    assert server.get("/online/status", "wrong").status_code == 401


def test_metrics_count_what_happens(serve: Serve) -> None:
    server = serve()
    reply = server.ask([user("a")])
    server.post("/feedback", {"msg_ids": [reply.id, "x"], "reward": 1, "task_id": "t"})
    server.post("/commit", b"")
    found = dict(
        line.rsplit(" ", 1)
        for line in server.get("/metrics").text.splitlines()
        if line.startswith("ajet_online")
    )
    for name in (
        "traces_total",
        "ratings_total",
        "unknown_ids_total",
        "committed_total",
        "store_seconds_count",
    ):
        assert float(found[f"ajet_online_{name}"]) == 1
    assert float(found["ajet_online_store_seconds_sum"]) > 0


def test_metrics_are_named_and_typed_as_prometheus_wants_them(serve: Serve) -> None:
    server = serve()
    server.ask([user("a")])
    suffixes = {"counter": [""], "gauge": [""], "summary": ["_sum", "_count"]}
    suffixes["histogram"] = [*suffixes["summary"], "_bucket"]
    allowed: set[str] = set()
    for line in server.get("/metrics").text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name.endswith("_total") == (kind == "counter"), line
            allowed = {name + suffix for suffix in suffixes[kind]}
        elif not line.startswith("# HELP "):
            assert re.split(r"[ {]", line)[0] in allowed, line
            float(line.rsplit(" ", 1)[1])
