"""What the engine vllm promises, beside vLLM's CPU build (`make test-vllm`)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from ajet.interfaces.progress import Silent
from ajet.testing.conformance import ENGINE_CHECKS, Subject, check_close
from ajet.types import AjetError, GenerateRequest, Sampling
from ajet_vllm.plugin import VLLMEnginePlugin

from .conftest import SPARE, START_SECONDS, vllm_processes

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm")

PROMPT = [30, 5, 6, 7] * 24
"""Three whole blocks of the KV cache."""


def request(ids=PROMPT, **sampling):
    return GenerateRequest(np.array(ids, dtype=np.int32), Sampling(**{"max_tokens": 12, **sampling}))


def reference(folder):
    """The model as transformers computes it, over the ids with a token."""
    import torch
    from transformers import AutoModelForCausalLM

    from ajet_trees.head import exclude

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    exclude(model, range(model.config.vocab_size - SPARE, model.config.vocab_size))
    return model


def logprobs_of(model, ids, temperature):
    import torch

    with torch.no_grad():
        tokens = torch.as_tensor(np.asarray(ids, dtype=np.int64))
        logprobs = torch.log_softmax(model(tokens[None]).logits[0, :-1] / temperature, dim=-1)
        return logprobs.gather(1, tokens[1:, None])[:, 0].numpy()


def greedy_of(model, ids, count):
    import torch

    ids = list(ids)
    for _ in range(count):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[-count:]


async def is_of(engine, folder, version):
    """The engine answers from a checkpoint's weights, and says so."""
    model = reference(folder)
    got = await engine.generate(request(temperature=0.0))
    assert got.token_ids.tolist() == greedy_of(model, PROMPT, 12)
    assert got.weight_versions.tolist() == [version] * 12
    ids = [*PROMPT, *got.token_ids.tolist()]
    for temperature in (1.0, 0.7):
        scored = await engine.score(np.array(ids, dtype=np.int32), temperature)
        np.testing.assert_allclose(scored[1:], logprobs_of(model, ids, temperature), atol=1e-4)
        sampled = await engine.generate(request(temperature=temperature, top_p=0.5, seed=3))
        whole = logprobs_of(model, [*PROMPT, *sampled.token_ids.tolist()], temperature)
        np.testing.assert_allclose(sampled.logprobs, whole[len(PROMPT) - 1 :], atol=1e-4)


@pytest.fixture
def reset(running, checkpoints):
    """Afterwards the engine has its first weights again."""
    yield
    running(lambda engine: engine.load_weights(checkpoints[0], version=0))


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
def test_it_conforms(running, check):
    async def scenario(engine):
        async def under_way():
            return engine._llm.output_processor.get_num_unfinished_requests()

        await check(Subject(engine, under_way=under_way))

    running(scenario)


def test_ids_without_a_token_are_never_sampled(running, started):
    tokens = len(started[0].tokenizer)

    async def scenario(engine):
        asked = [request(temperature=2.0, seed=seed, max_tokens=32) for seed in range(8)]
        answers = await asyncio.gather(*map(engine.generate, asked))
        assert all(0 <= int(got.token_ids.max()) < tokens for got in answers)

    running(scenario)


def test_its_numbers_are_those_of_transformers(running, checkpoints):
    running(lambda engine: is_of(engine, checkpoints[0], engine.version))


def test_new_weights_are_loaded_into_the_running_engine(running, reset, checkpoints):
    first, second = checkpoints

    async def scenario(engine):
        await is_of(engine, first, 0)
        assert await engine.load_weights(second) == engine.version == 1
        await is_of(engine, second, 1)
        # As tensors, the tied head among them, and with a version of the caller's.
        assert await engine.load_weights(reference(first).state_dict(), version=7) == 7
        await is_of(engine, first, 7)

    running(scenario)


def test_every_call_is_sampled_under_one_version_of_the_weights(running, reset, checkpoints):
    async def scenario(engine):
        stream = engine.stream(request(temperature=0.0, max_tokens=100))
        begun = await anext(stream)
        loading = asyncio.create_task(engine.load_weights(checkpoints[1]))
        others = []
        while not loading.done() and len(others) < 1000:
            others.append(asyncio.create_task(engine.generate(request(temperature=0.0))))
            await asyncio.sleep(0.002)
        assert await loading == 1
        others.append(asyncio.create_task(engine.generate(request(temperature=0.0))))
        wanted = [greedy_of(reference(folder), PROMPT, 12) for folder in checkpoints]
        versions = []
        for got in await asyncio.gather(*others):
            versions.append(int(got.weight_versions[0]))
            assert got.weight_versions.tolist() == [versions[-1]] * 12
            assert got.token_ids.tolist() == wanted[versions[-1]]
        assert versions == sorted(versions) and versions[-1] == 1
        whole = [begun, *[delta async for delta in stream]]
        ids = np.concatenate([delta.token_ids for delta in whole]).tolist()
        assert ids == greedy_of(reference(checkpoints[0]), PROMPT, 100)
        assert {v for delta in whole for v in delta.weight_versions.tolist()} == {0}

    running(scenario)


