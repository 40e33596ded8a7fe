"""What the local engine promises, beyond the protocol in `ajet.interfaces.engine`."""

import asyncio

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ajet.types import AjetError, GenerateRequest, Sampling  # noqa: E402
from ajet_local.completion import StopStrings  # noqa: E402
from ajet_local.modeling import with_cache  # noqa: E402
from ajet_local.sampling import RequestSampler, sample  # noqa: E402


def request(ids, **sampling):
    return GenerateRequest(np.array(ids, dtype=np.int32), Sampling(**{"max_tokens": 12, **sampling}))


def unique_tokens(sequences):
    """Tokens of the radix tree over ``sequences``: one for each distinct prefix."""
    return len({tuple(s[: n + 1]) for s in sequences for n in range(len(s))})


PROMPTS = ([300, 5, 6, 7], [300, 5, 9], [300, 5, 6, 7, 8, 9, 10, 11], [300, 5])


@pytest.mark.parametrize(
    "prompts", [PROMPTS, ([1, 2, 3], [4], [5, 6])], ids=["shared prefix", "no shared prefix"]
)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_logprobs_are_those_of_scoring_at_the_temperature(running, prompts, temperature):
    async def scenario(engine):
        requests = [request(p, temperature=temperature, seed=i) for i, p in enumerate(prompts)]
        for asked, got in zip(requests, await asyncio.gather(*map(engine.generate, requests)), strict=True):
            ids = np.concatenate([asked.prompt_ids, got.token_ids])
            scored = await engine.score(ids, temperature)
            assert np.isnan(scored[0])
            np.testing.assert_allclose(got.logprobs, scored[len(asked.prompt_ids) :], atol=1e-4)
            assert got.token_ids.dtype == np.int32 and got.logprobs.dtype == np.float32
            assert got.finish_reason == "length" and len(got.token_ids) == 12

    running(scenario)


@pytest.mark.parametrize("size", [1, 2, 125, 128, 1000, 151_936])
def test_logits_that_are_not_numbers_are_told_by_the_logprob_at_any_size_of_vocabulary(size: int) -> None:
    (drawn,) = sample(torch.full((1, size), torch.nan), [RequestSampler(Sampling(seed=0))])
    assert 0 <= drawn.token < size and np.isnan(drawn.logprob)


class Earlier:
    def forward(self, input_ids, past_key_values=None, use_cache=None, **more): ...


class Later:
    def forward(self, input_ids, cache=None, use_cache=None, **more): ...


@pytest.mark.parametrize(("kind", "name"), [(Earlier, "past_key_values"), (Later, "cache")])
def test_a_model_gets_its_cache_by_the_name_that_its_version_of_transformers_has(kind, name):
    assert with_cache(kind(), "the cache") == {name: "the cache", "use_cache": True}
    assert with_cache(kind(), None) == {"use_cache": False}


def test_logprobs_are_before_top_p_and_top_k(running):
    async def scenario(engine):
        asked = request(PROMPTS[0], top_p=0.3, top_k=5, seed=1)
        got = await engine.generate(asked)
        scored = await engine.score(np.concatenate([asked.prompt_ids, got.token_ids]))
        np.testing.assert_allclose(got.logprobs, scored[len(asked.prompt_ids) :], atol=1e-4)

    running(scenario)


def test_greedy_takes_the_most_likely_token_and_records_temperature_one(running):
    async def scenario(engine):
        greedy = await engine.generate(request(PROMPTS[0], temperature=0.0))
        only = await engine.generate(request(PROMPTS[0], top_k=1, seed=3))
        assert greedy.token_ids.tolist() == only.token_ids.tolist()
        np.testing.assert_allclose(greedy.logprobs, only.logprobs, atol=1e-5)

    running(scenario)


def test_equal_seeds_draw_equal_tokens_whatever_the_neighbours(running):
    async def scenario(engine):
        alone = await engine.generate(request(PROMPTS[0], seed=7))
        neighbours = [request(p, seed=i, max_tokens=3 + i) for i, p in enumerate(PROMPTS)]
        among = await asyncio.gather(*map(engine.generate, [*neighbours, request(PROMPTS[0], seed=7)]))
        assert among[-1].token_ids.tolist() == alone.token_ids.tolist()
        other = await engine.generate(request(PROMPTS[0], seed=8))
        assert other.token_ids.tolist() != alone.token_ids.tolist()

    running(scenario)


def test_requests_of_one_turn_of_the_loop_form_one_batch(passes, running):
    async def scenario(engine):
        await asyncio.gather(*(engine.generate(request(p, seed=0)) for p in PROMPTS))

    running(scenario)
    assert passes == [unique_tokens(PROMPTS)] + 11 * [len(PROMPTS)]


def test_a_batch_holds_at_most_max_batch_requests(engine, passes, running):
    engine.scheduler.max_batch = 3

    async def scenario(engine):
        await asyncio.gather(*(engine.generate(request(p, seed=0)) for p in PROMPTS))

    running(scenario)
    # The fourth prompt is the beginning of the first, so that only its last token is computed again.
    assert passes == [unique_tokens(PROMPTS[:3])] + 11 * [3] + 12 * [1]


