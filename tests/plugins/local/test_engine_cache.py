"""Continuous batching and the cache of prefixes: exact for each architecture, and nothing computed twice."""

import asyncio
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config  # noqa: E402

from ajet.learning.settings import LoraSettings  # noqa: E402
from ajet.types import AjetError, GenerateRequest, Sampling  # noqa: E402
from ajet_local import engine as engine_module  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_lora.adapters import Adapters  # noqa: E402
from tests.patience import PATIENCE  # noqa: E402
from tests.tiers import fast, thinned  # noqa: E402

VOCABULARY = 200
CONTEXT = 640


def make_model(config_class=Qwen3Config, **changes):
    """Random weights, wide enough that tokens differ; four heads read two."""
    shape = dict(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = config_class(**{**shape, **changes})
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.fixture
def model():
    return make_model()


def run(engine, scenario):
    async def main():
        await engine.start()
        try:
            return await asyncio.wait_for(scenario(engine), timeout=PATIENCE)
        finally:
            await engine.close()

    return asyncio.run(main())


def request(ids, adapter=None, **sampling):
    settings = Sampling(**{"max_tokens": 12, "seed": 0, **sampling})
    return GenerateRequest(np.array(ids, dtype=np.int32), settings, adapter=adapter)


def prompt(seed, length):
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


async def all_of(engine, requests):
    return await asyncio.gather(*map(engine.generate, requests))


@torch.no_grad()
def logprobs_of(model, ids, temperature=1.0):
    """float[T - 1, V]: by one plain forward pass without any cache."""
    logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits / temperature, dim=-1)


def assert_exact(model, asked, got):
    """Logprobs are those of a plain pass; what was sampled greedily is most likely in one."""
    ids = [*asked.prompt_ids.tolist(), *got.token_ids.tolist()]
    plain = logprobs_of(model, ids, asked.sampling.temperature or 1.0)[len(asked.prompt_ids) - 1 :]
    chosen = plain.gather(1, torch.tensor(got.token_ids, dtype=torch.long)[:, None])[:, 0]
    np.testing.assert_allclose(got.logprobs, chosen.numpy(), atol=1e-4)
    if asked.sampling.greedy:
        assert got.token_ids.tolist() == plain.argmax(-1).tolist()


def unique_tokens(sequences):
    """Tokens of the radix tree over ``sequences``: one for each distinct prefix."""
    return len({tuple(s[: n + 1]) for s in sequences for n in range(len(s))})


def counted(model):
    LocalEngine(model, None)  # the first one tries the model out
    counts = []
    model.get_input_embeddings().register_forward_hook(lambda _, args, out: counts.append(args[0].numel()))
    return counts


def sliding(**changes):
    """A model whose second layer has a window of 8 tokens."""
    return Qwen2Config(use_sliding_window=True, max_window_layers=1, sliding_window=8, **changes)


@pytest.mark.kept
@pytest.mark.parametrize("config_class", [Qwen2Config, Qwen3Config, LlamaConfig, sliding])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@thinned
def test_groups_and_conversations_sample_what_a_plain_pass_says(config_class, temperature):
    model = make_model(config_class)
    system, lengths = prompt(0, 70), (1, 9, 30)

    async def scenario(engine):
        asked = [
            request([*system, *prompt(9 + group, lengths[group])], temperature=temperature, seed=member)
            for group in range(3)
            for member in range(2)
        ]
        asked.append(request(prompt(50, 3), temperature=temperature, max_tokens=50))
        for turn in range(3):
            answers = await all_of(engine, asked)
            for one, answer in zip(asked, answers, strict=True):
                assert_exact(model, one, answer)
            asked = [
                request([*one.prompt_ids, *answer.token_ids, *prompt(turn, 5)], temperature=temperature)
                for one, answer in zip(asked, answers, strict=True)
            ]

    run(LocalEngine(model, None), scenario)


@pytest.mark.whole
def test_24_conversations_of_6_turns_compute_each_token_once(model):
    counts = counted(model)
    sequences = {}

    async def conversation(engine, number):
        rng = random.Random(number)
        ids = [*prompt(0, 40), *prompt(1 + number, 8)]
        for _ in range(6):
            await asyncio.sleep(rng.random() * 0.02)
            sampling = Sampling(max_tokens=rng.randint(2, 12), seed=number)
            got = await engine.generate(GenerateRequest(np.array(ids, dtype=np.int32), sampling))
            ids = [*ids, *got.token_ids.tolist(), *[rng.randrange(VOCABULARY) for _ in range(6)]]
            sequences[number] = ids[:-6]

    async def scenario(engine):
        await asyncio.gather(*(conversation(engine, n) for n in range(24)))

    run(LocalEngine(model, None), scenario)
    assert sum(counts) <= 1.05 * unique_tokens(sequences.values())
    # That sampling went on in company:
    assert len(counts) < 24 * 6 * 7 / 4


