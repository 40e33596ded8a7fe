"""Mixtures of experts, windows and sinks: sampled and trained as one plain pass in float64 says."""

import asyncio
import copy
import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from ajet.types import GenerateRequest, Sampling  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.memory import shape_of_model  # noqa: E402
from ajet_local.plan import MicroBatch  # noqa: E402
from ajet_local.trees import enable_trees  # noqa: E402
from ajet_trees.models import ComputedTree  # noqa: E402
from tests.patience import PATIENCE  # noqa: E402
from tests.plugins.local.test_trees import pack, random_forest  # noqa: E402
from tests.tiers import fast  # noqa: E402

VOCABULARY, WINDOW = 60, 16
EXPERTS = {
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "gpt_oss": {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
FAST = fast({0, 3}, list(EXPERTS))
"""Experts alone, and experts with windows and sinks."""


def tiny(kind):
    """A random model of three layers, wide enough that tokens differ; with experts, each token goes to two of eight."""
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **shape, **EXPERTS[kind])
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def in_float64(model):
    """A copy in float64, in which experts are computed one after the other: fused ones know no float64."""
    exact = copy.deepcopy(model).double()
    exact.set_experts_implementation("eager")
    return exact


def logprobs_of(model, ids):
    """float[T - 1]: the logprobs of all tokens but the first, by one plain pass."""
    tokens = torch.as_tensor(np.asarray(ids), dtype=torch.long)
    logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(1, tokens[1:, None])[:, 0]


@pytest.mark.whole
@pytest.mark.parametrize("kind", FAST)
def test_groups_forks_and_conversations_are_sampled_as_a_pass_in_float64_says(kind):
    model = tiny(kind)
    exact = in_float64(model)
    draw = np.random.default_rng(0)
    system = draw.integers(0, VOCABULARY, 70)

    def asked(start, length, seed, most=12):
        ids = np.concatenate([start, draw.integers(0, VOCABULARY, length)]).astype(np.int32)
        return GenerateRequest(ids, Sampling(max_tokens=most, seed=seed))

    async def conversations(engine):
        requests = [asked(system, length, seed) for length in (1, 9, 30) for seed in range(2)]
        requests = [requests[0], requests[0], *requests, asked([], 3, 1, 40)]
        for _ in range(2):
            answers = await asyncio.gather(*map(engine.generate, requests))
            whole = [
                np.concatenate([r.prompt_ids, a.token_ids]) for r, a in zip(requests, answers, strict=True)
            ]
            for ids, answer in zip(whole, answers, strict=True):
                expected = logprobs_of(exact, ids)[-len(answer.token_ids) :].detach()
                np.testing.assert_allclose(answer.logprobs, expected.numpy(), atol=1e-5)
            requests = [asked(ids[:-3], 5, 7) for ids in whole]

    async def main():
        engine = LocalEngine(model, None, prefill_tokens=50)
        await engine.start()
        try:
            await asyncio.wait_for(conversations(engine), timeout=PATIENCE)
        finally:
            await engine.close()

    asyncio.run(main())


@pytest.mark.whole
@pytest.mark.parametrize("form", ["rows", "trees"])
@pytest.mark.parametrize("kind", FAST)
def test_rows_and_trees_give_the_gradients_of_one_pass_for_each_sample(kind, form):
    model = in_float64(tiny(kind))
    if form == "trees":
        reason = enable_trees(model)
        assert reason == ("the model has layers of sliding_attention" if kind == "gpt_oss" else "")
        if reason:
            return
    samples = random_forest(0)
    system = np.random.default_rng(1).integers(0, VOCABULARY, 40).astype(np.int32)  # longer than the window
    samples = [following(system, sample) for sample in samples]
    together = MicroBatch(samples, ComputedTree(pack(samples)) if form == "trees" else None)

    def gradients(losses):
        model.zero_grad(set_to_none=True)
        for loss in losses:
            loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    tokens = together.tokens(model)
    found = gradients([(tokens.weights * tokens.advantages * tokens.new).sum()])
    naive = gradients(plain_loss(model, sample) for sample in samples)
    assert (found - naive).norm() <= 1e-6 * naive.norm()  # routers compute in float32


def following(start, sample):
    """The sample behind other tokens, at the temperature 1."""
    zeros = np.zeros(len(start))
    arrays = {
        name: np.concatenate([zeros.astype(array.dtype), array])
        for name in ("mask", "logprobs", "advantages", "weights")
        for array in [getattr(sample, name)]
    }
    return dataclasses.replace(
        sample, token_ids=np.concatenate([start, sample.token_ids]), spans=(), **arrays
    )


def plain_loss(model, sample):
    """The weighted logprobs of a sample's trained tokens."""
    new = logprobs_of(model, sample.token_ids)[sample.mask[1:]]
    weights = (sample.weights * sample.advantages)[sample.mask]
    return (torch.as_tensor(weights) * new).sum()


@pytest.mark.parametrize(("kind", "inner"), [("qwen3_moe", 2 * 16), ("olmoe", 2 * 48), ("gpt_oss", 2 * 48)])
def test_the_memory_of_a_token_is_that_of_the_experts_it_uses(kind, inner):
    assert shape_of_model(tiny(kind)).inner == inner
