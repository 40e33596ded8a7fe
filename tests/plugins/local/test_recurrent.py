"""Models with recurrent layers: sampled and trained as one plain pass in float64 says."""

import asyncio
import copy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from ajet.learning.settings import LoraSettings  # noqa: E402
from ajet.types import AjetError, ConfigError, GenerateRequest, Image, Sampling  # noqa: E402
from ajet_local.engine import LocalEngine  # noqa: E402
from ajet_local.memory import shape_of_config  # noqa: E402
from ajet_local.modeling import checkpointing, enable_checkpointing  # noqa: E402
from ajet_local.one_pass import check_rows  # noqa: E402
from ajet_local.row_scheduler import RowScheduler  # noqa: E402
from ajet_local.rows import trained_tokens  # noqa: E402
from ajet_lora.adapters import Adapters  # noqa: E402
from ajet_trees.memory import Training  # noqa: E402
from tests.patience import PATIENCE  # noqa: E402
from tests.plugins.local.test_trainer import make_sample  # noqa: E402
from tests.tiers import fast  # noqa: E402

pytestmark = pytest.mark.whole

VOCABULARY = 97
DELTA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
SHAPES = {
    "qwen3_5_text": DELTA,
    "qwen3_next": {
        **DELTA,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "olmo_hybrid": DELTA | {"num_key_value_heads": 4},
    "granitemoehybrid": {
        **MAMBA,
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 0,
        "shared_intermediate_size": 48,
    },
    "nemotron_h": {
        "layers_block_type": ["mamba", "mlp", "attention", "mamba"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 16,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
    "falcon_h1": {**MAMBA, "mamba_n_heads": 4, "mamba_d_ssm": 32},
}
FAST = fast([list(SHAPES).index(kind) for kind in ("qwen3_5_text", "nemotron_h", "lfm2")], list(SHAPES))
"""One of each kind of layers: delta rules, state spaces, convolutions."""
TOLERANCE = dict.fromkeys(SHAPES, 1e-4) | {"lfm2": 1e-5}
"""States of recurrences are float32, also in float64 models; convolutions alone are exact."""


def tiny(kind, **changes):
    """A random model of three or four layers, wide enough that tokens differ."""
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **shape | SHAPES.get(kind, {}) | changes)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def prompt(seed, length):
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).astype(np.int32)


def request(ids, adapter=None, **sampling):
    ids = np.asarray(ids, np.int32)
    return GenerateRequest(ids, Sampling(**{"max_tokens": 12, "seed": 0, **sampling}), adapter=adapter)


def run(engine, scenario):
    async def main():
        await engine.start()
        try:
            return await asyncio.wait_for(scenario(engine), timeout=PATIENCE)
        finally:
            await engine.close()

    return asyncio.run(main())


async def all_of(engine, requests):
    return await asyncio.gather(*map(engine.generate, requests))


def counted(model):
    counts = []
    model.get_input_embeddings().register_forward_hook(lambda _, args, out: counts.append(args[0].numel()))
    return counts


class Exact:
    """One plain pass of the model in float64; experts are computed one after the other, as fused ones know no float64."""

    def __init__(self, model):
        self.model = copy.deepcopy(model).double()
        if hasattr(model.config, "num_experts"):
            self.model.set_experts_implementation("eager")

    @torch.no_grad()
    def logprobs(self, ids):
        """float64[T - 1]: of all tokens but the first."""
        tokens = torch.as_tensor(np.asarray(ids), dtype=torch.long)
        logits = self.model(input_ids=tokens[None], use_cache=False).logits[0, :-1]
        return torch.log_softmax(logits.double(), -1).gather(1, tokens[1:, None])[:, 0].numpy()

    def check(self, asked, got, tolerance):
        ids = [*asked.prompt_ids, *got.token_ids]
        expected = self.logprobs(ids)[len(asked.prompt_ids) - 1 :]
        np.testing.assert_allclose(got.logprobs, expected, atol=tolerance)


@pytest.mark.parametrize("kind", FAST)
def test_groups_forks_and_conversations_are_sampled_as_a_pass_in_float64_says(kind):
    """Prompts of mixed lengths with a common beginning, several samples of each, three turns; in pieces that end inside chunks."""
    engine = LocalEngine(model := tiny(kind), None, prefill_tokens=100)
    exact = Exact(model)
    counts = counted(model)
    system = prompt(0, 90)

    async def scenario(engine):
        asked = [
            request([*system, *prompt(1 + group, length)], seed=member, max_tokens=6 + 3 * member)
            for group, length in enumerate((1, 7, 40))
            for member in range(2)
        ]
        asked.append(request(prompt(9, 3), max_tokens=30))
        for turn in range(3):
            answers = await all_of(engine, asked)
            # The system prompt is computed for the first two groups, the others continue the second.
            if turn == 0:
                assert sum(counts) - sum(len(a.token_ids) - 1 for a in answers) == 2 * 90 + 1 + 7 + 40 + 3
            for one, answer in zip(asked, answers, strict=True):
                exact.check(one, answer, TOLERANCE[kind])
            asked = [
                request([*one.prompt_ids, *answer.token_ids, *prompt(turn, 5)], seed=turn)
                for one, answer in zip(asked, answers, strict=True)
            ]
            counts.clear()
        before = asked[0].prompt_ids[:-6]
        await engine.generate(request(before, max_tokens=1))
        assert sum(counts) < 20, "a conversation goes on where its last turn ended"

    run(engine, scenario)
    assert isinstance(engine.scheduler, RowScheduler)


@pytest.mark.parametrize("kind", FAST)
def test_gradients_of_rows_are_those_of_each_row_alone(kind):
    model = tiny(kind)
    check_rows(model)
    first = prompt(0, 12)
    samples = [
        make_sample([*first, *prompt(seed, length)], start=12 + seed, advantage=1.0 - seed)
        for seed, length in enumerate((9, 30, 17))
    ]

    def gradients(groups):
        model.zero_grad()
        for group in groups:
            tokens = trained_tokens(model, group)
            (tokens.weights * -tokens.new * tokens.advantages).sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    def naive():
        model.zero_grad()
        for s in samples:
            ids = torch.as_tensor(s.token_ids, dtype=torch.long)
            logprobs = model(input_ids=ids[None], use_cache=False).logits[0, :-1].log_softmax(-1)
            of_tokens = logprobs.gather(1, ids[1:, None])[:, 0]
            trained = torch.as_tensor(s.mask[1:])
            weights, advantages = torch.as_tensor(s.weights[1:]), torch.as_tensor(s.advantages[1:])
            (-of_tokens * weights * advantages)[trained].sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected = naive()
    assert len(expected) > 10
    together, alone = gradients([samples]), gradients([[s] for s in samples])
    enable_checkpointing(model)
    with checkpointing(model):
        recomputed = gradients([samples])
    for found in (together, alone, recomputed):
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            largest = gradient.abs().max().item()
            np.testing.assert_allclose(found[name], gradient, atol=1e-4 * max(largest, 1e-2), err_msg=name)


@pytest.mark.parametrize("mib", fast({1}, [0, 0.05, 0.3]))
def test_little_memory_changes_what_is_computed_but_not_what_is_sampled(mib):
    model = tiny("qwen3_5_text")
    exact = Exact(model)

    async def scenario(engine):
        asked = [request(prompt(n // 2, 40), seed=n, max_tokens=10 + 5 * n) for n in range(6)]
        for turn in range(2):
            for one, answer in zip(asked, answers := await all_of(engine, asked), strict=True):
                exact.check(one, answer, 1e-4)
            asked = [
                request([*one.prompt_ids, *answer.token_ids, *prompt(turn, 5)], seed=n)
                for n, (one, answer) in enumerate(zip(asked, answers, strict=True))
            ]

    def watch(*_):
        if len(engine.scheduler.running) > 1:
            held.append(engine.scheduler.held_bytes)

    held = []
    engine = LocalEngine(model, None)
    engine.scheduler.max_bytes = int(mib * 2**20)
    model.get_input_embeddings().register_forward_hook(watch)
    run(engine, scenario)
    assert max(held, default=0) <= engine.scheduler.max_bytes
    assert (mib > 0) == bool(held), "one completion runs in any case"


def test_requests_in_flight_go_on_under_published_weights():
    model = tiny("granitemoehybrid")
    old = Exact(model)
    engine = LocalEngine(model, None)
    counts = counted(model)

    async def scenario(engine):
        asked = [request(prompt(n // 2, 80), seed=n, max_tokens=30) for n in range(6)]
        tasks = [asyncio.create_task(engine.generate(one)) for one in asked]
        while len(counts) < 14:
            await asyncio.sleep(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        engine.version += 1
        new = Exact(model)
        for one, got in zip(asked, await asyncio.gather(*tasks), strict=True):
            first = int(np.sum(got.weight_versions == 0))
            assert 0 < first < 30
            ids = [*one.prompt_ids, *got.token_ids]
            before, after = (exact.logprobs(ids)[79:] for exact in (old, new))
            np.testing.assert_allclose(got.logprobs[:first], before[:first], atol=1e-4)
            np.testing.assert_allclose(got.logprobs[first:], after[first:], atol=1e-4)
            assert np.abs(before - after).max() > 1e-2

    run(engine, scenario)


def test_adapters_share_neither_a_batch_nor_a_snapshot():
    model = tiny("lfm2")
    adapters = Adapters(model)
    adapters.add("loud", LoraSettings(rank=4), seed=0)
    for weights in adapters.parameters("loud"):
        torch.nn.init.normal_(weights, std=0.3)

    async def scenario(engine):
        asked = [request(prompt(0, 70), adapter, seed=n) for n in range(3) for adapter in (None, "loud")]
        for one, got in zip(asked, await all_of(engine, asked), strict=True):
            ids = np.concatenate([one.prompt_ids, got.token_ids])
            scored = await engine.score(ids, adapter=one.adapter)
            np.testing.assert_allclose(got.logprobs, scored[70:], atol=1e-5)

    run(LocalEngine(model, None, adapters=adapters), scenario)


def test_equal_prompts_are_computed_once_also_where_a_completion_ended():
    engine = LocalEngine(model := tiny("lfm2"), None)
    exact, counts = Exact(model), counted(model)

    async def scenario(engine):
        asked = request(prompt(0, 40), max_tokens=4)
        got = await engine.generate(asked)
        ended = [*asked.prompt_ids, *got.token_ids[:-1]]
        counts.clear()
        await engine.generate(request(asked.prompt_ids, seed=1, max_tokens=1))
        assert counts == []
        # The logits of a completion's last token are not known, those of a prompt's are.
        for computed in (3, 0):
            counts.clear()
            exact.check(one := request(ended, max_tokens=1), await engine.generate(one), 1e-5)
            assert sum(counts) == computed

    run(engine, scenario)


def test_a_cancelled_request_leaves_and_a_failure_ends_only_those_that_it_met():
    engine = LocalEngine(model := tiny("lfm2"), None)
    exact, counts = Exact(model), counted(model)

    async def scenario(engine):
        asked = [request(prompt(n, 9), seed=n, max_tokens=40) for n in range(3)]
        tasks = [asyncio.create_task(engine.generate(one)) for one in asked]
        while len(counts) < 9:
            await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for n in (0, 2):
            exact.check(asked[n], tasks[n].result(), 1e-5)
        forward, model.forward = model.forward, None
        with pytest.raises(TypeError):
            await engine.generate(asked[0])
        model.forward = forward
        scheduler = engine.scheduler
        scheduler._bytes = None  # what comes before the first pass fails
        with pytest.raises(TypeError):
            await engine.generate(asked[0])
        del scheduler._bytes
        exact.check(asked[0], await engine.generate(asked[0]), 1e-5)

    run(engine, scenario)


def test_a_long_prompt_holds_up_neither_those_who_decode_nor_a_short_one():
    engine = LocalEngine(model := tiny("lfm2"), None, prefill_tokens=16)
    counts = counted(model)

    async def scenario(engine):
        early = asyncio.create_task(engine.generate(request(prompt(1, 4), max_tokens=40)))
        while len(counts) < 2:
            await asyncio.sleep(0)
        long = asyncio.create_task(engine.generate(request(prompt(2, 300), max_tokens=1)))
        while len(counts) < 6:
            await asyncio.sleep(0)
        await engine.generate(request(prompt(3, 6), max_tokens=1))
        assert not long.done() and not early.done()
        await asyncio.gather(long, early)
        assert max(counts) <= 8

    run(engine, scenario)


@pytest.mark.parametrize("kind", fast({1}, ["qwen3_5_text", "nemotron_h"]))
def test_a_deterministic_engine_repeats_a_burst_bit_for_bit_whatever_came_before(kind):
    def bits(generations):
        return [(g.token_ids.tobytes(), g.logprobs.tobytes()) for g in generations]

    def burst():
        return [request([*prompt(0, 80), *prompt(n // 4, 7)], seed=n, max_tokens=9 + n) for n in range(12)]

    async def after_others(engine):
        await all_of(engine, [request([*prompt(0, 80), n], seed=n) for n in range(5)])
        return bits(await all_of(engine, burst()))

    async def at_first(engine):
        return bits(await all_of(engine, burst()))

    model = tiny(kind)
    ones = [run(LocalEngine(model, None, deterministic=True), s) for s in (after_others, at_first)]
    assert ones[0] == ones[1]


# --------------------------------------------------------------------------- what is refused


def test_images_of_a_model_with_states_are_refused():
    image = Image("sha256:0", b"", "png", -1)

    async def scenario(engine):
        with pytest.raises(ValueError, match="takes no images for 'lfm2': send text"):
            await engine.generate(replace(request(prompt(0, 9)), images=(image,)))

    run(LocalEngine(tiny("lfm2"), None), scenario)


def test_a_model_of_recurrent_layers_alone_is_refused_in_one_line():
    shape = {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1}
    with pytest.raises(AjetError, match=r"'mamba2': the engine .* one plain pass does: .*\.") as refused:
        LocalEngine(tiny("mamba2", **shape), None)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_samples_or_trains_otherwise_than_one_pass_is_refused(dtype, monkeypatch):
    """As if a layer forgot its state between passes, or looked at the padding behind a row."""
    model = tiny("qwen3_5_text").to(dtype)
    layer = model.model.layers[0]
    plain = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x, **given: plain(x, **{**given, "past_key_values": None}))
    with pytest.raises(
        AjetError, match=r"'qwen3_5_text': the engine of the local backbone .* logprobs differ by"
    ):
        LocalEngine(model, None)
    monkeypatch.setattr(layer, "forward", lambda x, **given: plain(x.flip(1), **given).flip(1))
    with pytest.raises(
        AjetError, match=r"'qwen3_5_text': the trainer of the local backbone .* logprobs differ by"
    ):
        check_rows(model)


def test_nemotron_h_limits_its_time_steps_as_its_configuration_says_in_every_pass():
    """transformers 5.23 limits them from below over several tokens, but not over one: what is sampled would differ from what is
    trained."""
    engine = LocalEngine(model := tiny("nemotron_h"), None)
    mixers = [m for m in model.modules() if hasattr(m, "time_step_limit")]
    assert [m.time_step_limit for m in mixers] == [(0.0, float("inf"))] * 2
    for mixer in mixers:
        torch.nn.init.constant_(mixer.dt_bias, -12.0)  # steps far below the limit

    async def scenario(engine):
        asked = request(prompt(0, 9), max_tokens=100)
        Exact(model).check(asked, await engine.generate(asked), 1e-4)

    run(engine, scenario)
    with pytest.raises(AjetError, match=r"'nemotron_h': .* limited to \(0.01, inf\)"):
        LocalEngine(tiny("nemotron_h", time_step_limit=(0.01, float("inf"))), None)


# --------------------------------------------------------------------------- memory


@pytest.mark.parametrize("kind", FAST)
def test_the_shape_of_a_model_says_what_a_context_takes(kind):
    model = tiny(kind)
    engine = LocalEngine(model, None)
    shape = shape_of_config(model.config)

    async def scenario(engine):
        await engine.generate(request(prompt(0, 50), max_tokens=1))
        (snapshot,) = engine.scheduler.snapshots
        assert snapshot.row.bytes == shape.held(50, 4)

    run(engine, scenario)
    saved = []

    def note(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(input_ids=torch.zeros(1, 512, dtype=torch.long), use_cache=False, logits_to_keep=1)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    measured = sum(size for at, size in sizes.items() if at not in weights)
    ratio = Training(shape=shape, number=4).layer * shape.layers * 512 / measured
    assert 0.9 <= ratio <= 1.7


def test_layers_that_peft_does_not_adapt_are_refused_with_the_names_of_the_others():
    adapters = Adapters(tiny("nemotron_h"))
    with pytest.raises(
        ConfigError, match=r"targets\.solver\.lora\.modules: .*'out_proj'.* others .*: .*in_proj"
    ):
        adapters.add("solver", LoraSettings(rank=2), 0)
    adapters = Adapters(tiny("nemotron_h"))
    adapters.add("solver", LoraSettings(rank=2, modules=["in_proj", "q_proj"]), 0)
    assert adapters.names == ("solver",)
