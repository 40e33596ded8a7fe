"""The store: each trace goes from one state to the next, once, whatever is repeated, ends early or runs at the same time."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.types import AjetError, ConfigError
from ajet_online.database import StoreFailed, open_database
from ajet_online.feedback import LONGEST_NAME
from ajet_online.schema import TraceState, metadata
from ajet_online.store import TraceStore
from tests.patience import PATIENCE
from tests.plugins.online.conftest import Cluster, trace


def rated(store: TraceStore, count: int, task: str = "t{}", run: str = "0") -> list[str]:
    """The ids of so many traces, each rated for its own task."""
    ids = [f"reply-{n}" for n in range(count)]
    store.record([trace(name) for name in ids])
    for n, name in enumerate(ids):
        assert store.rate([name], float(n), task.format(n), run).new == [name]
    return ids


def states(store: TraceStore) -> Counter[TraceState]:
    return Counter({state: count for state, count in store.status().states.items() if count})


def the(store: TraceStore, name: str) -> Any:
    (found,) = store.conversation(name)
    return found


# --------------------------------------------------------------------------- recording


@pytest.mark.whole
def test_a_trace_is_read_as_it_was_recorded(store: TraceStore) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    whole = trace(
        "a",
        versions=np.array([7, 7, 8], np.int32),
        messages=[{"role": "user", "content": "zero \x00, a lone surrogate \ud800, 🦊"}],
        tools=tools,
    )
    nothing = np.array([], np.int32)
    empty = trace("b", tokens=nothing, logprobs=nothing.astype(np.float32), versions=nothing)
    store.record([whole, empty])
    found = the(store, "a")
    for name in ("prompt", "tokens", "logprobs", "versions"):
        own, recorded = getattr(found, name), getattr(whole, name)
        assert own.dtype == recorded.dtype
        np.testing.assert_array_equal(own, recorded)
    assert (found.messages, found.answer, found.tools) == (whole.messages, whole.answer, tools)
    assert (found.at, found.key, found.state, found.reward) == (1000.0, "k", TraceState.RECORDED, None)
    assert len(the(store, "b").tokens) == 0


@pytest.mark.whole
def test_recording_again_changes_nothing(store: TraceStore) -> None:
    store.record([trace("a")])
    store.rate(["a"], 1.0, "t", "0")
    store.record([trace("a", agent="another"), trace("b")])
    assert (the(store, "a").agent, the(store, "a").state) == ("agent", TraceState.RATED)
    assert sum(states(store).values()) == 2


def test_a_conversation_has_its_traces_in_order(store: TraceStore) -> None:
    store.record([trace("a"), trace("x"), trace("b", conversation="a", parent="a")])
    store.record([trace("c", conversation="a", parent="b")])
    assert [t.id for t in store.conversation("a")] == ["a", "b", "c"]
    assert [t.id for t in store.all()] == ["a", "x", "b", "c"]


# --------------------------------------------------------------------------- feedback


def test_only_the_first_feedback_counts_and_unknown_ids_are_named(store: TraceStore) -> None:
    store.record([trace("a"), trace("b")])
    first = store.rate(["a", "nobody", "a"], 0.5, "t", "0", comment="good", correction="hi!")
    assert (first.new, first.unchanged, first.unknown) == (["a"], [], ["nobody"])
    second = store.rate(["a", "b"], -1.0, "u", "1")
    assert (second.new, second.unchanged, second.unknown) == (["b"], ["a"], [])
    found = the(store, "a")
    assert (found.reward, found.task_id, found.run_id, found.comment, found.correction) == (
        0.5,
        "t",
        "0",
        "good",
        "hi!",
    )


@pytest.mark.whole
def test_a_chat_is_found_by_its_hash_with_the_replies_before_it(store: TraceStore) -> None:
    store.record([trace("a", chat="one"), trace("b", conversation="a", parent="a", chat="two")])
    store.record([trace("x", chat="two", key="other")])
    assert [t.id for t in store.chain("k", None, ["three", "two", "one"])] == ["a", "b"]
    assert [t.id for t in store.chain("k", None, ["one"])] == ["a"]
    assert [t.id for t in store.chain("other", None, ["two", "one"])] == ["x"]
    assert store.chain("other", None, ["one"]) == store.chain("k", None, []) == []


@pytest.mark.whole
def test_of_thousands_of_equal_chats_the_last_one_is_found_as_soon_as_a_single_one(store: TraceStore) -> None:
    def seconds(last: str) -> float:
        took = []
        for _ in range(5):
            began = time.process_time()
            assert [t.id for t in store.chain("k", None, ["longer", "same"])] == [last]
            took.append(time.process_time() - began)
        return min(took)

    store.record([trace("first", chat="same")])
    alone = seconds("first")
    store.record([trace(f"a{number}", chat="same") for number in range(5_000)])
    assert seconds("a4999") < 5 * alone


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_is_a_number(store: TraceStore, reward: float) -> None:
    store.record([trace("a")])
    with pytest.raises(ValueError, match="finite"):
        store.rate(["a"], reward, "t", "0")
    assert the(store, "a").state == TraceState.RECORDED


@pytest.mark.whole
def test_a_commit_makes_rated_traces_ready(store: TraceStore) -> None:
    rated(store, 4)
    store.record([trace("unrated")])
    assert store.commit("t0", "1") == 0
    assert store.commit("t0", "0") == 1
    assert store.commit(before=time.time() - 3600) == 0
    assert store.commit("t1") == 1
    assert store.commit() == 2
    assert store.commit() == 0
    assert states(store) == {TraceState.READY: 4, TraceState.RECORDED: 1}


# --------------------------------------------------------------------------- leases


@pytest.mark.whole
def test_a_lease_takes_whole_tasks_in_order(store: TraceStore) -> None:
    store.record([trace(name) for name in "abcde"])
    for name, task, run in (
        ("a", "t", "0"),
        ("b", "u", "0"),
        ("c", "t", "1"),
        ("d", "t", "0"),
        ("e", "v", "0"),
    ):
        store.rate([name], 1.0, task, run)
    assert store.lease("one", 2, 60) is None, "nothing is committed"
    store.commit()
    first = store.lease("one", 2, 60)
    assert first and [t.id for t in first.traces] == ["a", "b", "c", "d"]
    assert states(store) == {TraceState.LEASED: 4, TraceState.READY: 1}


@pytest.mark.whole
def test_trainers_take_turns(store: TraceStore) -> None:
    ids = rated(store, 2, task="t{}")
    store.commit()
    first = store.lease("one", 1, 60)
    assert first and store.lease("two", 1, 60) is None and store.holder() == "one"
    assert store.release_all("two") == 0 and store.release_all("one") == 1
    assert store.holder() is None
    second = store.lease("two", 2, 60)
    assert second and [t.id for t in second.traces] == ids


@pytest.mark.whole
def test_trainers_at_the_same_time_share_no_trace(url: str) -> None:
    store = TraceStore.open(url)
    rated(store, 60, task="t{}")
    store.commit()
    taken: list[list[str]] = [[] for _ in range(4)]

    def train(number: int) -> None:
        own = TraceStore.open(url)
        while own.ready():
            if lease := own.lease(f"trainer {number}", 3, 60):
                taken[number] += [t.id for t in lease.traces]
                own.discard([t.id for t in lease.traces], "")
                own.release(lease.id)
        own.close()

    threads = [threading.Thread(target=train, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(name for names in taken for name in names) == sorted(f"reply-{n}" for n in range(60))
    store.close()


def test_an_expired_lease_is_taken_by_another_trainer(store: TraceStore) -> None:
    ids = rated(store, 2)
    store.commit()
    first = store.lease("one", 5, -1)
    assert first
    assert not store.renew(first.id, 60), "it has expired"
    second = store.lease("two", 5, 60)
    assert second and [t.id for t in second.traces] == ids
    assert store.renew(second.id, 60)
    assert store.release(second.id) == 2
    assert not store.renew(second.id, 60)
    assert states(store) == {TraceState.READY: 2}


def test_a_discarded_trace_is_not_leased_again(store: TraceStore) -> None:
    ids = rated(store, 3)
    store.commit()
    lease = store.lease("one", 2, 60)
    assert lease
    assert store.discard(ids[:1], "too old") == 1
    assert store.discard(ids[:1], "too old again") == 0
    assert (the(store, ids[0]).state, the(store, ids[0]).reason) == (TraceState.DISCARDED, "too old")
    assert store.release(lease.id) == 1
    assert sorted(t.id for t in store.lease("two", 5, 60).traces) == sorted(ids[1:])  # type: ignore[union-attr]


# --------------------------------------------------------------------------- commands


def test_the_status_counts_states_and_ratings_of_versions(store: TraceStore) -> None:
    store.record([trace("a"), trace("b"), trace("c", versions=np.array([8, 8, 9], np.int32)), trace("d")])
    store.rate(["a"], 1.0, "t", "0")
    store.rate(["b"], 0.0, "t", "1")
    store.rate(["c"], 0.25, "u", "0")
    status = store.status()
    assert status.states == {**dict.fromkeys(TraceState, 0), TraceState.RECORDED: 1, TraceState.RATED: 3}
    assert status.ratings == {7: (2, 0.5), 8: (1, 0.25)}


# --------------------------------------------------------------------------- the database


def test_migrations_make_the_tables_that_the_code_expects(store: TraceStore, url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    engine = open_database(url, "read")
    with engine.connect() as connection:
        found = compare_metadata(
            MigrationContext.configure(connection, opts={"compare_type": True}), metadata
        )
    engine.dispose()
    assert found == []


OPEN_AT_ONCE = """
import multiprocessing, sys
from ajet_online.store import TraceStore

