"""Replies come from Tinker's sampling client by token ids, with logprobs that scoring confirms."""

import asyncio

import pytest

from ajet.interfaces.progress import Silent
from ajet.testing import conformance
from ajet.testing.conformance import ENGINE_CHECKS, Subject, check_close
from ajet.types import GenerateRequest, Sampling
from ajet_tinker.backbone import TinkerEnginePlugin
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


def test_an_adapter_by_name_is_refused(engine):
    async def scenario(engine):
        request = Subject(engine).request()
        with pytest.raises(ValueError, match="serves no adapters"):
            await engine.generate(GenerateRequest(request.prompt_ids, Sampling(), adapter="a"))

    running(engine, scenario)
