"""A store of online training in the studio: its conversations are episodes, and ratings go into the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ajet.types import AjetError, ConfigError
from ajet_studio import library
from ajet_studio.library import open_library

from . import runs

pytest.importorskip("ajet_online", reason="the store is one of ajet-plugin-online")

from ajet_online.overview import note_bounds
from ajet_online.store import TraceStore
from ajet_online.versions import Versions
from tests.patience import PATIENCE
from tests.plugins.online.conftest import trace


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TraceStore]:
    """A store with a conversation of two replies."""
    monkeypatch.setattr(library, "PAUSE", 0.05)
    found = TraceStore.open(str(tmp_path / "traces.db"))
    now = time.time()
    more = [{"role": "user", "content": "are you <b>sure</b>?"}]
    found.record(
        [trace("a", at=now), trace("b", conversation="a", parent="a", at=now + 2, messages=more)],
    )
    yield found
    found.close()


@pytest.fixture
def studio(store: TraceStore) -> Iterator[runs.Studio]:
    with runs.serving_library(open_library(store.name)) as found:
        yield found


def soon(ask: Any, wanted: Any) -> None:
    """Wait until an answer is the wanted one."""
    deadline = time.monotonic() + PATIENCE
    while (found := ask()) != wanted:
        assert time.monotonic() < deadline, f"{found} is not {wanted}"
        time.sleep(0.05)


@pytest.mark.whole
def test_the_store_is_a_live_run_and_its_conversations_are_episodes(
    studio: runs.Studio, store: TraceStore
) -> None:
    listed = studio.get("runs")
    assert listed["folder"] == store.name
    (row,) = listed["runs"]
    assert (row["run"], row["name"], row["state"], row["backbone"]) == (".", "traces.db", "live", "online")
    (episode,) = studio.get("episodes", run=".")["rows"]
    assert (episode["id"], episode["reward"], episode["step"], episode["calls"]) == ("a", None, 7, 2)
    assert episode["query"] == "hi"
    assert (episode["trained_tokens"], episode["seconds"]) == (0, pytest.approx(2))
    found = studio.get("episode", run=".", id="a")
    said = [message["content"]["text"] for message in found["messages"][0]]
    assert said == ["hi", "hello", "are you <b>sure</b>?", "hello"]
    assert studio.get("search", run=".", q="sure")["total"] == 1
    assert studio.get("tokens", run=".", id="a", timeline=0)["total"] == 10


def test_what_is_recorded_later_appears_once(studio: runs.Studio, store: TraceStore) -> None:
    again = [{"role": "user", "content": "again"}]
    now = time.time()
    store.record([trace("c", conversation="a", parent="b", at=now, messages=again), trace("other", at=now)])
    soon(
        lambda: sorted((row["id"], row["calls"]) for row in studio.get("episodes", run=".")["rows"]),
        [("a", 3), ("other", 1)],
    )
    assert studio.get("run", run=".")["phases"]["online"]["episodes"] == 2


@pytest.mark.whole
def test_a_store_has_the_times_of_its_replies_and_counts_what_was_trained(
    studio: runs.Studio, store: TraceStore
) -> None:
    store.record([trace("single", at=time.time())])
    soon(
        lambda: [row["id"] for row in studio.get("episodes", run=".", sort="line", descending=1)["rows"]],
        ["single", "a"],
    )
    single = studio.get("episode", run=".", id="single")
    assert (single["seconds"], single["trained_tokens"]) == (None, 0)
    store.rate(["single"], 1.0, "t", "0")
    store.commit()
    lease = store.lease("trainer", 1, 60)
    assert lease is not None
    versions = Versions(store)
    versions.begin("starter")
    assert versions.learned(lease.id, "step_000001", 0) == 1
    soon(lambda: studio.get("episode", run=".", id="single")["trained_tokens"] > 0, True)
    (row,) = studio.get("runs")["runs"]
    assert row["episodes"] == 2 and row["seconds"] < 60
    assert abs(datetime.fromisoformat(row["started"]).timestamp() - store.conversation("a")[0].at) <= 1


@pytest.mark.whole
def test_the_versions_of_a_store_are_shown_with_what_gate_and_rollback_said(
    studio: runs.Studio, store: TraceStore
) -> None:
    versions = Versions(store)
    versions.begin("starter")
    store.rate(["a"], 1.0, "t", "0")
    store.discard(["b"], "it is empty")
    store.commit()
    lease = store.lease("trainer", 1, 60)
    assert lease is not None
    versions.learned(lease.id, "step_000001", 0)
    versions.reject(1, 0.25, {}, "validation reward 0.250, version 0 has 0.500")
    tables = {table["title"]: table["rows"] for table in studio.get("tables", run=".")["tables"]}
    served, *others = tables["Versions of the weights"]
    assert (served["version"], served["stage"], served["checkpoint"]) == (0, "served", "starter")
    rejected = next(row for row in others if row["version"] == 1)
    assert (rejected["stage"], rejected["validation"], rejected["learned from"]) == ("rejected", 0.25, 0)
    assert rejected["why"] == "validation reward 0.250, version 0 has 0.500"
    assert {row["state"]: row["replies"] for row in tables["Replies"]} | {"recorded": 0} == {
        "recorded": 0, "rated": 0, "ready": 0, "leased": 0, "trained": 1, "discarded": 1
    }  # fmt: skip
    (key,) = tables["API keys of the newest 20,000 replies"]
    assert (key["API key"], key["replies"], key["rated"], key["mean reward"]) == ("k", 2, 1, 1.0)
    (reason,) = tables["Reasons why some of the newest 20,000 replies were discarded"]
    assert (reason["reason"], reason["replies"]) == ("it is empty", 1)
    assert tables["Runs of the newest 20,000 replies"] == []


@pytest.mark.whole
def test_ratings_have_the_bounds_of_the_explorer(studio: runs.Studio, store: TraceStore) -> None:
    for bounds in ((0.0, 5.0), (-2.0, 2.0)):
        note_bounds(store, bounds)
    store.record([trace("neither", at=time.time())])
    soon(lambda: studio.get("episodes", run=".")["total"], 2)
    for id, rating, reward in (("a", -1, -2.0), ("neither", 0, 0.0)):
        answer = studio.post(run=".", id=id, rating=rating, comment="", correction="")
        assert answer.json()["ratings"][-1]["rating"] == rating
        assert [one.reward for one in store.conversation(id)] == [reward] * len(store.conversation(id))


def test_ratings_are_feedback_in_the_store(studio: runs.Studio, store: TraceStore) -> None:
    answer = studio.post(run=".", id="a", rating=-1, comment="rude", correction="Good morning!")
    assert answer.status_code == 200, answer.text
    given = [(one["rating"], one["comment"], one["correction"]) for one in answer.json()["ratings"]]
    assert given == [(-1, "rude", "Good morning!"), (-1, "", "")]
    assert [one.reward for one in store.conversation("a")] == [0.0, 0.0]
    soon(lambda: studio.get("episodes", run=".")["rows"][0]["reward"], 0.0)
    again = studio.post(run=".", id="a", rating=1, comment="", correction="")
    assert again.status_code == 422
    assert "only the first one counts" in again.json()["error"]


@pytest.mark.whole
def test_a_store_that_cannot_be_read_is_said_on_the_page(
    studio: runs.Studio, store: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ajet_online import source

    def fails(*_: Any) -> None:
        raise AjetError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(source, "changes", fails)
        soon(lambda: studio.get("run", run=".")["problems"], ["the database is away"])
        assert studio.get("episodes", run=".")["total"] == 1
    soon(lambda: studio.get("run", run=".")["problems"], [])


def test_nothing_of_it_remains(store: TraceStore) -> None:
    library = open_library(store.name)
    folder = library.folder
    assert (folder / "episodes.jsonl").is_file()
    library.close()
    assert not folder.parent.exists()


def test_what_is_neither_a_folder_nor_a_store_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ConfigError, match=r"text: is neither a folder nor a store"):
        open_library(str(tmp_path / "text"))
    with pytest.raises(ConfigError, match="nowhere: no such folder"):
        open_library("nowhere")
    with pytest.raises(ConfigError, match="mysql is not supported"):
        open_library("mysql://host/name")
