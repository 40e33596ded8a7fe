"""Versions of the weights: what was learned counts once, and only what is published is served."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from ajet.types import ConfigError
from ajet_online import versions as module
from ajet_online.schema import Stage, TraceState
from ajet_online.store import TraceStore
from ajet_online.versions import Version, Versions, distance
from tests.patience import PATIENCE
from tests.plugins.online.conftest import trace


def leased(store: TraceStore, *names: str, seconds: float = 60) -> int:
    """A lease of new traces."""
    store.record([trace(name) for name in names])
    store.rate(names, 1.0, "task", "0")
    store.commit()
    lease = store.lease("trainer", 1, seconds)
    assert lease and [t.id for t in lease.traces] == list(names)
    return lease.id


def published(store: TraceStore, name: str) -> int:
    """The number of a new version, published."""
    found = Versions(store)
    serving = found.serving()
    assert serving
    number = found.learned(leased(store, name), f"/{name}", serving.number)
    assert number and found.publish(number, 0.5, {})
    return number


@pytest.mark.whole
def test_the_first_model_is_version_0(store: TraceStore) -> None:
    versions = Versions(store)
    assert versions.serving() is None
    versions.begin("model")
    assert versions.begin("model").number == 0
    assert (serving := versions.serving()) and (serving.path, serving.parent) == ("model", None)
    with pytest.raises(ConfigError, match="first model is model, not other"):
        versions.begin("other")


@pytest.mark.whole
def test_traces_are_trained_in_the_transaction_that_adds_the_candidate(store: TraceStore) -> None:
    versions = Versions(store)
    versions.begin("model")
    lease = leased(store, "a", "b")
    assert versions.learned(lease, "/1", 0) == 1
    assert versions.learned(lease, "/1", 0) == 1, "again, as after a crash"
    assert {(t.state, t.step) for t in store.all()} == {(TraceState.TRAINED, 1)}
    assert store.lease("other", 5, 60) is None
    assert (serving := versions.serving()) and serving.number == 0, "it is not published yet"


@pytest.mark.whole
def test_a_checkpoint_whose_lease_is_lost_does_not_count(store: TraceStore) -> None:
    versions = Versions(store)
    versions.begin("model")
    lost = leased(store, "a", seconds=-1)
    other = store.lease("other", 5, 60)
    assert other and versions.learned(lost, "/1", 0) is None
    assert versions.learned(other.id, "/1b", 0) == 1
    assert [v.path for v in versions.all()] == ["model", "/1b"]


def test_the_next_update_begins_when_the_gate_has_decided(store: TraceStore) -> None:
    versions = Versions(store)
    versions.begin("model")
    number = versions.learned(leased(store, "a"), "/1", 0)
    store.record([trace("b"), trace("c")])
    for name in "bc":
        store.rate([name], 1.0, name, "0")
    store.commit()
    assert number and store.lease("other", 1, 60) is None, "it could only be a second successor of version 0"
    assert versions.publish(number, 0.5, {})
    other = store.lease("other", 1, 60)
    assert other
    late = versions.learned(other.id, "/2", 1)
    assert late
    versions.reject(late, 0.1, {}, "worse")
    assert store.lease("third", 1, 60)


@pytest.mark.whole
def test_a_candidate_that_comes_too_late_is_rejected_and_its_traces_are_learned_again(
    store: TraceStore,
) -> None:
    versions = Versions(store)
    versions.begin("model")
    late = versions.learned(leased(store, "a", seconds=0), "/late", 0)
    store.record([trace("b")])
    store.rate(["b"], 1.0, "b", "0")
    store.commit()
    other = store.lease("other", 5, 60)
    assert late and other
    first = versions.learned(other.id, "/first", 0)
    assert first
    assert versions.publish(first, None, {})
    assert not versions.publish(late, 0.9, {})
    assert versions.all()[late].reason == f"version 0 was followed by version {first} meanwhile"
    assert {t.id: (t.state, t.step) for t in store.all()} == {
        "a": (TraceState.READY, None),
        "b": (TraceState.TRAINED, first),
    }


def test_a_candidate_of_a_withdrawn_version_is_rejected(store: TraceStore) -> None:
    versions = Versions(store)
    versions.begin("model")
    first = published(store, "a")
    candidate = versions.learned(leased(store, "b"), "/b", first)
    assert candidate
    assert versions.withdraw(0, "worse") == [first]
    assert not versions.publish(candidate, 0.9, {"reward": 0.9})
    stages = {v.number: (v.stage, v.reason) for v in versions.all()}
    assert stages[first] == (Stage.WITHDRAWN, "worse")
    assert stages[candidate] == (Stage.REJECTED, f"version {first} was withdrawn meanwhile")
    assert {t.id: t.state for t in store.all()} == {"a": TraceState.TRAINED, "b": TraceState.READY}
    again = store.lease("trainer", 1, 60)
    assert again and versions.learned(again.id, "/again", 0) == 3, "numbers are not used again"
    assert versions.publish(3, 0.5, {})
    with pytest.raises(ConfigError, match=r"version 1: is not published\. Published: 0, 3"):
        versions.withdraw(1, "by hand")


def test_a_rollback_while_a_candidate_is_published_withdraws_it_too(
    store: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = Versions(store)
    versions.begin("model")
    first = published(store, "a")
    candidate = versions.learned(leased(store, "b"), "/b", first)
    assert candidate
    reading, go_on = threading.Event(), threading.Event()
    decided = module._decided

    def slowly(*args: Any) -> None:
        reading.set()
        go_on.wait(PATIENCE)
        decided(*args)

    monkeypatch.setattr(module, "_decided", slowly)
    with ThreadPoolExecutor(2) as threads:
        publishing = threads.submit(versions.publish, candidate, 0.9, {})
        assert reading.wait(PATIENCE)
        withdrawing = threads.submit(versions.withdraw, 0, "worse")
        wait([withdrawing], 0.3)  # it has to wait, or ends before the candidate is published
        go_on.set()
        assert publishing.result() and withdrawing.result() == [first, candidate]
    serving = versions.serving()
    assert serving and serving.number == 0


def rate(store: TraceStore, version: int, reward: float | None, *, key: str = "k", task: str = "") -> None:
    """A new reply of a version, rated."""
    name = f"r{sum(1 for _ in store.all())}"
    store.record([trace(name, key=key, versions=trace("x").versions * 0 + version)])
    store.rate([name], reward, task or name, "0")


def test_ratings_by_version(store: TraceStore) -> None:
    for version, reward in [(1, 1.0), (1, 0.0), (1, 1.0), (2, 0.5), (3, None)]:
        rate(store, version, reward)
    found = Versions(store).ratings([3, 1, 2], (0, 1))
    assert {version: list(rewards) for version, rewards in found.items()} == {3: [], 1: [1, 0, 1], 2: [0.5]}
    assert list(found) == [3, 1, 2]
    assert Versions(store).rated(1) == Versions(store).count_ratings(1) == 3


def test_an_episode_is_one_rating_of_each_version(store: TraceStore) -> None:
    for version, reward in [(1, 1.0), (1, 0.0), (2, 0.25), (2, 0.25)]:
        rate(store, version, reward, task="one")
    rate(store, 1, 0.75, key="other", task="one")
    versions = Versions(store)
    found = versions.ratings([1, 2], (0, 1))
    assert (list(found[1]), list(found[2])) == ([0.5, 0.75], [0.25])
    assert (versions.rated(1), versions.count_ratings(1)) == (3, 2)


@pytest.mark.whole
def test_of_the_first_ratings_no_key_has_more_than_its_share(store: TraceStore) -> None:
    for key, reward in [*[("flood", 0.0)] * 5, ("a", 1.0), ("b", 0.9), ("a", 0.8)]:
        rate(store, 1, reward, key=key)
    assert list(Versions(store).ratings([1], (0, 1))[1]) == [0, 1, 0.9, 0, 0.8, 0, 0, 0]
    _, keys = Versions(store).votes([1], (0, 1))[1]
    assert list(keys) == ["flood", "a", "b", "flood", "a", "flood", "flood", "flood"]


def test_statistics_are_finite_whatever_an_earlier_release_has_stored(store: TraceStore) -> None:
    for reward in (1e308, 1e308, -1e308, 1e200, 5e-324):
        rate(store, 1, reward, task="one")
        rate(store, 1, reward)
    found = Versions(store).ratings([1], (-1, 1))[1]
    assert list(found) == [pytest.approx(0.4), 1, 1, -1, 1, 0]
    count, mean = store.status().ratings[1]
    assert count == 10 and abs(mean) <= 1e6


def test_staleness_is_the_distance_in_the_tree_of_versions() -> None:
    def made(number: int, parent: int | None) -> Version:
        return Version(number=number, parent=parent, path="", stage=Stage.PUBLISHED)

    # 0 - 1 - 2 (withdrawn) and 1 - 4 - 5; 3 was rejected.
    known = [made(0, None), made(1, 0), made(2, 1), made(3, 2), made(4, 1), made(5, 4)]
    assert distance(known, 5, 5) == 0
    assert distance(known, 4, 5) == 1
    assert distance(known, 1, 5) == 2
    assert distance(known, 2, 5) == 3, "back to 1, and on to 5"
    assert distance(known, 0, 2) == 2