def test_a_cancelled_request_leaves_the_batch_by_the_next_step(passes, running):
    async def scenario(engine):
        tasks = [asyncio.create_task(engine.generate(request(p, seed=0, max_tokens=40))) for p in PROMPTS]
        while len(passes) < 5:
            await asyncio.sleep(0)
        tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        assert [len(results[i].token_ids) for i in (0, 2, 3)] == [40, 40, 40]

    running(scenario)
    assert passes[1:] == 4 * [4] + 35 * [3]


def test_a_stop_token_ends_the_completion_and_is_part_of_it(running):
    async def scenario(engine):
        free = await engine.generate(request(PROMPTS[0], seed=1))
        stop = int(free.token_ids[4])
        got = await engine.generate(request(PROMPTS[0], seed=1, stop_token_ids=(stop,)))
        end = free.token_ids.tolist().index(stop) + 1
        assert got.token_ids.tolist() == free.token_ids[:end].tolist() and got.finish_reason == "stop"

    running(scenario)


def test_a_stop_string_ends_the_completion_even_across_tokens(tokenizer):
    ids = tokenizer.encode("The final answer is 12 + 34, über <tool_call> done", add_special_tokens=False)
    for stop in ("wer is 1", "34,", "über", "<tool_call>", "ü"):
        scanner = StopStrings(tokenizer, (stop, "never"))
        ends = [n for n in range(1, len(ids) + 1) if scanner.found(ids[:n])]
        expected = [n for n in range(1, len(ids) + 1) if stop in tokenizer.decode(ids[:n])]
        assert ends[0] == expected[0], stop


def test_a_stop_string_in_the_engine(running, tokenizer):
    async def scenario(engine):
        free = await engine.generate(request(PROMPTS[0], seed=1))
        text = tokenizer.decode(free.token_ids[:5])
        got = await engine.generate(request(PROMPTS[0], seed=1, stop=(text[-1],)))
        assert got.finish_reason == "stop" and len(got.token_ids) <= 5

    running(scenario)


@pytest.mark.whole
def test_without_max_tokens_the_context_is_the_limit(running):
    async def scenario(engine):
        got = await engine.generate(request(PROMPTS[0], seed=1, max_tokens=None))
        assert len(got.token_ids) == engine.context_length - len(PROMPTS[0])
        assert got.finish_reason == "length"

    running(scenario)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request([1] * 96), "context holds 96"),
        (request([]), "empty"),
        (request([1, 9999]), "token ids outside"),
        (request([1], max_tokens=0), "max_tokens"),
        (request([1], temperature=np.nan), "temperature must be a number from 0 on, not nan"),
        (request([1], temperature=-1.0), "temperature must be a number from 0 on, not -1"),
        (request([1], top_p=1.5), "top_p must be above 0 and at most 1, not 1.5"),
        (request([1], top_k=-1), "top_k must be 0"),
    ],
    ids=["no room", "empty", "unknown id", "no tokens", "nan", "negative", "top_p", "top_k"],
)
def test_a_request_that_cannot_be_served_is_a_value_error(running, asked, message):
    async def scenario(engine):
        with pytest.raises(ValueError, match=message):
            await engine.generate(asked)

    running(scenario)


def test_a_failure_in_the_batch_fails_its_requests_and_the_engine_lives_on(engine, running):
    async def scenario(engine):
        forward, engine.model.forward = engine.model.forward, None
        with pytest.raises(TypeError):
            await engine.generate(request(PROMPTS[0]))
        engine.model.forward = forward
        assert len((await engine.generate(request(PROMPTS[0]))).token_ids) == 12

    running(scenario)


def test_tokens_carry_the_weight_version_they_were_sampled_under(running):
    async def scenario(engine):
        engine.version = 3
        assert set((await engine.generate(request(PROMPTS[0]))).weight_versions.tolist()) == {3}

    running(scenario)


@pytest.mark.whole
def test_loaded_weights_answer_also_the_calls_in_progress(running, model):
    new = {name: tensor * 1.3 for name, tensor in model.state_dict().items()}

    async def scenario(engine):
        asked = request(PROMPTS[0], max_tokens=40)
        in_progress = asyncio.create_task(engine.generate(asked))
        await asyncio.sleep(0.02)
        await engine.sleep()  # nothing has to stop
        assert await engine.load_weights(new, 7) == engine.version == 7
        versions = (await in_progress).weight_versions.tolist()
        assert versions == sorted(versions) and set(versions) <= {0, 7} and versions[-1] == 7
        for name, tensor in engine.model.state_dict().items():
            assert torch.equal(tensor, new[name]), name
        ids = (await engine.generate(asked)).token_ids
        scored = await engine.score(np.concatenate([PROMPTS[0], ids]).astype(np.int32))
        assert np.isfinite(scored[len(PROMPTS[0]) :]).all()

    running(scenario)