def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(running, checkpoints, tmp_path):
    tensors = dict(reference(checkpoints[1]).state_dict())
    name = "model.layers.1.mlp.up_proj.weight"

    async def scenario(engine):
        lacking = {key: tensor for key, tensor in tensors.items() if key != name}
        with pytest.raises(AjetError, match=f"{name} is missing there and of shape"):
            await engine.load_weights(lacking)
        with pytest.raises(AjetError, match=rf"{name} is of shape \[3, 64\] there"):
            await engine.load_weights(tensors | {name: tensors[name][:3]})
        with pytest.raises(AjetError, match=r"no \*\.safetensors there"):
            await engine.load_weights(tmp_path)
        await is_of(engine, checkpoints[0], 0)

    running(scenario)


def test_as_many_requests_are_sampled_together_as_the_job_plans(started):
    from ajet_local.backbone import VLLM_REQUESTS

    assert started[0].config.scheduler_config.max_num_seqs == VLLM_REQUESTS


def test_jobs_alike_find_what_vllm_has_compiled_for_the_first(checkpoints):
    """Memory, seed and a few requests more make no difference to vLLM's cache of compiled graphs."""

    def built(seed, requests, cache, **options):
        plugin = VLLMEnginePlugin(options=options)
        sizes = dict(dtype="float32", cache=cache, context=128, requests=requests)
        return plugin.build_shared(str(checkpoints[0]), seed, Silent(), **sizes).config

    first, second = built(0, 40, 1 << 26), built(1, 64, 1 << 27)
    assert first.compute_hash() == second.compute_hash()
    assert second.compilation_config.max_cudagraph_capture_size == 128
    own = built(0, 64, 1 << 26, max_cudagraph_capture_size=8)
    assert own.compilation_config.max_cudagraph_capture_size == 8


def test_vllm_keeps_keys_and_values_in_8_bits_if_asked(checkpoints):
    plugin = VLLMEnginePlugin(dtype="float32", kv_cache_gib=0.1, kv_cache_dtype="fp8")
    assert plugin.build(str(checkpoints[0]), 0, Silent()).config.cache_config.cache_dtype == "fp8"


def test_a_temperature_that_vllm_would_replace_is_refused(running):
    async def scenario(engine):
        for temperature in (0.005, 2.5):
            with pytest.raises(ValueError, match="temperature"):
                await engine.generate(request(temperature=temperature))

    running(scenario)


def test_more_seeded_prompts_than_one_pass_computes_are_answered(running, checkpoints):
    async def scenario(engine):
        asked = [request([30 + n, *PROMPT[1:]], seed=n, max_tokens=4) for n in range(40)]  # 3,840 tokens
        answers = await asyncio.gather(*map(engine.generate, asked))
        assert [len(got.token_ids) for got in answers] == [4] * 40

    running(scenario)


def test_it_waits_while_it_sleeps_and_then_has_the_new_weights(running, reset, checkpoints):
    first, second = (reference(folder) for folder in checkpoints)

    async def scenario(engine):
        under_way = asyncio.create_task(engine.generate(request(temperature=0.0, max_tokens=50)))
        await asyncio.sleep(0)
        await engine.sleep()
        assert under_way.done(), "calls in progress end first"
        assert under_way.result().token_ids.tolist() == greedy_of(first, PROMPT, 50)
        waiting = asyncio.create_task(engine.generate(request(temperature=0.0)))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await engine.load_weights(second.state_dict(), 5)
        got = await waiting
        assert got.weight_versions.tolist() == [5] * 12
        assert got.token_ids.tolist() == greedy_of(second, PROMPT, 12)

    running(scenario)


def test_keeping_what_is_no_weight_changes_no_answer(running, reset, checkpoints):
    async def scenario(engine):
        for method in ("ajet_keep_constants", "ajet_restore_constants"):
            await engine._running().collective_rpc(method)
        got = await engine.generate(request(temperature=0.0))
        assert got.token_ids.tolist() == greedy_of(reference(checkpoints[0]), PROMPT, 12)

    running(scenario)


@pytest.mark.whole
def test_what_has_begun_to_start_ends_though_nobody_waits_for_it(started, checkpoints):
    def wait(done):
        deadline = time.monotonic() + START_SECONDS
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    before = set(vllm_processes())
    plugin = VLLMEnginePlugin(dtype="float32", kv_cache_gib=0.1, options={"enforce_eager": True})
    end = plugin.build(str(checkpoints[0]), 0, Silent()).begin()
    wait(lambda: set(vllm_processes()) > before)
    end()
    wait(lambda: set(vllm_processes()) == before)


def test_without_a_trainer_it_has_no_adapters(running):
    async def scenario(engine):
        with pytest.raises(ValueError, match="adapter 'solver': this engine has only those of a trainer"):
            await engine.generate(replace(request(), adapter="solver"))

    running(scenario)


def test_closing_it_fails_what_is_open(running):  # the last test of the engine
    running(lambda engine: check_close(Subject(engine)))
