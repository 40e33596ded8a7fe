"""The contract of every `ajet.interfaces.engine.Engine`, as checks to run against a real one.

    @pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
    def test_conformance(check, engine):
        asyncio.run(check(Subject(engine)))

A check is an async function that takes a started engine and raises AssertionError, with a sentence, if the
engine violates the contract; it runs on the engine's loop and leaves the engine as it was. Use a small model with
random weights (`initializer_range` around 0.2): its distributions are broad, so a wrong token, a wrong temperature
or a stale cache shows in the numbers. If its configuration names an end token that it often samples, the checks
also show that only the request's stop tokens end a completion.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ajet.interfaces.engine import Engine
from ajet.tracker.record import check_generation
from ajet.types import Float32, GenerateRequest, Generation, GenerationDelta, Int32, Sampling

__all__ = ["ENGINE_CHECKS", "Subject", "check_close"]


@dataclass(frozen=True, slots=True)
class Subject:
    """A started engine and its properties; it needs at least 64 tokens of context and of vocabulary.

    ``prompts``: token ids of the vocabulary, some with a common beginning. ``tolerance``: the maximum difference
    between two computations of a logprob. ``seeded``: equal seeds sample equal tokens. ``under_way`` returns how many
    requests the engine is working on, if it knows; ``seconds`` bounds each wait.
    """

    engine: Engine
    prompts: tuple[tuple[int, ...], ...] = ((30, 5, 6, 7), (30, 5, 9), (30, 5, 6, 7, 8, 9, 10, 11), (40,))
    tolerance: float = 1e-4
    seeded: bool = True
    under_way: Callable[[], Awaitable[int]] | None = None
    seconds: float = 30.0

    def request(self, prompt: int | Sequence[int] = 0, **sampling: Any) -> GenerateRequest:
        """A request for 12 tokens after one of the prompts (by its number) or after ids."""
        ids = self.prompts[prompt] if isinstance(prompt, int) else prompt
        return GenerateRequest(np.array(ids, dtype=np.int32), Sampling(**{"max_tokens": 12, **sampling}))

    def requests(self, **sampling: Any) -> list[GenerateRequest]:
        """One request for each prompt, with different seeds."""
        return [self.request(i, **{"seed": i, **sampling}) for i in range(len(self.prompts))]

    async def generate(self, *requests: GenerateRequest) -> list[Generation]:
        """Answers to requests that are sent concurrently."""
        answers = asyncio.gather(*(self.engine.generate(request) for request in requests))
        return await asyncio.wait_for(answers, self.seconds)

    async def read(self, request: GenerateRequest) -> list[GenerationDelta]:
        """All deltas of a stream."""
        async with asyncio.timeout(self.seconds):
            return [delta async for delta in self.engine.stream(request)]

    async def score(self, prompt: Int32, answer: Sequence[int] | Int32, temperature: float = 1.0) -> Float32:
        """The logprobs of an answer's tokens by `score`."""
        ids = np.concatenate([prompt, np.array(answer, dtype=np.int32)])
        scored = await asyncio.wait_for(self.engine.score(ids, temperature), self.seconds)
        return scored[len(prompt) :]

    def close(self, got: Float32, wanted: Float32, what: str) -> None:
        """Assert that logprobs are equal within the tolerance."""
        np.testing.assert_allclose(got, wanted, rtol=0, atol=self.tolerance, err_msg=what)


# ------------------------------------------------------------------------------------------ the rule


async def check_temperature_divides_the_logits(subject: Subject) -> None:
    """At temperature T the logprobs of two tokens differ by 1/T of their difference at 1: so they are
    ``log_softmax(logits / T)``, at every position of a sequence."""
    prompt = np.array(subject.prompts[0], dtype=np.int32)
    for answers in ([(3,), (4,), (50,)], [(3, 8, 9), (4, 8, 9), (50, 8, 9)]):
        at_1 = [float((await subject.score(prompt, answer))[0]) for answer in answers]
        for temperature in (0.7, 1.6):
            at_t = [float((await subject.score(prompt, answer, temperature))[0]) for answer in answers]
            subject.close(
                np.diff(np.array(at_t, np.float32)),
                np.diff(np.array(at_1, np.float32)) / temperature,
                f"score at temperature {temperature} against score at 1 ({len(answers[0])} tokens from the end)",
            )