def test_members_of_a_group_compute_their_prompt_once_whether_together_or_later(model):
    counts = counted(model)

    async def scenario(engine):
        ids = prompt(0, 50)
        await all_of(engine, [request(ids, seed=n, max_tokens=1) for n in range(8)])
        assert sum(counts) == 50
        await engine.generate(request([*ids, 3, 4], max_tokens=1))
        assert sum(counts) == 52
        await engine.generate(request(ids[:20], max_tokens=1))
        assert sum(counts) == 53, "the logits of a prefix that is there need its last token"

    run(LocalEngine(model, None), scenario)


@pytest.mark.whole
def test_a_long_conversation_stays_a_handful_of_nodes_and_can_be_left_anywhere(model):
    counts = counted(model)

    async def scenario(engine):
        ids = prompt(0, 20)
        for turn in range(40):
            got = await engine.generate(request(ids, max_tokens=4))
            ids = [*ids, *got.token_ids.tolist(), *prompt(turn, 5)]
        cache = engine.scheduler.cache
        assert len([*cache.find(None, np.array(ids[:-5], dtype=np.int32)).path()]) <= 10
        assert sum(counts) == len(ids[:-5]) - 1, "the last token was sampled, but never read"
        counts.clear()
        asked = request([*ids[:300], 7, 7], max_tokens=1)
        got = await engine.generate(asked)
        assert sum(counts) == 2
        assert_exact(model, asked, got)

    run(LocalEngine(model, None), scenario)


async def first_token(engine, asked):
    async for _ in engine.stream(asked):
        return


@pytest.mark.whole
def test_what_is_sampled_beside_a_prompt_that_begins_alike_is_not_kept_below_it(model):
    """The other prompt holds what this completion samples, and is not computed yet when it ends."""
    asked = request(prompt(1, 40), max_tokens=12, temperature=0.0)
    sampled = run(LocalEngine(model, None), lambda engine: engine.generate(asked)).token_ids.tolist()

    async def scenario(engine):
        first = asyncio.ensure_future(engine.generate(asked))
        while len(engine.scheduler.running) < 1 or len(engine.scheduler.running[0].token_ids) < 6:
            await asyncio.sleep(0)
        in_front = request(prompt(7, 300), max_tokens=1)
        alike = request([*prompt(1, 40), *sampled[:8], *prompt(9, 400)], max_tokens=1)
        others = [asyncio.ensure_future(engine.generate(r)) for r in (in_front, alike)]
        await first
        assert not others[1].done()
        again = request([*prompt(1, 40), *sampled[:-1]], max_tokens=3, temperature=0.0)
        got = await engine.generate(again)
        assert not others[1].done()
        assert_exact(model, again, got)
        assert_exact(model, alike, await others[1])

    run(LocalEngine(model, None, prefill_tokens=4), scenario)


def test_a_request_for_which_memory_runs_out_is_told_so_and_the_next_one_is_served(model, monkeypatch):
    engine = LocalEngine(model, None)
    add = engine.scheduler.cache.add

    def no_memory(*args):
        monkeypatch.setattr(engine.scheduler.cache, "add", add)
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(engine.scheduler.cache, "add", no_memory)

    async def scenario(engine):
        with pytest.raises(torch.OutOfMemoryError):
            await asyncio.wait_for(engine.generate(request(prompt(1, 20))), timeout=PATIENCE)
        asked = request(prompt(1, 20))
        assert_exact(model, asked, await engine.generate(asked))

    run(engine, scenario)


def test_a_late_request_has_its_first_token_within_two_steps(model):
    counts = counted(model)

    async def scenario(engine):
        early = [
            asyncio.create_task(engine.generate(request(prompt(n, 20), max_tokens=60))) for n in range(4)
        ]
        while len(counts) < 9:
            await asyncio.sleep(0)
        begun = len(counts)
        await first_token(engine, request(prompt(77, 100)))
        assert len(counts) - begun <= 2
        assert not any(task.done() for task in early)
        await asyncio.gather(*early)

    run(LocalEngine(model, None), scenario)


