"""The store as episodes for the studio: one for each conversation, which follows what is recorded and rated."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert

from ajet.plugins import load_plugins
from ajet.rollout.episode import Plan
from ajet.rollout.journal import episode_from_json
from ajet.types import AjetError, ConfigError, Task
from ajet_online import changes as changes_module
from ajet_online import source as source_module
from ajet_online.changes import Mark, changes
from ajet_online.schema import traces
from ajet_online.source import StoreSource, open_source
from ajet_online.store import PAGE, TraceStore
from ajet_online.versions import Versions
from tests.plugins.online.conftest import trace


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "SUMMARY_SECONDS", 0.0)


@pytest.fixture
def source(store: TraceStore, url: str) -> Iterator[StoreSource]:
    found = open_source(url)
    assert found
    yield found
    found.close()


def updated(source: StoreSource, folder: Path) -> dict[str, Any]:
    """The episodes of the journal after an update, by id."""
    while source.update(folder):
        pass
    found: dict[str, Any] = {}
    for text in (folder / "episodes.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line["type"] == "replaced":
            found = {id: one for id, one in found.items() if id not in line["ids"]}
        else:
            assert line["id"] not in found
            found[line["id"]] = line
    return found


def second(after: str = "a", **fields: Any) -> Any:
    """A reply that goes on after another."""
    more = [{"role": "user", "content": "and?"}]
    return trace("b", conversation=after, parent=after, at=time.time(), messages=more, **fields)


@pytest.mark.whole
def test_a_conversation_is_an_episode_that_grows(
    source: StoreSource, store: TraceStore, tmp_path: Path
) -> None:
    store.record([trace("a", at=time.time(), run="shop-7")])
    first = updated(source, tmp_path)["a"]
    assert (first["phase"], first["step"], first["task"], first["reward"]) == ("online", 7, "a", None)
    store.record([second(versions=np.array([8, 8, 9], np.int32), agent="clerk")])
    line = updated(source, tmp_path)["a"]
    assert line["step"] == 9
    assert [call["agent"] for call in line["calls"]] == ["agent", "clerk"]
    episode = episode_from_json(line, Plan("a", "", Task("a"), 0, 0))
    chat = episode.record.exchanges[-1].chat()
    assert [message["content"] for message in chat] == ["hi", "hello", "and?", "hello"]
    last = episode.record.calls[-1]
    assert last.prompt.ids().tolist() == [1, 2, 3, 4, 5, 1, 2]
    assert last.generation.weight_versions.tolist() == [8, 8, 9]


@pytest.mark.whole
def test_ratings_reach_the_episode_and_stay_the_first(
    source: StoreSource, store: TraceStore, tmp_path: Path
) -> None:
    store.record([trace("a", at=time.time()), second(), trace("other", at=time.time())])
    assert updated(source, tmp_path)["a"]["metrics"] == {"replies": 2, "rated": 0, "trained": 0}
    assert source.ratings("a") == []
    source.rate("a", 1, "well done", "good bye")
    line = updated(source, tmp_path)["a"]
    assert line["reward"] == 1.0 and line["metrics"]["rated"] == 2
    assert updated(source, tmp_path)["other"]["reward"] is None
    shown = [(one["rating"], one["comment"], one["correction"]) for one in source.ratings("a")]
    assert shown == [(1.0, "well done", "good bye"), (1.0, "", "")]
    found = {one.id: (one.reward, one.task_id, one.correction) for one in store.conversation("a")}
    assert found == {"a": (1.0, "a", None), "b": (1.0, "a", "good bye")}
    with pytest.raises(AjetError, match="feedback already, and only the first one counts"):
        source.rate("a", -1, "", "")
    with pytest.raises(AjetError, match="nowhere: no such conversation"):
        source.rate("nowhere", 1, "", "")


@pytest.mark.parametrize(("rating", "reward"), [(1, 1.0), (0, 0.5), (-1, 0.0), (0.5, 0.75)])
def test_good_and_bad_are_the_rewards_of_thumbs(
    source: StoreSource, store: TraceStore, rating: float, reward: float
) -> None:
    store.record([trace("a")])
    source.rate("a", rating, "", "")
    assert store.conversation("a")[0].reward == reward
    assert source.ratings("a")[0]["rating"] == rating


@pytest.mark.whole
def test_a_comment_alone_rates_nothing(source: StoreSource, store: TraceStore, tmp_path: Path) -> None:
    store.record([trace("a"), second()])
    source.rate("a", None, "hm", "")
    assert updated(source, tmp_path)["a"]["reward"] is None
    assert [(one["rating"], one["comment"]) for one in source.ratings("a")] == [(None, "hm")]
    assert [one.rated_at is not None for one in store.conversation("a")] == [False, True]


def test_replies_without_tokens_or_chat_show_what_was_said(
    source: StoreSource, store: TraceStore, tmp_path: Path
) -> None:
    nothing = np.array([], np.int32)
    silent = {
        "prompt": nothing,
        "tokens": nothing,
        "versions": nothing,
        "logprobs": nothing.astype(np.float32),
    }
    store.record([trace("a", at=time.time(), trained=False, **silent)])
    line = updated(source, tmp_path)["a"]
    assert line["step"] == 0
    (exchange,) = episode_from_json(line, Plan("a", "", Task("a"), 0, 0)).record.exchanges
    assert [message["content"] for message in exchange.chat()] == ["hi", "hello"]


@pytest.mark.whole
def test_old_replies_are_read_in_pages_and_only_once(
    store: TraceStore, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.record([trace(f"{n:04}") for n in range(2 * PAGE + 10)])
    monkeypatch.setattr(source_module, "MOST", 2 * PAGE)
    source = open_source(url)
    assert source
    assert source.update(tmp_path), "there is more"
    found = updated(source, tmp_path)
    assert sorted(found) == [f"{n:04}" for n in range(10, 2 * PAGE + 10)]
    size = (tmp_path / "episodes.jsonl").stat().st_size
    updated(source, tmp_path)
    assert (tmp_path / "episodes.jsonl").stat().st_size == size
    source.close()


def test_what_commits_late_is_not_missed(
    source: StoreSource, store: TraceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transaction may take a number first and commit it last."""
    now = time.time()
    store.record([trace("late", at=now), trace("early", at=now)])
    with store.writing() as connection:
        row = dict(connection.exec_driver_sql("SELECT * FROM traces WHERE id = 'late'").mappings().one())
        connection.exec_driver_sql("DELETE FROM traces WHERE id = 'late'")
    assert sorted(updated(source, tmp_path)) == ["early"]
    with store.writing() as connection:
        connection.execute(insert(traces).values(row))
    assert sorted(updated(source, tmp_path)) == ["early", "late"]
    monkeypatch.setattr(changes_module, "SETTLED", -1.0)  # as if ten seconds had passed
    found = changes(store, Mark(0, 0.0))
    assert sorted(found.conversations) == ["early", "late"]
    assert changes(store, found.mark).conversations == [], "settled traces are not read again"