async def check_logprobs_are_probabilities(subject: Subject) -> None:
    """The probabilities of a few tokens sum to less than 1 if other tokens are left."""
    prompt = np.array(subject.prompts[1], dtype=np.int32)
    for temperature in (1.0, 0.7):
        some = [float((await subject.score(prompt, [token], temperature))[0]) for token in range(8)]
        assert 0 < sum(np.exp(some)) < 1, f"eight of the tokens have the probabilities {np.exp(some)}"


async def check_recorded_logprobs_are_those_of_scoring(subject: Subject) -> None:
    """The logprobs of sampled tokens are what `score` gives them at the request's temperature."""
    for temperature in (1.0, 0.7):
        requests = subject.requests(temperature=temperature)
        for asked, got in zip(requests, await subject.generate(*requests), strict=True):
            scored = await subject.score(asked.prompt_ids, got.token_ids, temperature)
            subject.close(got.logprobs, scored, f"sampled at temperature {temperature} against score")


async def check_logprobs_are_before_top_p_and_top_k(subject: Subject) -> None:
    """Tokens that top-p and top-k exclude still count in the logprobs."""
    for temperature in (1.0, 0.7):
        requests = subject.requests(temperature=temperature, top_p=0.4, top_k=6)
        for asked, got in zip(requests, await subject.generate(*requests), strict=True):
            scored = await subject.score(asked.prompt_ids, got.token_ids, temperature)
            subject.close(
                got.logprobs, scored, f"sampled with top_p and top_k at {temperature} against score"
            )


async def check_top_k_and_top_p_cut_off(subject: Subject) -> None:
    """With only one token left, sampling is greedy."""
    [greedy] = await subject.generate(subject.request(temperature=0.0))
    for cut in ({"top_k": 1}, {"top_p": 1e-6}):
        [got] = await subject.generate(subject.request(**cut, seed=1))
        assert got.token_ids.tolist() == greedy.token_ids.tolist(), f"{cut} sampled what greedy did not"


async def check_greedy_takes_the_most_likely_token_at_temperature_one(subject: Subject) -> None:
    """Temperature 0 takes the most likely token and records its logprob at temperature 1; so does a
    greedy call beside one that samples."""
    greedy = subject.requests(temperature=0.0)
    alone = [(await subject.generate(asked))[0] for asked in greedy]
    together = await subject.generate(*greedy, *subject.requests(temperature=0.7))
    for asked, one, other in zip(greedy, alone, together, strict=False):
        assert one.token_ids.tolist() == other.token_ids.tolist(), (
            "concurrent requests changed the most likely token"
        )
        scored = await subject.score(asked.prompt_ids, one.token_ids)
        subject.close(one.logprobs, scored, "greedy alone against score at 1")
        subject.close(other.logprobs, scored, "greedy with a concurrent request against score at 1")
    best = float(alone[0].logprobs[0])
    for token in range(0, 60, 7):
        [other_logprob] = await subject.score(greedy[0].prompt_ids, [token])
        assert other_logprob <= best + subject.tolerance, f"token {token} is likelier than the greedy one"


async def check_score(subject: Subject) -> None:
    """float32[T] with NaN first; temperature 0 counts as 1; single tokens and a full context can be scored."""
    length = subject.engine.context_length
    ids = np.resize(np.array(subject.prompts[2], dtype=np.int32), length)
    whole = await subject.engine.score(ids)
    assert whole.shape == (length,) and whole.dtype == np.float32, "score is not float32[T]"
    assert np.isnan(whole[0]) and np.isfinite(whole[1:]).all() and (whole[1:] <= 0).all()
    begun = await subject.engine.score(ids[:5], 0.0)
    subject.close(begun[1:], whole[1:5], "a beginning at temperature 0 against the whole at 1")
    assert np.isnan(await subject.engine.score(ids[:1])).tolist() == [True]


# ------------------------------------------------------------------------------------------ answers


async def check_arrays(subject: Subject) -> None:
    """Arrays have the dtypes and lengths that `ajet.types.Generation` specifies, with one weight version."""
    for got in await subject.generate(*subject.requests()):
        assert got.token_ids.dtype == got.weight_versions.dtype == np.int32
        assert got.logprobs.dtype == np.float32
        assert len(got.token_ids) == len(got.logprobs) == len(got.weight_versions) == 12
        assert got.finish_reason == "length" and len(set(got.weight_versions.tolist())) == 1


