"""Logprobs without the logits of all tokens: the values and gradients of the model's own logits, whatever it does to them."""

import copy
import logging

import pytest

torch = pytest.importorskip("torch")

from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    CohereConfig,
    FalconH1Config,
    Gemma2Config,
    GraniteConfig,
    HyperCLOVAXConfig,
    PhiConfig,
    Qwen3Config,
    RecurrentGemmaConfig,
)

from ajet_trees import head as heads  # noqa: E402
from ajet_trees.head import exclude, fuse_head, head_of, predict  # noqa: E402
from tests.tiers import thinned  # noqa: E402

SIZES = dict(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    initializer_range=0.2,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)
MODELS = {
    "Qwen3": (Qwen3Config, dict(head_dim=8), (1.0, None)),
    "Qwen3, tied": (Qwen3Config, dict(head_dim=8, tie_word_embeddings=True), (1.0, None)),
    "Phi, bias": (PhiConfig, {}, (1.0, None)),
    "Gemma 2, cap": (Gemma2Config, dict(head_dim=8, final_logit_softcapping=5.0), (1.0, 5.0)),
    "Granite, divided": (GraniteConfig, dict(logits_scaling=3.0), (1 / 3, None)),
    "Cohere, multiplied": (CohereConfig, dict(logit_scale=0.3), (0.3, None)),
    "HyperCLOVA X, multiplied": (HyperCLOVAXConfig, dict(logits_scaling=3.0), (3.0, None)),
    "Falcon-H1, multiplied": (
        FalconH1Config,
        dict(lm_head_multiplier=3.0, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8),
        (3.0, None),
    ),
    "RecurrentGemma, cap": (RecurrentGemmaConfig, dict(logits_soft_cap=5.0, lru_width=32), (1.0, 5.0)),
}
TOKENS = 23


def chunks_of(monkeypatch, tokens, number=4, fused_number=4):
    """Let logits exist for so many tokens at once, and be summed in several blocks where kernels are to be compiled."""
    monkeypatch.setattr(heads, "LOGITS", tokens * 97 * number)
    monkeypatch.setattr(heads, "FUSED_LOGITS", tokens * 97 * fused_number)
    monkeypatch.setattr(heads, "BLOCK", 16)


def uncompiled(kernel):
    """What torch compiles where layers are fused."""
    return kernel


def build(name, dtype=torch.float32):
    config, changed, adjusted = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config(**SIZES | changed), dtype=dtype).eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases begin at 0
                parameter.data += 0.1 * torch.randn_like(parameter)
    return model, adjusted