def test_a_long_prompt_holds_up_neither_those_who_decode_nor_a_short_one(model):
    counts = counted(model)

    async def scenario(engine):
        early = asyncio.create_task(engine.generate(request(prompt(1, 4), max_tokens=40)))
        while len(counts) < 2:
            await asyncio.sleep(0)
        long = asyncio.create_task(engine.generate(request(prompt(2, 400), max_tokens=1)))
        short = request(prompt(3, 6), max_tokens=1)
        while len(counts) < 4:
            await asyncio.sleep(0)
        begun = len(counts)
        await engine.generate(short)
        assert len(counts) - begun <= 2 and not long.done()
        got = [await long, await early]
        assert max(counts) <= 16 + 2, "no pass takes more of the prompts than it may"
        assert len(counts) == 40, "the first one got a token in every pass"
        assert_exact(model, request(prompt(2, 400)), got[0])

    run(LocalEngine(model, None, prefill_tokens=16), scenario)


def test_no_cache_survives_a_publish(model):
    counts = counted(model)

    async def scenario(engine):
        asked = request(prompt(0, 50), max_tokens=1)
        await engine.generate(asked)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        engine.version += 1
        counts.clear()
        got = await engine.generate(asked)
        assert sum(counts) == 50 and engine.scheduler.cache.tokens >= 50
        assert_exact(model, asked, got)
        engine.version = engine.version  # restored weights may have the version of those before
        assert engine.scheduler.cache.tokens == 0

    run(LocalEngine(model, None), scenario)