async def check_answers_can_be_recorded(subject: Subject) -> None:
    """Whole and streamed, at any temperature: tokens of the tokenizer's vocabulary with as many logprobs and
    versions, each logprob finite and at most 0. Anything else fails the episode that asked."""
    vocabulary = max(subject.engine.tokenizer.get_vocab().values()) + 1
    for sampling in ({"temperature": 0.0}, {"temperature": 0.7}, {"top_p": 0.4, "top_k": 6}):
        requests = subject.requests(**sampling)
        streams = await asyncio.gather(*(subject.read(request) for request in requests))
        for got in (*await subject.generate(*requests), *map(_joined, streams)):
            try:
                check_generation(got, vocabulary)
            except ValueError as error:
                raise AssertionError(f"{sampling}: the engine returned {error}") from None


async def check_many_at_once_get_their_own_answers(subject: Subject) -> None:
    """Thirty-two requests of two lengths, sent concurrently: each gets the same answer as when sent alone."""
    asked = subject.requests(temperature=0.0)
    alone = [(await subject.generate(request))[0].token_ids.tolist() for request in asked]
    short = subject.requests(temperature=0.0, max_tokens=5)
    many = await subject.generate(*([*asked, *short] * (32 // (2 * len(asked)))))
    for i, got in enumerate(many):
        wanted = alone[i % len(asked)][: len(got.token_ids)]
        assert got.token_ids.tolist() == wanted, (
            f"request {i} of {len(many)} got another answer than when sent alone"
        )


async def check_a_stream_is_the_same_generation_in_pieces(subject: Subject) -> None:
    """The pieces of a stream together are the generation; only the last one has a finish reason."""
    for sampling in ({"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.9}, {"max_tokens": 1}):
        if not subject.seeded and sampling.get("temperature") != 0.0:
            continue
        requests = subject.requests(**sampling)
        whole = await subject.generate(*requests)
        streams = await asyncio.gather(*(subject.read(request) for request in requests))
        for one, deltas in zip(whole, streams, strict=True):
            joined = _joined(deltas)
            assert joined.token_ids.tolist() == one.token_ids.tolist(), (
                f"{sampling}: other tokens in a stream"
            )
            assert joined.finish_reason == one.finish_reason
            assert joined.weight_versions.tolist() == one.weight_versions.tolist()
            subject.close(joined.logprobs, one.logprobs, f"{sampling}: a stream against the whole")


async def check_a_stream_comes_as_it_is_sampled(subject: Subject) -> None:
    """The first piece arrives long before the last token."""
    deltas = await subject.read(subject.request(max_tokens=40, seed=0))
    assert len(deltas) > 4, f"40 tokens arrived in {len(deltas)} pieces"


async def check_equal_seeds_draw_equal_tokens(subject: Subject) -> None:
    """This holds whatever else is sampled at the same time; other seeds sample other tokens."""
    if not subject.seeded:
        return
    [alone] = await subject.generate(subject.request(seed=7))
    among = await subject.generate(*subject.requests(max_tokens=7), subject.request(seed=7))
    assert among[-1].token_ids.tolist() == alone.token_ids.tolist(), (
        "concurrent requests changed the tokens of a seed"
    )
    [other] = await subject.generate(subject.request(seed=2**62 + 8))
    assert other.token_ids.tolist() != alone.token_ids.tolist(), "two seeds sampled the same 12 tokens"


async def check_without_a_seed_draws_differ(subject: Subject) -> None:
    """Members of a group send the same prompt and must get different answers."""
    drawn = await subject.generate(*[subject.request() for _ in range(4)])
    assert len({tuple(got.token_ids.tolist()) for got in drawn}) > 1


# ------------------------------------------------------------------------------------------ ends


async def check_a_stop_token_ends_the_completion_and_is_part_of_it(subject: Subject) -> None:
    """Whole and streamed."""
    free = await _free(subject)
    stop = next((token for i, token in enumerate(free[2:], 2) if token not in free[:i]), free[0])
    request = subject.request(temperature=0.0, stop_token_ids=(stop, 2**20))
    [whole] = await subject.generate(request)
    for got in (whole, _joined(await subject.read(request))):
        assert got.token_ids.tolist() == free[: free.index(stop) + 1], "it does not end with its stop token"
        assert got.finish_reason == "stop", f"its finish reason is {got.finish_reason!r}"


async def check_a_stop_string_ends_the_completion(subject: Subject) -> None:
    """It ends with the token that completes the string, which is kept; the string may span tokens."""
    decode = subject.engine.tokenizer.decode
    free = await _free(subject)
    text = decode(free, skip_special_tokens=False)
    for stop in {text[2:3], text[1:5], decode(free[3:5], skip_special_tokens=False)} - {""}:
        if "\ufffd" in stop:
            continue
        [got] = await subject.generate(subject.request(temperature=0.0, stop=(stop, "never said")))
        ends = [n for n in range(1, 13) if stop in decode(free[:n], skip_special_tokens=False)]
        assert got.token_ids.tolist() == free[: ends[0]], f"{stop!r} should have ended {text!r}"
        assert got.finish_reason == "stop"


async def check_without_max_tokens_the_context_is_the_limit(subject: Subject) -> None:
    """Also where one token has room."""
    length = subject.engine.context_length
    for room in (length - len(subject.prompts[0]), 1):
        prompt = np.resize(np.array(subject.prompts[0], dtype=np.int32), length - room)
        [got] = await subject.generate(subject.request(prompt.tolist(), max_tokens=None, temperature=0.0))
        assert len(got.token_ids) == room and got.finish_reason == "length"
    [got] = await subject.generate(subject.request(prompt.tolist(), max_tokens=5))
    assert len(got.token_ids) == 1, "max_tokens went beyond the context"


async def check_what_cannot_be_served_is_a_value_error(subject: Subject) -> None:
    """Such requests fail, in `generate`, `stream` and `score`, and the engine keeps working."""
    length = subject.engine.context_length
    bad = {
        "a full prompt": subject.request([1] * length),
        "a longer prompt": subject.request([1] * (length + 9)),
        "an empty prompt": subject.request([]),
        "an unknown token": subject.request([1, 2**30]),
        "a negative token": subject.request([1, -1]),
        "no tokens": subject.request(max_tokens=0),
        "a temperature that is not a number": subject.request(temperature=math.nan),
        "an infinite temperature": subject.request(temperature=math.inf),
        "a negative temperature": subject.request(temperature=-1.0),
        "a top_p above 1": subject.request(top_p=1.5),
        "a top_p of 0": subject.request(top_p=0.0),
        "a negative top_k": subject.request(top_k=-1),
    }
    for name, request in bad.items():
        await _refused(subject.generate(request), name)
        await _refused(subject.read(request), f"{name}, streamed")
    await _refused(subject.engine.score(np.ones(length + 1, dtype=np.int32)), "a score beyond the context")
    await _refused(subject.engine.score(np.ones(0, dtype=np.int32)), "a score of nothing")
    await subject.generate(subject.request())


# ------------------------------------------------------------------------------------------ cancellation


async def check_cancelling_stops_a_generation_and_no_other(subject: Subject) -> None:
    """The cancelled request ends at once; the answers to other requests do not change."""
    greedy = subject.requests(temperature=0.0, max_tokens=40)
    greedy[1] = subject.request(1, temperature=0.0, max_tokens=None)  # which cannot have ended by then
    alone = [(await subject.generate(request))[0].token_ids.tolist() for request in (greedy[0], *greedy[2:])]
    tasks = [asyncio.create_task(subject.engine.generate(request)) for request in greedy]
    async with aclosing(_stream(subject, greedy[0])) as stream:
        await anext(stream)  # by now the others have begun as well
        tasks[1].cancel()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), subject.seconds)
    cancelled = results.pop(1)
    assert isinstance(cancelled, asyncio.CancelledError), f"the cancelled request became {cancelled!r}"
    for got, wanted in zip(results, alone, strict=True):
        assert isinstance(got, Generation), f"cancelling one request ended another: {got!r}"
        assert got.token_ids.tolist() == wanted, "cancelling one request changed another"
    await _at_rest(subject)


async def check_closing_a_stream_stops_it(subject: Subject) -> None:
    """A closed or cancelled stream stops long before it would have ended, while another stream continues."""
    half = subject.engine.context_length // 2
    endless = subject.request(max_tokens=None, seed=0)
    for how in ("closed", "cancelled"):
        async with asyncio.timeout(subject.seconds), aclosing(_stream(subject, endless)) as other:
            await anext(other)
            stream = _stream(subject, endless)
            first = await anext(stream)
            assert len(first.token_ids) < half, "the first piece of a stream is most of it"
            if how == "closed":
                await stream.aclose()
            else:
                await _cancelled(stream)
            further = 0
            while subject.under_way is not None and await subject.under_way() > 1:
                assert further < half, f"{how} after its first token, a stream ran on for half of its length"
                further += len((await anext(other)).token_ids)
        await _at_rest(subject)


async def check_close(subject: Subject) -> None:
    """Open and later requests fail with RuntimeError; closing twice is allowed. It must be the last check of an
    engine, so it is not in `ENGINE_CHECKS`."""
    stream = subject.engine.stream(subject.request(max_tokens=None))
    await anext(stream)
    task = asyncio.create_task(subject.engine.generate(subject.request(max_tokens=None)))
    await asyncio.sleep(0)
    await subject.engine.close()
    await subject.engine.close()
    for name, open_or_late in {
        "an open request": task,
        "an open stream": _drain(stream),
        "a late request": subject.engine.generate(subject.request()),
    }.items():
        try:
            await asyncio.wait_for(open_or_late, subject.seconds)
        except RuntimeError:
            continue
        raise AssertionError(f"{name} outlived the engine")


# ------------------------------------------------------------------------------------------ helpers


def _joined(deltas: Sequence[GenerationDelta]) -> Generation:
    assert deltas, "a stream without a piece"
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1), (
        "a finish reason before the end"
    )
    reason = deltas[-1].finish_reason
    assert reason is not None, "a stream without a finish reason"
    return Generation(
        np.concatenate([d.token_ids for d in deltas]),
        np.concatenate([d.logprobs for d in deltas]),
        np.concatenate([d.weight_versions for d in deltas]),
        reason,
    )


async def _free(subject: Subject) -> list[int]:
    """Twelve greedy tokens after the first prompt."""
    [free] = await subject.generate(subject.request(temperature=0.0))
    ids: list[int] = free.token_ids.tolist()
    return ids


def _stream(subject: Subject, request: GenerateRequest) -> AsyncGenerator[GenerationDelta]:
    """An engine's stream as a generator, which can be closed."""
    return cast("AsyncGenerator[GenerationDelta]", subject.engine.stream(request))


async def _refused(awaitable: Awaitable[Any], name: str) -> None:
    try:
        got = await awaitable
    except ValueError as error:
        assert str(error), f"{name}: a ValueError without a message"
    else:
        raise AssertionError(f"{name} was served: {got!r}")


async def _cancelled(stream: Any) -> None:
    """A task that reads a stream, cancelled while it waits."""

    async def read() -> None:
        async for _ in stream:
            reading.set()

    reading = asyncio.Event()
    task = asyncio.create_task(read())
    await reading.wait()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return
    raise AssertionError("a cancelled reader continued")


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


async def _at_rest(subject: Subject) -> None:
    """Wait until the engine is idle, if it can report that."""
    if subject.under_way is None:
        return
    async with asyncio.timeout(subject.seconds):
        while await subject.under_way():
            await asyncio.sleep(0)


ENGINE_CHECKS: tuple[Callable[[Subject], Awaitable[None]], ...] = (
    check_temperature_divides_the_logits,
    check_logprobs_are_probabilities,
    check_recorded_logprobs_are_those_of_scoring,
    check_logprobs_are_before_top_p_and_top_k,
    check_top_k_and_top_p_cut_off,
    check_greedy_takes_the_most_likely_token_at_temperature_one,
    check_score,
    check_arrays,
    check_answers_can_be_recorded,
    check_many_at_once_get_their_own_answers,
    check_a_stream_is_the_same_generation_in_pieces,
    check_a_stream_comes_as_it_is_sampled,
    check_equal_seeds_draw_equal_tokens,
    check_without_a_seed_draws_differ,
    check_a_stop_token_ends_the_completion_and_is_part_of_it,
    check_a_stop_string_ends_the_completion,
    check_without_max_tokens_the_context_is_the_limit,
    check_what_cannot_be_served_is_a_value_error,
    check_cancelling_stops_a_generation_and_no_other,
    check_closing_a_stream_stops_it,
)