def asked(model):
    """A row, the tokens at its positions, temperatures, and gradients of a loss for their logprobs and entropies."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 97, (1, TOKENS), generator=draw)
    tokens = torch.randint(0, 97, (TOKENS,), generator=draw)
    temperatures = 0.5 + torch.rand(TOKENS, generator=draw)
    factors = torch.randn(2, TOKENS, generator=draw, dtype=torch.float64)
    return ids, tokens, temperatures, factors.to(model.dtype)


def of_logits(model, ids, tokens, temperatures):
    """The logprobs and entropies of the model's own logits."""
    logits = model(input_ids=ids, use_cache=False).logits[0]
    logprobs = torch.log_softmax(
        logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperatures[:, None], -1
    )
    return logprobs.gather(1, tokens[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


def of_chunks(model, ids, tokens, temperatures):
    return predict(model, input_ids=ids, use_cache=False)[0].logprobs(tokens, temperatures, entropy=True)


def gradients(model, compute, terms):
    """The values, and the gradients of a loss over ``terms`` of (logprobs, entropies)."""
    ids, tokens, temperatures, factors = asked(model)
    model.zero_grad(set_to_none=True)
    found = compute(model, ids, tokens, temperatures)
    sum((factors[i] * found[i]).sum() for i in terms).backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return [f.detach() for f in found], grads


def close(found, expected, tolerance):
    """Relative to the largest number of each tensor."""
    return all((found[k] - e).abs().max() <= tolerance * e.abs().max() for k, e in expected.items())


@thinned
@pytest.mark.parametrize("kernels", [None, uncompiled])
@pytest.mark.parametrize("tokens_at_once", [100, 5])
@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_are_those_of_the_models_own_logits(name, tokens_at_once, kernels, monkeypatch):
    chunks_of(monkeypatch, tokens_at_once)
    model, _ = build(name)
    fuse_head(model, kernels)
    for terms in ([0], [1], [0, 1]):
        expected, of_full = gradients(model, of_logits, terms)
        found, of_parts = gradients(model, of_chunks, terms)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        assert of_parts.keys() == of_full.keys()
        assert close(of_parts, of_full, 1e-5), (name, terms)


@pytest.mark.parametrize("name", MODELS)
def test_what_a_models_forward_does_with_logits_is_found(name):
    model, (scale, cap) = build(name)
    found = head_of(model)
    assert found.scale == pytest.approx(scale) and found.cap == cap


@pytest.mark.parametrize("kernels", [None, uncompiled])
def test_float64_is_exact(kernels, monkeypatch):
    chunks_of(monkeypatch, 5, 8, 8)
    model, _ = build("Gemma 2, cap", torch.float64)
    fuse_head(model, kernels)
    (expected, of_full), (found, of_parts) = (gradients(model, f, [0, 1]) for f in (of_logits, of_chunks))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert close(of_parts, of_full, 1e-12)


@pytest.mark.parametrize("kernels", [None, uncompiled])
def test_under_autocast_the_gradient_of_the_layer_is_summed_in_float32(kernels, monkeypatch):
    chunks_of(monkeypatch, 2, fused_number=2)
    model, _ = build("Qwen3")
    fuse_head(model, kernels)
    exact = gradients(model, of_logits, [0])[1]["lm_head.weight"]
    with torch.autocast("cpu", torch.bfloat16):
        full, parts = (gradients(model, f, [0])[1]["lm_head.weight"] for f in (of_logits, of_chunks))
    assert parts.dtype == torch.float32
    assert (parts - exact).norm() <= 1.2 * (full - exact).norm()


def test_a_layer_whose_weights_are_frozen_still_passes_gradients_on(monkeypatch):
    monkeypatch.setattr(heads, "LOGITS", 5 * 97 * 4)
    model, _ = build("Qwen3")
    model.lm_head.requires_grad_(False)
    (_, of_full), (_, of_parts) = (gradients(model, f, [0]) for f in (of_logits, of_chunks))
    assert "lm_head.weight" not in of_parts and close(of_parts, of_full, 1e-5)


def test_no_logits_of_all_tokens_exist():
    model, _ = build("Qwen3")
    head_of(model)
    shapes = []
    model.lm_head.register_forward_hook(lambda layer, given, logits: shapes.append(tuple(logits.shape)))
    of_chunks(model, *asked(model)[:3])
    assert shapes == [(1, 0, 97)]


class Doubled(torch.nn.Module):
    """A model that changes logits in a way of its own."""

    def __init__(self, model):
        super().__init__()
        self.inner, self.config, self.device = model, model.config, model.device

    def get_output_embeddings(self):
        return self.inner.lm_head

    def forward(self, **inputs):
        found = self.inner(**inputs)
        found.logits = found.logits - found.logits.abs()
        return found


def test_a_model_with_another_forward_keeps_its_logits_and_says_so(caplog):
    model = Doubled(build("Qwen3")[0])
    ids, tokens, temperatures, _ = asked(model.inner)
    with caplog.at_level(logging.WARNING, "ajet"):
        found, expected = (f(model, ids, tokens, temperatures) for f in (of_chunks, of_logits))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert [r.message for r in caplog.records] == [
        "all logits of a micro-batch are kept in memory: its forward pass changes the logits of the output layer in another way than "
        "by a scale and a cap."
    ]


class Stored(torch.nn.Linear):
    """An output layer that may compute anything."""


def test_a_layer_of_another_class_is_noticed_when_it_takes_the_place_of_the_first(caplog):
    model, _ = build("Qwen3")
    assert head_of(model) is not None
    model.lm_head.__class__ = Stored
    model.set_output_embeddings(copy.deepcopy(model.lm_head))
    with caplog.at_level(logging.WARNING, "ajet"):
        (expected, of_full), (found, of_parts) = (gradients(model, f, [0]) for f in (of_logits, of_chunks))
    assert "its output layer is of the class Stored." in caplog.text
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert close(of_parts, of_full, 1e-6)


def test_a_copy_of_a_model_has_a_head_of_its_own():
    model, _ = build("Qwen3")
    assert head_of(model).layer is model.lm_head
    other = copy.deepcopy(model)
    assert head_of(other).layer is other.lm_head


@pytest.mark.parametrize("kernels", [None, uncompiled])
@pytest.mark.parametrize("name", ["Qwen3, tied", "Gemma 2, cap", "Granite, divided"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_ids_without_a_token_have_no_probability_in_sampling_and_training(name, dtype, kernels):
    model, _ = build(name, dtype)
    excluded = [3, 90, 96]
    exclude(model, excluded)
    fuse_head(model, kernels)
    assert head_of(model) is not None
    ids = torch.arange(10, 10 + TOKENS)[None]
    temperatures, tokens = torch.ones(TOKENS), torch.roll(ids[0], -1)
    sampled = model(input_ids=ids).logits[0].float().log_softmax(-1)
    assert sampled.exp()[:, excluded].max() == 0
    found = predict(model, input_ids=ids, use_cache=False)[0]
    logprobs, entropies = found.logprobs(tokens, temperatures, entropy=True)
    expected = sampled.gather(1, tokens[:, None])[:, 0]
    assert (logprobs - expected).abs().max() < (1e-5 if dtype == torch.float32 else 2e-2)
    assert found.whole(temperatures).exp()[:, excluded].max() == 0
    (logprobs.sum() + entropies.sum()).backward()  # the derivative of a cap at excluded logits is NaN
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    layer = copy.deepcopy(model).get_output_embeddings()
    assert layer.weight.shape[0] == SIZES["vocab_size"]
