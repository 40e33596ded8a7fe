"""Fixed passes sample what other passes sample, and repeat from their tensors alone, as a CUDA graph does."""

import asyncio
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from ajet.learning.settings import LoraSettings  # noqa: E402
from ajet.types import GenerateRequest, Sampling  # noqa: E402
from ajet_local import fixed_passes  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.fixed_passes import _rounded  # noqa: E402
from ajet_lora.adapters import Adapters  # noqa: E402


class Recorder:
    """Records a pass as the operations on its tensors. Numbers and lists of Python are constants in it, as in a CUDA graph."""

    def __init__(self):
        self.recorded = self.repeated = 0

    def __call__(self, work):
        self.recorded += 1
        graph = make_fx(lambda: work())()

        def repeat():
            self.repeated += 1
            graph()

        return repeat


def answers(model, requests, record=None, delays=None, **settings):
    async def main():
        engine = LocalEngine(model, None, record=record, **settings)
        await engine.start()

        async def ask(request, delay):
            await asyncio.sleep(delay)
            return await engine.generate(request)

        try:
            return await asyncio.gather(*map(ask, requests, delays or [0] * len(requests)))
        finally:
            await engine.close()

    return asyncio.run(main())


def requests_of(groups, adapters=(None,)):
    """Groups of members that share a prompt, and end after different numbers of tokens."""
    rng = random.Random(0)
    found = []
    for group in range(groups):
        prompt = np.array([rng.randrange(200) for _ in range(rng.choice([3, 20, 70]))], np.int32)
        for member in range(rng.choice([1, 3, 8])):
            sampling = Sampling(max_tokens=rng.randrange(2, 60), seed=100 * group + member)
            found.append(GenerateRequest(prompt, sampling, adapter=adapters[group % len(adapters)]))
    return found


def check_equal(one, other):
    for got, wanted in zip(one, other, strict=True):
        assert got.token_ids.tolist() == wanted.token_ids.tolist()
        np.testing.assert_allclose(got.logprobs, wanted.logprobs, atol=1e-4)


def test_they_sample_the_same_tokens_and_most_of_them_are_repeated(model):
    record, requests = Recorder(), requests_of(6)
    check_equal(answers(model, requests, record), answers(model, requests))
    assert record.repeated > 2 * record.recorded > 0


def test_they_sample_the_same_where_requests_come_and_go(model):
    requests, delays = requests_of(8), [0.01 * (n % 7) for n in range(64)]
    record = Recorder()
    check_equal(answers(model, requests, record, delays), answers(model, requests))
    assert record.repeated


def test_a_graph_belongs_to_an_adapter(model):
    adapters = Adapters(model)
    for seed, name in enumerate(("one", "two")):
        adapters.add(name, LoraSettings(rank=2), seed=seed)
        for weight in adapters.parameters(name):
            weight.data = torch.randn_like(weight) * 0.3
    requests = requests_of(6, ("one", "two"))
    record = Recorder()
    check_equal(
        answers(model, requests, record, adapters=adapters), answers(model, requests, adapters=adapters)
    )
    assert record.repeated


def test_a_recorded_pass_reads_the_new_weights(model):
    record, requests = Recorder(), requests_of(2)

    async def main():
        engine = LocalEngine(model, None, record=record)
        await engine.start()
        try:
            await asyncio.gather(*map(engine.generate, requests))
            recorded = record.recorded
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.9)
            engine.version += 1
            got = await asyncio.gather(*map(engine.generate, requests))
            return recorded, got
        finally:
            await engine.close()

    recorded, got = asyncio.run(main())
    check_equal(got, answers(model, requests))
    assert record.recorded < 1.5 * recorded and record.repeated > 2 * record.recorded


def test_only_the_latest_shapes_are_kept(model, monkeypatch):
    monkeypatch.setattr(fixed_passes, "MOST_PASSES", 2)
    requests = requests_of(6)
    check_equal(answers(model, requests, Recorder()), answers(model, requests))


def test_what_cannot_be_recorded_is_computed_as_before(model, caplog):
    def refuses(work):
        raise RuntimeError("operation not permitted when stream is capturing")

    requests = requests_of(3)
    check_equal(answers(model, requests, refuses), answers(model, requests))
    (message,) = caplog.messages
    assert message == "sampling goes on without CUDA graphs: operation not permitted when stream is capturing"


def test_a_fault_of_the_model_is_not_taken_for_one_of_the_recording(model, caplog):
    def broken(module, arguments):
        raise RuntimeError("broken")

    model.model.layers[1].register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="broken"):
        answers(model, requests_of(1), Recorder())
    assert not caplog.messages


def test_shapes_are_rounded_to_four_in_each_octave():
    assert [_rounded(n) for n in (1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 100)] == [
        1,
        2,
        3,
        5,
        7,
        8,
        10,
        14,
        16,
        20,
        112,
    ]
    assert [_rounded(n, 64) for n in (1, 64, 65, 600)] == [64, 64, 128, 640]