def test_versions_become_metrics_and_bring_the_tokenizer(
    source: StoreSource, store: TraceStore, tmp_path: Path
) -> None:
    model, folder = tmp_path / "model", tmp_path / "mirror"
    model.mkdir()
    folder.mkdir()
    (model / "tokenizer.json").write_text("{}")
    versions = Versions(store)
    versions.begin(str(model))
    versions.measured(0, 0.25, {})
    store.record([trace("a", at=time.time(), versions=np.zeros(3, np.int32))])
    source.rate("a", 1, "", "")
    updated(source, folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == [
        {"type": "online", "step": 0, "reward": 1.0, "rated": 1},
        {"type": "validation", "step": 0, "reward": 0.25},
    ]
    assert (folder / "tokenizer" / "tokenizer.json").read_text() == "{}"
    assert f"model: {model}" in (folder / "job.yaml").read_text()


@pytest.mark.whole
def test_the_plugin_opens_stores_and_nothing_else(tmp_path: Path, cluster: Any) -> None:
    opens = load_plugins().manager.hook.ajet_episode_source
    assert opens(where=str(tmp_path / "missing.db")) is None
    (tmp_path / "text").write_text("hello")
    assert opens(where=str(tmp_path / "text")) is None
    with sqlite3.connect(tmp_path / "others.db") as db:
        db.execute("CREATE TABLE traces (x)")
    assert opens(where=str(tmp_path / "others.db")) is None
    TraceStore.open(str(tmp_path / "traces.db")).close()
    source = opens(where=str(tmp_path / "traces.db"))
    assert source.name == str(tmp_path / "traces.db")
    source.close()
    empty = cluster.database()
    with pytest.raises(ConfigError, match="is not a store of this version"):
        opens(where=empty)
    TraceStore.open(empty.replace("postgres@", "postgres:secret@")).close()
    source = opens(where=empty.replace("postgres@", "postgres:secret@"))
    assert "secret" not in source.name and "postgres" in source.name
    source.close()