def opened(url, barrier):
    barrier.wait()
    TraceStore.open(url).status()
    print("opened", flush=True)

fork = multiprocessing.get_context("fork")
barrier = fork.Barrier(int(sys.argv[2]))
processes = [fork.Process(target=opened, args=(sys.argv[1], barrier)) for _ in range(barrier.parties)]
for process in processes:
    process.start()
for process in processes:
    process.join()
"""


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_processes_may_open_a_new_store_at_the_same_time(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = str(tmp_path / "new.db")
    if kind == "postgresql":
        url = request.getfixturevalue("cluster").database()
    command = [sys.executable, "-c", OPEN_AT_ONCE, url, "6"]
    done = subprocess.run(command, timeout=PATIENCE, capture_output=True, text=True, check=False)
    assert (done.stdout.count("opened"), done.stderr) == (6, "")  # two may print at once


@pytest.mark.parametrize("where", ["new/folder/traces.db", "sqlite:///new/folder/traces.db"])
def test_the_folder_of_a_new_store_is_created(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    TraceStore.open(where).close()
    assert (tmp_path / "new/folder/traces.db").is_file()
    (tmp_path / "file").touch()
    with pytest.raises(AjetError, match=r"^file/x: cannot be written"):
        TraceStore.open("file/x/traces.db")


@pytest.mark.whole
def test_what_was_acknowledged_survives_kill_9(url: str) -> None:
    code = """