def test_an_engine_gives_its_cache_to_an_update_unless_it_samples(running):
    async def scenario(engine):
        in_progress = engine.stream(request(PROMPTS[0], max_tokens=40))
        await anext(in_progress)
        engine.make_room()
        await asyncio.sleep(0)
        assert engine.scheduler.busy and engine.scheduler.held_tokens
        assert [delta async for delta in in_progress]
        while engine.scheduler.busy:
            await asyncio.sleep(0)
        assert engine.scheduler.held_tokens
        await asyncio.to_thread(engine.make_room)
        await asyncio.sleep(0)
        assert not engine.scheduler.held_tokens

    running(scenario)


@pytest.mark.parametrize("fault", ["missing", "shape"])
def test_weights_that_do_not_fit_change_nothing(running, model, fault):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    new = {name: tensor * 2 for name, tensor in before.items()}
    name = list(new)[-1]
    new.pop(name) if fault == "missing" else new.update({name: new[name][:-1]})

    async def scenario(engine):
        with pytest.raises(AjetError, match=f"engine local: .*{name}"):
            await engine.load_weights(new, 7)
        assert engine.version == 0
        assert all(torch.equal(tensor, before[n]) for n, tensor in engine.model.state_dict().items())

    running(scenario)


def joined(deltas):
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    fields = ("token_ids", "logprobs", "weight_versions")
    return *(np.concatenate([getattr(d, name) for d in deltas]) for name in fields), deltas[-1].finish_reason


async def drained(engine, asked):
    return [delta async for delta in engine.stream(asked)]


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.7, "top_p": 0.9}, {"stop": ("e",)}, {"max_tokens": 1}]
)
def test_a_stream_is_the_same_generation_token_by_token(running, sampling):
    async def scenario(engine):
        requests = [request(p, **{"seed": i, **sampling}) for i, p in enumerate(PROMPTS)]
        whole = await asyncio.gather(*map(engine.generate, requests))
        streams = await asyncio.gather(*(drained(engine, r) for r in requests))
        for one, deltas in zip(whole, streams, strict=True):
            ids, logprobs, versions, reason = joined(deltas)
            assert all(len(d.token_ids) == 1 for d in deltas)
            assert ids.tolist() == one.token_ids.tolist() and ids.dtype == one.token_ids.dtype
            np.testing.assert_allclose(logprobs, one.logprobs, atol=1e-5)
            assert reason == one.finish_reason
            assert versions.tobytes() == one.weight_versions.tobytes()

    running(scenario)


def test_streams_and_whole_generations_share_a_batch(passes, running):
    async def scenario(engine):
        asked = [request(p, seed=0) for p in PROMPTS[:2]]
        await asyncio.gather(engine.generate(asked[0]), drained(engine, asked[1]))

    running(scenario)
    assert passes[1:] == 11 * [2]


@pytest.mark.parametrize("how", ["closed", "cancelled"])
def test_a_stream_comes_as_it_is_sampled_and_stops_with_its_reader(passes, running, how):
    async def scenario(engine):
        stream = engine.stream(request(PROMPTS[0], seed=0, max_tokens=60))
        seen = 0

        async def read():
            nonlocal seen
            async for _ in stream:
                seen += 1

        if how == "closed":
            await anext(stream)
            await stream.aclose()
        else:
            task = asyncio.create_task(read())
            while not seen:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        at = len(passes)
        await asyncio.sleep(0.1)
        assert len(passes) <= at + 1 < 10, "the row stops with the next step"

    running(scenario)


def test_a_failing_batch_fails_its_streams_and_a_bad_request_too(engine, running):
    async def scenario(engine):
        forward, engine.model.forward = engine.model.forward, None
        with pytest.raises(TypeError):
            await drained(engine, request(PROMPTS[0]))
        engine.model.forward = forward
        with pytest.raises(ValueError, match="empty"):
            await drained(engine, request([]))
        assert len(await drained(engine, request(PROMPTS[0]))) == 12

    running(scenario)


def test_close_fails_what_is_open_and_generate_afterwards_says_so(engine):
    async def main():
        await engine.start()
        task = asyncio.create_task(engine.generate(request(PROMPTS[0], max_tokens=60)))
        await asyncio.sleep(0.01)
        await engine.close()
        await engine.close()
        with pytest.raises(RuntimeError, match="closed"):
            await task
        with pytest.raises(RuntimeError, match="not running"):
            await engine.generate(request(PROMPTS[0]))

    asyncio.run(main())


@pytest.mark.whole
def test_draws_follow_the_distribution():
    logits = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.1]))
    sampler = RequestSampler(Sampling(seed=0))
    drawn = [sample(logits[None], [sampler])[0].token for _ in range(2000)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 2000, [0.5, 0.25, 0.15, 0.1], atol=0.035)
    nucleus = {
        sample(logits[None], [s])[0].token
        for s in [RequestSampler(Sampling(top_p=0.7, seed=1))]
        for _ in range(300)
    }
    assert nucleus == {0, 1}
