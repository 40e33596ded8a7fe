"""A store of online training in the studio: its conversations are episodes, and ratings go into the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ajet.types import AjetError, ConfigError
from ajet_studio import library
from ajet_studio.library import open_library

from . import runs

pytest.importorskip("ajet_online", reason="the store is one of ajet-plugin-online")

from ajet_online.store import Store
from tests.patience import PATIENCE
from tests.plugins.online.conftest import trace


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with a conversation of two replies."""
    monkeypatch.setattr(library, "PAUSE", 0.05)
    found = Store.open(str(tmp_path / "traces.db"))
    now = time.time()
    more = [{"role": "user", "content": "are you <b>sure</b>?"}]
    found.record(
        [trace("a", at=now), trace("b", conversation="a", parent="a", at=now + 2, messages=more)],
    )
    yield found
    found.close()


@pytest.fixture
def studio(store: Store) -> Iterator[runs.Studio]:
    with runs.serving_library(open_library(store.name)) as found:
        yield found


def soon(ask: Any, wanted: Any) -> None:
    """Wait until an answer is the wanted one."""
    deadline = time.monotonic() + PATIENCE
    while (found := ask()) != wanted:
        assert time.monotonic() < deadline, f"{found} is not {wanted}"
        time.sleep(0.05)


def test_the_store_is_a_live_run_and_its_conversations_are_episodes(
    studio: runs.Studio, store: Store
) -> None:
    listed = studio.get("runs")
    assert listed["folder"] == store.name
    (row,) = listed["runs"]
    assert (row["run"], row["name"], row["state"], row["backbone"]) == (".", "traces.db", "live", "online")
    (episode,) = studio.get("episodes", run=".")["rows"]
    assert (episode["id"], episode["reward"], episode["step"], episode["calls"]) == ("a", None, 7, 2)
    assert episode["query"] == "hi"
    found = studio.get("episode", run=".", id="a")
    said = [message["content"] for message in found["messages"][0]]
    assert said == ["hi", "hello", "are you <b>sure</b>?", "hello"]
    assert studio.get("search", run=".", q="sure")["total"] == 1
    assert studio.get("tokens", run=".", id="a", timeline=0)["total"] == 10


def test_what_is_recorded_later_appears_once(studio: runs.Studio, store: Store) -> None:
    again = [{"role": "user", "content": "again"}]
    now = time.time()
    store.record([trace("c", conversation="a", parent="b", at=now, messages=again), trace("other", at=now)])
    soon(
        lambda: sorted((row["id"], row["calls"]) for row in studio.get("episodes", run=".")["rows"]),
        [("a", 3), ("other", 1)],
    )
    assert studio.get("run", run=".")["phases"]["online"]["episodes"] == 2


def test_ratings_are_feedback_in_the_store(studio: runs.Studio, store: Store) -> None:
    answer = studio.post(run=".", id="a", rating=-1, comment="rude", correction="Good morning!")
    assert answer.status_code == 200, answer.text
    given = [(one["rating"], one["comment"], one["correction"]) for one in answer.json()["ratings"]]
    assert given == [(-1, "rude", "Good morning!"), (-1, "", "")]
    assert [one.reward for one in store.conversation("a")] == [0.0, 0.0]
    soon(lambda: studio.get("episodes", run=".")["rows"][0]["reward"], 0.0)
    again = studio.post(run=".", id="a", rating=1, comment="", correction="")
    assert again.status_code == 422
    assert "only the first one counts" in again.json()["error"]


def test_a_store_that_cannot_be_read_is_said_on_the_page(
    studio: runs.Studio, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ajet_online import source

    def fails(*_: Any) -> None:
        raise AjetError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(source, "changes", fails)
        soon(lambda: studio.get("run", run=".")["problems"], ["the database is away"])
        assert studio.get("episodes", run=".")["total"] == 1
    soon(lambda: studio.get("run", run=".")["problems"], [])


def test_nothing_of_it_remains(store: Store) -> None:
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
