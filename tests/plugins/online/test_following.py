"""The explorer follows the store: new weights without a dropped request, and rollback by users' ratings."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.capture.portal import Portal
from ajet.rollout.checkpoints import write_checkpoint
from ajet.testing import ScriptedEngine
from ajet.types import GenerateRequest, Sampling
from ajet_online import following
from ajet_online.following import Follower, newest_loaded
from ajet_online.processes import dated
from ajet_online.schema import Stage
from ajet_online.settings import OnlineSettings
from ajet_online.store import TraceStore
from ajet_online.switching import Loaded, SwitchingEngine
from ajet_online.versions import Versions
from tests import tokenizers
from tests.plugins.online.conftest import trace

REQUEST = GenerateRequest(np.array([1, 2], np.int32), Sampling(max_tokens=8))


class Slow(ScriptedEngine):
    """An engine that says its name, once it may."""

    def __init__(self, path: str, tokenizer: Any = None) -> None:
        super().__init__(tokenizer or tokenizers.qwen3(), lambda request, text: f"I am {path}")
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.closed = False

    async def generate(self, request: GenerateRequest) -> Any:
        await self.may_answer.wait()
        assert not self.closed
        return await super().generate(request)

    async def close(self) -> None:
        self.closed = True


def said(engine: SwitchingEngine, generation: Any) -> str:
    return str(engine.tokenizer.decode(generation.token_ids, skip_special_tokens=True))


def test_calls_in_progress_end_on_their_weights_and_the_old_engine_is_closed_after_them() -> None:
    async def scenario() -> None:
        old, new = Slow("old"), Slow("new")
        engine = SwitchingEngine(Loaded(old, 0, None))
        await engine.start()
        old.may_answer.clear()
        waiting = asyncio.create_task(engine.generate(REQUEST))
        streaming = engine.stream(REQUEST)
        first = await anext(streaming)
        await engine.switch(Loaded(new, 3, None))
        assert engine.version == 3
        after = await engine.generate(REQUEST)
        assert said(engine, after) == "I am new" and set(after.weight_versions) == {3}
        assert not old.closed, "two calls still need it"
        old.may_answer.set()
        before = await waiting
        assert said(engine, before) == "I am old" and set(before.weight_versions) == {0}
        assert not old.closed
        pieces = [first, *[piece async for piece in streaming]]
        assert {int(v) for piece in pieces for v in piece.weight_versions} == {0}
        assert old.closed and not new.closed
        assert engine.calls_by_version == {0: 2, 3: 1}
        await engine.close()
        assert new.closed

    asyncio.run(scenario())


@pytest.fixture
def portal() -> Iterator[Portal]:
    made = Portal()
    yield made
    made.close()


class Explored:
    """A follower over scripted engines."""

    def __init__(self, store: TraceStore, portal: Portal, **rollback: Any) -> None:
        self.versions, self.lines, self.store = Versions(store), list[str](), store
        self.versions.begin("first")
        self.engine = SwitchingEngine(Loaded(Slow("first"), 0, None))
        self.follower = Follower(
            store,
            self.engine,
            portal,
            self.build,
            OnlineSettings(poll=0.01, rollback={"ratings": 20, **rollback}),
            self.lines.append,
        )

    def build(self, path: str) -> Any:
        if "broken" in path:
            raise RuntimeError("no such file")
        return Slow(path, tokenizers.llama3() if "llama" in path else None)

    def publish(self, path: str) -> int:
        """A new version, trained on one trace."""
        self.store.record([trace(path)])
        self.store.rate([path], None, path, "0")
        self.store.commit()
        lease = self.store.lease("t", 1, 60)
        serving = self.versions.serving()
        assert lease and serving
        number = self.versions.learned(lease.id, path, serving.number)
        assert number and self.versions.publish(number, None, {})
        return number

    def rate(self, version: int, rewards: list[float]) -> None:
        for n, reward in enumerate(rewards):
            name = f"v{version}-{n}-{reward}"
            self.store.record([trace(name, versions=np.full(3, version, np.int32))])
            self.store.rate([name], reward, name, "0")


@pytest.fixture
def explored(file: Path, portal: Portal) -> Iterator[Explored]:
    store = TraceStore.open(str(file))
    yield Explored(store, portal)
    store.close()


def test_a_published_version_is_served(explored: Explored) -> None:
    explored.follower.check()
    assert explored.engine.version == 0 and explored.lines == []
    explored.publish("second")
    explored.follower.check()
    assert explored.engine.version == 1 and explored.lines == ["version 1 is served"]


@pytest.mark.parametrize(("path", "why"), [("broken", "no such file"), ("llama", "has another vocabulary")])
def test_a_version_that_cannot_be_loaded_is_told_once_and_the_one_before_goes_on(
    explored: Explored, path: str, why: str
) -> None:
    explored.publish(path)
    explored.follower.check()
    explored.follower.check()
    assert explored.engine.version == 0
    (line,) = explored.lines
    assert line.startswith("version 1 cannot be served, so version 0 goes on: ") and line.endswith(why)


def test_a_version_that_could_not_be_loaded_is_tried_again_after_a_while(
    explored: Explored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "RETRY_SECONDS", 0.0)
    late = Slow("late")

    async def no_memory() -> None:
        raise MemoryError("for now")

    monkeypatch.setattr(explored.follower, "_build", lambda path: late)
    monkeypatch.setattr(late, "start", no_memory)
    explored.publish("late")
    explored.follower.check()
    explored.follower.check()
    assert explored.engine.version == 0 and len(explored.lines) == 1 and late.closed
    monkeypatch.setattr(explored.follower, "_build", Slow)
    explored.follower.check()
    assert explored.engine.version == 1 and explored.lines[1:] == ["version 1 is served"]


@pytest.mark.parametrize("last", ["gone", "cut", "broken"])
def test_an_explorer_starts_with_the_newest_version_whose_checkpoint_is_intact(
    explored: Explored, tmp_path: Path, last: str
) -> None:
    def saved(step: int, name: str) -> Path:
        written = write_checkpoint(
            tmp_path, step, lambda path: (path.mkdir(parents=True), (path / "w").write_text("w")), {}, 9
        )
        return written.rename(tmp_path / name)

    explored.publish(str(saved(1, "intact")))
    checkpoint = saved(2, last)
    explored.publish(str(checkpoint))
    if last == "gone":
        shutil.rmtree(checkpoint)
    if last == "cut":
        (checkpoint / "w").write_text("")
    assert newest_loaded(explored.versions, explored.build).version == 1
    shutil.rmtree(tmp_path / "intact")
    assert newest_loaded(explored.versions, explored.build).version == 0


def test_a_version_that_users_rate_lower_is_withdrawn(explored: Explored) -> None:
    explored.publish("second")
    explored.rate(0, [1.0] * 30)
    explored.rate(1, [0.0] * 19)
    explored.follower.check()
    assert explored.engine.version == 1, "19 ratings are not enough"
    explored.rate(1, [0.5])
    explored.follower.check()
    assert explored.engine.version == 0
    withdrawn = explored.versions.all()[1]
    assert withdrawn.stage == Stage.WITHDRAWN
    assert withdrawn.reason == "users rate it 0.025 (20 ratings), one before it 1.000 (30 ratings)"
    assert explored.lines[-2] == f"version 1 is withdrawn, back to version 0: {withdrawn.reason}"


def test_one_feedback_on_many_replies_is_one_rating(explored: Explored) -> None:
    explored.publish("second")
    explored.rate(0, [1.0] * 30)
    names = [f"many-{n}" for n in range(300)]
    explored.store.record([trace(name, versions=np.full(3, 1, np.int32)) for name in names])
    explored.store.rate(names, 0.0, "a run", "0")
    explored.follower.check()
    assert explored.engine.version == 1


@pytest.mark.whole
@pytest.mark.parametrize("spoilt", [1, 0])
@pytest.mark.parametrize("reward", [1e308, -1e308, 1e200, 5e-324])
def test_a_rating_of_an_earlier_release_beyond_the_bounds_neither_withdraws_nor_protects(
    explored: Explored, reward: float, spoilt: int
) -> None:
    explored.publish("second")
    explored.rate(spoilt, [reward, reward])
    explored.rate(0, [1.0, 1.0, 0.9] * 10)
    explored.rate(1, [1.0, 1.0, 0.9] * 10)
    explored.follower.check()
    assert explored.engine.version == 1
    explored.publish("third")
    explored.rate(2, [0.0] * 20)
    explored.follower.check()
    assert explored.engine.version == 0, "no checkpoint of version 1 is there"


@pytest.mark.whole
def test_the_newest_version_whose_checkpoint_is_kept_is_served_again(
    explored: Explored, tmp_path: Path
) -> None:
    for number, name in enumerate(["gone", "kept", "pruned", "last"]):
        if name == "kept":
            (tmp_path / name).mkdir()
        explored.publish(str(tmp_path / name))
        explored.rate(number, [1.0] * 30)
    explored.rate(4, [0.0] * 20)
    explored.follower.check()
    assert explored.engine.version == 2


@pytest.mark.whole
def test_a_version_that_is_served_again_stays_if_users_rate_it_lower_too(
    explored: Explored, tmp_path: Path
) -> None:
    explored.publish(str(tmp_path))
    explored.publish("last")
    for number in (0, 1):
        explored.rate(number, [1.0] * 30)
    explored.rate(2, [0.0] * 20)
    explored.follower.check()
    assert explored.engine.version == 1
    explored.rate(1, [0.0] * 300)
    explored.follower.check()
    assert explored.engine.version == 1


def test_the_metrics_tell_of_the_queue_of_the_gate_and_of_the_trainer(
    explored: Explored, tmp_path: Path
) -> None:
    explored.publish(str(tmp_path))
    explored.publish("third")
    explored.versions.withdraw(1, "by hand")
    explored.rate(1, [1.0] * 3)
    explored.store.commit()
    lease = explored.store.lease("t", 1, 60)
    explored.rate(1, [0.0] * 4)
    explored.follower.check()
    found = {name: values for name, _, _, values in explored.follower.metrics}
    assert lease and found["waiting_replies"] == {
        '{state="rated"}': 4,
        '{state="ready"}': 2,
        '{state="leased"}': 1,
    }
    assert found["versions"]['{stage="published"}'] == found["versions"]['{stage="withdrawn"}'] == 1
    assert found["updating"] == {"": 1}
    assert found["last_update_timestamp_seconds"][""] == explored.versions.all()[-1].at


def test_rollback_by_hand(explored: Explored) -> None:
    explored.publish("second")
    explored.publish("third")
    explored.follower.check()
    assert explored.engine.version == 2
    explored.versions.withdraw(0, "by hand")
    explored.follower.check()
    assert explored.engine.version == 0


def test_a_problem_with_the_database_is_told_once_and_serving_goes_on(
    explored: Explored, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ajet_online.database import StoreFailed

    def fails(*_: Any) -> Any:
        raise StoreFailed("store x: the database does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Versions, "serving", fails)
        explored.follower.check()
        explored.follower.check()
    assert explored.lines == ["store x: the database does not answer"]
    explored.publish("second")
    explored.follower.check()
    assert explored.engine.version == 1


def test_lines_of_a_log_begin_with_their_time() -> None:
    found = re.fullmatch(r"(\S+) version 1 is served", dated("version 1 is served"))
    assert found and datetime.fromisoformat(found[1]).tzinfo
