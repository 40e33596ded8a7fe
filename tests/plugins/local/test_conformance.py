"""The local engine keeps what every engine promises; and the checks notice an engine that does not."""

import asyncio
import copy
from dataclasses import replace

import numpy as np
import pytest

from ajet.testing import conformance
from ajet.testing.conformance import ENGINE_CHECKS, Subject, check_close
from ajet.types import GenerationDelta
from ajet_local.engine import LocalEngine
from tests.patience import PATIENCE


def subject(engine):
    async def under_way():
        await asyncio.sleep(0)  # a step
        return len(engine.scheduler.running) + len(engine.scheduler.waiting)

    return Subject(engine, under_way=under_way)


@pytest.fixture(scope="module")
def shared(untouched, tokenizer):
    """Run a scenario with an engine that serves all of them: each check leaves it as it was."""
    engine = LocalEngine(copy.deepcopy(untouched), tokenizer)
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        yield lambda scenario: runner.run(asyncio.wait_for(scenario(engine), timeout=PATIENCE))
        runner.run(engine.close())


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
def test_the_local_engine(shared, check):
    shared(lambda engine: check(subject(engine)))


def test_the_local_engine_is_closed(running):
    running(lambda engine: check_close(subject(engine)))


class Faulty:
    """The local engine with something wrong."""

    def __init__(self, engine):
        self.engine = engine
        self.left = []

    def __getattr__(self, name):
        return getattr(self.engine, name)


class ScoresAtTemperatureOne(Faulty):
    async def score(self, ids, temperature=1.0):
        return await self.engine.score(ids)


class RecordsAtTemperatureOne(Faulty):
    async def generate(self, request):
        got = await self.engine.generate(request)
        scored = await self.engine.score(np.concatenate([request.prompt_ids, got.token_ids]))
        return replace(got, logprobs=scored[len(request.prompt_ids) :])


class RecordsAfterTopP(Faulty):
    async def generate(self, request):
        got = await self.engine.generate(request)
        return replace(got, logprobs=got.logprobs - np.float32(np.log(max(request.sampling.top_p, 0.1))))


class LeavesOutTheStopToken(Faulty):
    async def generate(self, request):
        got = await self.engine.generate(request)
        return replace(got, token_ids=got.token_ids[:-1]) if got.finish_reason == "stop" else got


class KnowsNoStopStrings(Faulty):
    async def generate(self, request):
        return await self.engine.generate(replace(request, sampling=replace(request.sampling, stop=())))


class StopsAtItsOwnToken(Faulty):
    async def generate(self, request):
        [said] = (await self.engine.generate(without_limits(request, 1))).token_ids.tolist()
        sampling = replace(request.sampling, stop_token_ids=(*request.sampling.stop_token_ids, said))
        return await self.engine.generate(replace(request, sampling=sampling))


class IgnoresSeeds(Faulty):
    async def generate(self, request):
        return await self.engine.generate(replace(request, sampling=replace(request.sampling, seed=None)))


class SeedsAllAlike(Faulty):
    async def generate(self, request):
        return await self.engine.generate(replace(request, sampling=replace(request.sampling, seed=1)))


class StreamsAtTheEnd(Faulty):
    async def stream(self, request):
        got = await self.engine.generate(request)
        yield GenerationDelta(got.token_ids, got.logprobs, got.weight_versions, got.finish_reason)


class SamplesOnWithoutAReader(Faulty):
    async def stream(self, request):
        self.left.append(asyncio.create_task(self.engine.generate(request)))
        async for delta in self.engine.stream(request):
            yield delta


class ServesAnyPrompt(Faulty):
    async def generate(self, request):
        ids = request.prompt_ids[-self.context_length // 2 :]
        return await self.engine.generate(replace(request, prompt_ids=ids))


class MixesUpAnswers(Faulty):
    async def generate(self, request):
        self.left = [*self.left, request][-8:]
        await asyncio.sleep(0)
        return await self.engine.generate(without_limits(self.left[-1], request.sampling.max_tokens))


class ForgetsALogprob(Faulty):
    async def generate(self, request):
        got = await self.engine.generate(request)
        return replace(got, logprobs=got.logprobs[:-1])


class GivesNoNumber(Faulty):
    async def generate(self, request):
        got = await self.engine.generate(request)
        return replace(got, logprobs=np.where(np.arange(len(got.logprobs)) == 3, np.nan, got.logprobs))


class SamplesNoToken(Faulty):
    async def stream(self, request):
        async for delta in self.engine.stream(request):
            yield replace(delta, token_ids=delta.token_ids + np.int32(2**20))


def without_limits(request, max_tokens):
    sampling = replace(request.sampling, max_tokens=max_tokens, stop=(), stop_token_ids=())
    return replace(request, sampling=sampling)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (ScoresAtTemperatureOne, conformance.check_temperature_divides_the_logits),
        (RecordsAtTemperatureOne, conformance.check_recorded_logprobs_are_those_of_scoring),
        (RecordsAfterTopP, conformance.check_logprobs_are_before_top_p_and_top_k),
        (LeavesOutTheStopToken, conformance.check_a_stop_token_ends_the_completion_and_is_part_of_it),
        (KnowsNoStopStrings, conformance.check_a_stop_string_ends_the_completion),
        (StopsAtItsOwnToken, conformance.check_arrays),
        (IgnoresSeeds, conformance.check_equal_seeds_draw_equal_tokens),
        (SeedsAllAlike, conformance.check_without_a_seed_draws_differ),
        (StreamsAtTheEnd, conformance.check_a_stream_comes_as_it_is_sampled),
        (SamplesOnWithoutAReader, conformance.check_closing_a_stream_stops_it),
        (ServesAnyPrompt, conformance.check_what_cannot_be_served_is_a_value_error),
        (ForgetsALogprob, conformance.check_answers_can_be_recorded),
        (GivesNoNumber, conformance.check_answers_can_be_recorded),
        (SamplesNoToken, conformance.check_answers_can_be_recorded),
        (MixesUpAnswers, conformance.check_many_at_once_get_their_own_answers),
    ],
    ids=lambda given: given.__name__,
)
def test_a_faulty_engine_is_noticed(shared, fault, check):
    async def scenario(engine):
        with pytest.raises(AssertionError):
            await check(replace(subject(engine), engine=fault(engine)))

    shared(scenario)