import sys
from ajet_online.store import TraceStore
from tests.plugins.online.conftest import trace
store = TraceStore.open(sys.argv[1])
for n in range(100_000):
    store.record([trace(f"r{n}")])
    store.rate([f"r{n}"], 1.0, "t", str(n))
    print(n, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    lines = [process.stdout.readline() for _ in range(30)]
    process.kill()
    last = int((lines + process.stdout.read().splitlines())[-1])
    process.wait(PATIENCE)
    store = TraceStore.open(url)
    found = [t for t in store.all() if t.state == TraceState.RATED]
    assert [t.id for t in found][: last + 1] == [f"r{n}" for n in range(last + 1)]
    assert len(found) <= last + 2
    store.close()


def test_a_store_of_a_newer_version_is_refused(store: TraceStore, url: str) -> None:
    with store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(
        ConfigError, match=r"was written by a newer version of AgentJet\. Update ajet-plugin-online"
    ):
        TraceStore.open(url)


def test_facts_of_the_first_process_hold(store: TraceStore) -> None:
    store.agree("vocabulary", "one", "not reached")
    store.agree("vocabulary", "one", "not reached")
    with pytest.raises(ConfigError, match="its tokens are those of another model"):
        store.agree("vocabulary", "two", "its tokens are those of another model.")


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("mysql://host/name", "mysql is not supported|is not a URL"),
        ("sqlite://", "must be a file"),
        ("://", "is not a URL"),
    ],
)
def test_other_urls_are_refused(where: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TraceStore.open(where)


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database" * 100)
    with pytest.raises(
        StoreFailed, match=r"text\.db: file is not a database\. The file is damaged or no store"
    ) as found:
        TraceStore.open(str(tmp_path / "text.db"))
    assert "\n" not in str(found.value)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    store = TraceStore.open(str(tmp_path / "traces.db"))
    store.record([trace("a")])
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
    store.close()
    store = TraceStore.open(str(tmp_path / "traces.db"))
    from sqlalchemy import event

    event.listen(store._engine, "connect", lambda c, _: c.execute(f"PRAGMA max_page_count = {pages + 3}"))
    store._engine.dispose()
    with pytest.raises(StoreFailed, match=r"database or disk is full\. Free space on its disk"):
        store.record([trace(f"big-{n}", prompt=np.zeros(5000, np.int32)) for n in range(10)])
    assert [t.id for t in store.all()] == ["a"]
    store.close()
    assert sqlite3.connect(tmp_path / "traces.db").execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_database_that_does_not_run_is_named_without_its_password() -> None:
    with pytest.raises(
        StoreFailed, match=r"store postgresql://ann:\*\*\*@127\.0\.0\.1:9/x: .*Check that the database runs"
    ) as found:
        TraceStore.open("postgresql://ann:secret@127.0.0.1:9/x")
    assert "secret" not in str(found.value) and "\n" not in str(found.value)


@pytest.mark.whole
def test_a_store_goes_on_after_its_database_was_restarted(cluster: Cluster) -> None:
    store = TraceStore.open(cluster.store())
    store.record([trace("a")])
    with cluster.crashed(), pytest.raises(StoreFailed, match="Check that the database runs"):
        store.record([trace("b")])
    store.record([trace("b")])
    assert [t.id for t in store.all()] == ["a", "b"]
    store.close()


def test_a_task_and_a_run_with_the_longest_names_that_feedback_may_give_are_stored(store: TraceStore) -> None:
    # Four bytes each, all different.
    name = "".join(chr(0x10000 + 7919 * n % 50_000) for n in range(LONGEST_NAME))
    store.record([trace("a")])
    assert store.rate(["a"], 1.0, name, name[::-1]).new == ["a"] and store.commit(name, name[::-1]) == 1
