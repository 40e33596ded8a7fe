"""Replies come from Tinker's sampling client by token ids, with logprobs that scoring confirms."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from ajet.interfaces.progress import Silent
from ajet.testing import conformance
from ajet.testing.conformance import ENGINE_CHECKS, Subject, check_close
from ajet.types import GenerateRequest, Sampling
from ajet_tinker.backbone import TinkerEnginePlugin
from ajet_tinker.engine import DRAWS, TinkerEngine
from tests.patience import PATIENCE
from tests.plugins.tinker.conftest import section_of, served

pytestmark = pytest.mark.whole

WHAT_TINKER_CANNOT_DO = {
    conformance.check_temperature_divides_the_logits: "it scores at temperature 1 alone",
    conformance.check_logprobs_are_probabilities: "so",
    conformance.check_recorded_logprobs_are_those_of_scoring: "so",
    conformance.check_logprobs_are_before_top_p_and_top_k: "so",
    conformance.check_a_stream_comes_as_it_is_sampled: "a reply comes when all of it is sampled",
    conformance.check_closing_a_stream_stops_it: "so",
    conformance.check_cancelling_stops_a_generation_and_no_other: "so",
    check_close: "so; see below",
}


def built(folder, section):
    keys = {name: section[name] for name in ("base_model", "base_url", "timeout")}
    return TinkerEnginePlugin(**keys).build(str(folder), 0, Silent())


@pytest.fixture
def engine(folder, section):
    return built(folder, section)


@pytest.fixture(scope="module")
def keeps(base, folder):
    """Run a check on an engine that serves all of them: each leaves it as it was."""
    with served(base[0]) as service, asyncio.Runner() as runner:
        engine = built(folder, section_of(service))
        runner.run(engine.start())
        subject = Subject(engine, tolerance=1e-4)
        yield lambda check: runner.run(asyncio.wait_for(check(subject), timeout=PATIENCE))
        runner.run(engine.close())


def running(engine, scenario):
    """Run a coroutine function with the started engine."""

    async def main():
        await engine.start()
        try:
            return await asyncio.wait_for(scenario(engine), timeout=PATIENCE)
        finally:
            await engine.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    "check",
    [check for check in ENGINE_CHECKS if check not in WHAT_TINKER_CANNOT_DO],
    ids=lambda check: check.__name__,
)
def test_it_keeps_to_the_contract_of_engines(keeps, check):
    keeps(check)


def test_recorded_logprobs_are_those_of_scoring(engine):
    async def scenario(engine):
        subject = Subject(engine, tolerance=1e-4)
        for cut in ({}, {"top_p": 0.4, "top_k": 6}):
            requests = subject.requests(**cut)
            for asked, got in zip(requests, await subject.generate(*requests), strict=True):
                subject.close(got.logprobs, await subject.score(asked.prompt_ids, got.token_ids), str(cut))

    running(engine, scenario)


def test_scoring_at_another_temperature_is_refused(engine):
    async def scenario(engine):
        with pytest.raises(ValueError, match=r"temperature 0.7: Tinker scores at temperature 1"):
            await Subject(engine).score(Subject(engine).request().prompt_ids, [3, 4], 0.7)

    running(engine, scenario)


def test_cancelling_a_request_cancels_it_at_the_service(engine, service):
    async def scenario(engine):
        subject = Subject(engine)
        service.silent.add("sample")
        task = asyncio.create_task(engine.generate(subject.request(max_tokens=4)))
        while not service.calls["sample"]:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # until the client has its future
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not service.cancelled:
            await asyncio.sleep(0.01)

    running(engine, scenario)


def test_open_and_later_requests_of_a_closed_engine_fail(engine, service):
    async def scenario(engine):
        request = Subject(engine).request()
        service.silent.add("sample")
        open_request = asyncio.create_task(engine.generate(request))
        while not service.calls["sample"]:
            await asyncio.sleep(0.01)
        await engine.close()
        await engine.close()
        for awaited in (open_request, engine.generate(request)):
            with pytest.raises(RuntimeError, match="the engine was closed"):
                await awaited
        assert service.finished == ["interrupted"]

    running(engine, scenario)


def test_min_p_which_tinker_does_not_have_is_refused(engine):
    """Also where nothing is trained, as in `ajet eval`: `eval.sampling.min_p` had no effect there."""

    async def scenario(engine):
        with pytest.raises(ValueError, match=r"min_p 0.1: Tinker samples without it"):
            await engine.generate(Subject(engine).request(min_p=0.1))

    running(engine, scenario)


def test_an_adapter_by_name_is_refused(engine):
    async def scenario(engine):
        request = Subject(engine).request()
        with pytest.raises(ValueError, match="serves no adapters"):
            await engine.generate(GenerateRequest(request.prompt_ids, Sampling(), adapter="a"))

    running(engine, scenario)


class Scripted:
    """A sampling client whose replies are given, and the service that waits for them."""

    def __init__(self, *replies):
        self.replies, self.asked = list(replies), []

    def sample(self, prompt, count, params):
        self.asked.append((prompt.to_ints(), params.max_tokens, params.seed))
        ids = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32)
        [sequence] = [SimpleNamespace(tokens_np=np.array(ids), logprobs_np=logprobs, stop_reason="stop")]
        return SimpleNamespace(sequences=[sequence])

    async def result(self, asked, what):
        return asked


def sampled(*replies):
    """What an engine of a tokenizer with the ids 0 to 9 answers, and what it asks for."""
    sampler = Scripted(*replies)
    tokenizer = SimpleNamespace(get_vocab=lambda: {str(i): i for i in range(10)})
    engine = TinkerEngine(sampler, tokenizer, "qwen3", 64, lambda: sampler)
    engine.load(sampler, 3)
    request = GenerateRequest(np.array([1, 2], np.int32), Sampling(max_tokens=9, seed=7), ("e", 0))
    return asyncio.run(engine.generate(request)), sampler.asked


def test_an_id_without_a_token_is_drawn_again_and_what_is_before_it_stays():
    got, asked = sampled([5, 6, 10, 7], [12], [8, 9])
    assert got.token_ids.tolist() == [5, 6, 8, 9]
    assert got.logprobs.tolist() == [-1, -2, -1, -2] and got.weight_versions.tolist() == [3] * 4
    assert asked == [([1, 2], 9, 7), ([1, 2, 5, 6], 7, 8), ([1, 2, 5, 6], 7, 9)]


def test_an_id_without_a_token_that_is_always_drawn_is_returned_for_the_call_to_fail():
    got, asked = sampled([5, 10], [10])
    assert got.token_ids.tolist() == [5, 10] and len(asked) == DRAWS
