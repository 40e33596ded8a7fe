"""Old conversations are deleted, and their space is given back, while others use the store."""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest

from ajet_online import pruning
from ajet_online.pruning import compact, give_back, prune
from ajet_online.store import TraceStore
from tests.plugins.online.conftest import trace


@pytest.mark.whole
def test_old_conversations_are_pruned_as_a_whole(store: TraceStore) -> None:
    tools = [{"name": "f"}]
    store.record([trace("a", at=1.0), trace("b", at=99.0, conversation="a", parent="a")])
    store.record([trace("old", at=2.0, tools=tools), trace("leased", at=3.0)])
    store.rate(["leased"], 1.0, "t", "0")
    store.commit()
    assert store.lease("one", 1, 60)
    assert prune(store, 50.0) == 1
    assert [t.id for t in store.all()] == ["a", "b", "leased"]
    assert store.rate(["old"], 1.0, "t", "0").unknown == ["old"]
    store.record([trace("new", tools=tools)])
    assert list(store.all())[-1].tools == tools


@pytest.mark.whole
def test_others_write_between_small_transactions_and_no_trace_ever_lacks_its_parent(
    store: TraceStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "PAGE", 2)
    long = ["a0", "a1", "a2", "a3", "a4"]
    parents = [None, *long[:-1]]
    store.record(
        [
            trace(name, at=1.0, conversation="a0", parent=before)
            for name, before in zip(long, parents, strict=True)
        ]
        + [trace(f"b{n}", at=1.0) for n in range(3)]
    )
    other = TraceStore.open(url)
    told: list[tuple[int, int]] = []

    def write(deleted: int, total: int) -> None:
        told.append((deleted, total))
        other.record([trace(f"new{deleted}", at=99.0)])  # which waits for no one
        left = {found.id: found.parent for found in other.all()}
        assert all(parent is None or parent in left for parent in left.values())

    assert prune(store, 50.0, write) == 8
    other.close()
    deleted = [done for done, _ in told]
    assert deleted[0] <= 2 and all(b - a <= 2 for a, b in pairwise(deleted)) and told[-1] == (8, 8)
    assert {found.id for found in store.all()} == {f"new{done}" for done in deleted}


@pytest.mark.whole
def test_a_conversation_that_goes_on_while_it_is_deleted_keeps_its_beginning(
    store: TraceStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "PAGE", 1)
    store.record([trace("a", at=1.0), trace("b", at=1.0, conversation="a", parent="a")])

    def go_on(deleted: int, total: int) -> None:
        if deleted == 1:
            store.record([trace("c", at=99.0, conversation="a", parent="a")])

    assert prune(store, 50.0, go_on) == 1
    assert [found.id for found in store.all()] == ["a", "c"]


def sized(store: TraceStore, count: int) -> None:
    """Record old replies of a few kilobytes."""
    text = [{"role": "user", "content": "x" * 4_000}]
    store.record([trace(f"r{number}", at=1.0, messages=text) for number in range(count)])


@pytest.mark.whole
def test_a_file_gives_space_back_in_small_steps_while_others_write(tmp_path: Path) -> None:
    file = tmp_path / "traces.db"
    store, other = TraceStore.open(str(file)), TraceStore.open(str(file))
    sized(store, 1_500)
    steps = []

    def write(done: int, total: int) -> None:
        steps.append(done)
        other.record([trace(f"new{done}")])

    assert prune(store, 50.0) == 1_500
    assert give_back(store, write) == 0 and len(steps) > 2
    other.close()
    store.close()
    assert file.stat().st_size < 1 << 20


def test_a_file_of_an_earlier_version_is_compacted_once(tmp_path: Path) -> None:
    file = tmp_path / "traces.db"
    made = sqlite3.connect(file)
    made.execute("PRAGMA journal_mode = WAL")
    made.close()
    store = TraceStore.open(str(file))
    sized(store, 500)
    prune(store, 50.0)
    assert give_back(store) > 1 << 20
    compact(store)
    assert give_back(store) == 0
    sized(store, 500)
    prune(store, 50.0)
    assert give_back(store) == 0
    store.close()
    assert file.stat().st_size < 1 << 20