def test_requests_in_flight_go_on_under_published_weights(model):
    counts = counted(model)
    before = make_model()

    async def scenario(engine):
        asked = [request(prompt(n // 2, 80), seed=n, max_tokens=30) for n in range(6)]
        tasks = [asyncio.create_task(engine.generate(one)) for one in asked]
        while len(counts) < 11:
            await asyncio.sleep(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        engine.version += 1
        for one, got in zip(asked, await asyncio.gather(*tasks), strict=True):
            assert got.weight_versions.tolist() == [0] * 11 + [1] * 19
            ids = [*one.prompt_ids.tolist(), *got.token_ids.tolist()]
            targets = torch.tensor(got.token_ids, dtype=torch.long)[:, None]
            old, new = (logprobs_of(m, ids)[79:].gather(1, targets)[:, 0].numpy() for m in (before, model))
            np.testing.assert_allclose(got.logprobs[:11], old[:11], atol=1e-4)
            np.testing.assert_allclose(got.logprobs[11:], new[11:], atol=1e-4)
            assert np.abs(old - new).max() > 1e-2

    run(LocalEngine(model, None), scenario)


@pytest.mark.whole
@pytest.mark.parametrize("kib", fast({0, 1}, [1, 100, 1024]))
def test_little_memory_changes_what_is_computed_but_not_what_is_sampled(model, kib):
    """A token takes 256 bytes here. What does not fit is evicted, waits, or is computed anew."""

    async def scenario(engine):
        answers = []
        asked = [request(prompt(n // 2, 40), seed=n, max_tokens=10 + 5 * n) for n in range(6)]
        for turn in range(2):
            got = await all_of(engine, asked)
            for one, answer in zip(asked, got, strict=True):
                assert_exact(model, one, answer)
            answers += [answer.token_ids.tolist() for answer in got]
            asked = [
                request([*one.prompt_ids, *answer.token_ids, *prompt(turn, 5)], seed=n)
                for n, (one, answer) in enumerate(zip(asked, got, strict=True))
            ]
        return answers

    def watch(*_):
        if len(bounded.scheduler.running) > 1:
            held.append(bounded.scheduler.held_tokens)

    held = []
    bounded = LocalEngine(model, None)
    bounded.scheduler.max_tokens = kib * 1024 // 256
    hook = model.get_input_embeddings().register_forward_hook(watch)
    answers = run(bounded, scenario)
    hook.remove()
    assert answers == run(LocalEngine(model, None), scenario)
    assert max(held, default=0) <= bounded.scheduler.max_tokens
    assert (kib > 1) == bool(held), "one completion runs in any case"


def test_requests_that_end_differently_share_a_batch(model):
    class Letters:
        """Token n is the n-th letter from "a"."""

        def decode(self, ids, **_):
            return "".join(chr(ord("a") + i % 26) for i in ids)

    async def scenario(engine):
        ids = prompt(0, 10)
        free = (await engine.generate(request(ids, max_tokens=30))).token_ids.tolist()
        text = Letters().decode(free)
        got = await all_of(
            engine,
            [
                request(ids, max_tokens=30, stop=(text[3:6],)),
                request(ids, max_tokens=30, stop_token_ids=(free[9],)),
                request(ids, max_tokens=7),
                request(ids, max_tokens=30),
            ],
        )
        ends = [text.index(text[3:6]) + 3, free.index(free[9]) + 1, 7, 30]
        assert [g.token_ids.tolist() for g in got] == [free[:end] for end in ends]
        assert [g.finish_reason for g in got] == ["stop", "stop", "length", "length"]

    run(LocalEngine(model, Letters()), scenario)


@pytest.mark.whole
def test_adapters_share_neither_a_pass_nor_a_cache(model):
    adapters = Adapters(model)
    adapters.add("loud", LoraSettings(rank=4), seed=0)
    for weights in adapters.parameters("loud"):
        torch.nn.init.normal_(weights, std=0.3)
    counts = counted(model)

    async def scenario(engine):
        ids = prompt(0, 30)
        asked = [request(ids, adapter, seed=n) for n in range(3) for adapter in (None, "loud")]
        got = await all_of(engine, asked)
        assert counts[:2] == [30, 30] and sum(counts) == 2 * (30 + 3 * 11)
        for one, answer in zip(asked, got, strict=True):
            adapters.activate(one.adapter)
            assert_exact(model, one, answer)
            full = np.concatenate([one.prompt_ids, answer.token_ids])
            scored = await engine.score(full, adapter=one.adapter)
            np.testing.assert_allclose(answer.logprobs, scored[30:], atol=1e-4)
        assert got[0].logprobs[0] != got[1].logprobs[0]

    run(LocalEngine(model, None, adapters=adapters), scenario)


def test_an_unknown_adapter_is_a_value_error(model):
    async def scenario(engine):
        with pytest.raises(ValueError, match="no adapter 'critic'"):
            await engine.generate(request([1, 2], "critic"))
        with pytest.raises(ValueError, match="no adapter 'critic'"):
            await engine.score(np.array([1, 2]), adapter="critic")

    run(LocalEngine(model, None), scenario)


@pytest.mark.whole
def test_a_deterministic_engine_repeats_a_burst_bit_for_bit_whatever_came_before(model):
    def bits(generations):
        return [(g.token_ids.tobytes(), g.logprobs.tobytes()) for g in generations]

    def burst():
        return [request([*prompt(0, 30), *prompt(n // 4, 7)], seed=n, max_tokens=9 + n) for n in range(12)]

    async def after_others(engine):
        await all_of(engine, [request([*prompt(0, 30), n], seed=n) for n in range(5)])
        return bits(await all_of(engine, burst()))

    async def at_first(engine):
        return bits(await all_of(engine, burst()))

    ones = [run(LocalEngine(model, None, deterministic=True), s) for s in (after_others, at_first)]
    assert ones[0] == ones[1]


def test_a_long_text_is_scored_in_pieces(model, monkeypatch):
    async def scenario(engine):
        ids = np.array(prompt(0, 200), dtype=np.int32)
        whole = await engine.score(ids, temperature=0.7)
        monkeypatch.setattr(engine_module, "SCORED_TOGETHER", 33)
        pieces = await engine.score(ids, temperature=0.7)
        np.testing.assert_allclose(pieces, whole, atol=1e-5)
        targets = torch.tensor(ids[1:], dtype=torch.long)[:, None]
        np.testing.assert_allclose(
            whole[1:], logprobs_of(model, ids, 0.7).gather(1, targets)[:, 0], atol=1e-5
        )

    run(LocalEngine(model, None), scenario)


def test_a_model_whose_layers_do_not_tell_their_window_is_sampled_in_rows(caplog):
    model = make_model(sliding)
    model.model.layers[1].self_attn.sliding_window = None
    engine = LocalEngine(model, None)
    assert "'qwen2' keeps a row for each context, which is slower: packed, its attention has" in caplog.text

    async def scenario(engine):
        asked = [request(prompt(0, length), seed=length) for length in (4, 30, 5)]
        for one, got in zip(asked, await all_of(engine, asked), strict=True):
            assert_exact(model, one, got)

    run(engine, scenario)


def test_a_model_with_layers_that_its_configuration_does_not_know_is_refused():
    model = make_model(Qwen2Config)
    model.config.layer_types = ["linear_attention"] * model.config.num_hidden_layers
    with pytest.raises(AjetError, match="'qwen2': the engine of the local backbone cannot compute it"):
        LocalEngine(model, None)
