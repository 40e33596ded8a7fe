"""Online training on verl: two updates of a real run with Ray, vLLM and FSDP learn from replies that were sampled elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_online.schema import Stage
from ajet_online.store import TraceStore
from ajet_online.versions import Versions
from tests.plugins.online.replies import Bench


@pytest.mark.slow
@pytest.mark.models("calculator")
def test_it_learns_from_the_replies_of_an_explorer(tmp_path: Path) -> None:
    store = TraceStore.open(str(tmp_path / "traces.db"))
    bench = Bench(store, "calculator", tmp_path, [])
    bench.rated({name: float(n % 2) for n, name in enumerate("abcdefgh")})
    bench.train(2, train={"batch_size": 4, "learning_rate": 1e-4}, backbone={"name": "verl"})
    _, first, second = Versions(store).all()
    assert (first.stage, second.stage, second.parent) == (Stage.PUBLISHED, Stage.PUBLISHED, 1)
    assert set(bench.states().values()) == {"trained"}
    tokens = {number: 0 for number in (1, 2)}
    for trace in store.all():
        assert trace.step
        tokens[trace.step] += len(trace.tokens)
    for version in (first, second):
        assert version.report["tokens_trained"] == tokens[version.number]
    assert first.report["logprob_diff_max"] < 1e-3, "verl computes the logprobs that the explorer recorded"
    assert second.report["staleness_max"] == 1
    store.close()
