"""The formulas of memory agree within a quarter with peaks that others have measured and published.

QwenLM/Qwen, README.md at commit 03cd81f, "Profiling of Memory and Speed": one A100-SXM4-80G, batch size 1, Flash-Attention 2; its
finetune.py has LoRA of rank 64 on c_attn, c_proj, w1 and w2, float32 optimizer states and gradient checkpointing.

pytorch/torchtune, README.md at commit 0031bfb, "Memory and training speed": two sequences of 2048 tokens; the configurations of
recipes/configs/llama3_1 have gradient checkpointing, a loss over eight chunks, and LoRA of rank 16 (attention) or 8 (all layers).

These programs keep a few hundred MiB besides (CUDA's context, buffers), so estimates tend to be lower than what they report.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ajet.estimate.memory import BFLOAT16, FLOAT32, Training
from ajet.estimate.shape import Shape, read_shape, shape_of_config

GB, GIB = 1e9, 1 << 30
EVERY = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def qwen(hidden: int, layers: int, heads: int, inner: int, vocabulary: int = 151936) -> Shape:
    """A model of the first Qwen series, from its config.json, whose ``intermediate_size`` is twice ``inner``. It has biases as
    Qwen2 does."""
    return shape_of_config(
        {
            "model_type": "qwen2",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": inner,
            "vocab_size": vocabulary,
            "max_position_embeddings": 8192,
        },
        "Qwen",
    )


QWEN = {
    "1.8B": qwen(2048, 24, 16, 5504),
    "7B": qwen(4096, 32, 32, 11008),
    "14B": qwen(5120, 40, 40, 13696, 152064),
    "72B": qwen(8192, 80, 64, 24576, 152064),
}
LLAMA = read_shape("meta-llama/Llama-3.1-8B")


def adapters(
    shape: Shape, rank: int, modules: tuple[str, ...] = EVERY, *, quantized: bool = False
) -> Training:
    size = shape.adapter_parameters(rank, modules)
    return Training(
        shape=shape, number=BFLOAT16, adapters=size, trained=size, quantized=quantized, checkpointing=True
    )


def total(training: Training, tokens: int, with_logits: int | None = None) -> int:
    """Bytes of everything that fine-tuning keeps, which has no engine and no cache."""
    lasting = training.weights + (training.adapters or 0) * FLOAT32 + training.gradients + training.moments
    return lasting + training.converted + training.activations(tokens, with_logits)


@pytest.mark.parametrize(
    ("size", "quantized", "tokens", "published"),
    [
        ("7B", False, 256, 20.1),
        ("7B", False, 2048, 23.8),
        ("7B", False, 8192, 36.6),
        ("14B", False, 2048, 37.4),
        ("14B", False, 8192, 55.2),
        ("7B", True, 2048, 13.9),
        ("7B", True, 8192, 23.5),
        ("14B", True, 2048, 19.9),
        ("72B", True, 2048, 64.1),
    ],
)
def test_adapters_of_qwen_on_an_a100(size: str, quantized: bool, tokens: int, published: float) -> None:
    found = total(adapters(QWEN[size], 64, quantized=quantized), tokens)
    print(f"Qwen {size} {quantized} {tokens}: {found / GB:.1f} of {published} {found / GB / published:.2f}")
    assert found == pytest.approx(published * GB, rel=0.25)


@pytest.mark.parametrize(("tokens", "published"), [(256, 139.2), (512, 148.0), (1024, 162.0)])
def test_all_weights_of_qwen_7b_on_two_a100(tokens: int, published: float) -> None:
    """With ZeRO 3, so each GPU has half of the weights in float32, of their gradients and their moments, and activations of its
    own; beside them it gathers the embedding, the head and two layers in bfloat16."""
    shape = QWEN["7B"]
    training = Training(shape=shape, number=BFLOAT16, stream=BFLOAT16, checkpointing=True)
    lasting = training.weights + training.gradients + training.moments
    gathered = BFLOAT16 * (2 * shape.embedding + 2 * shape.linear_parameters // shape.layers)
    found = lasting + 2 * (gathered + training.activations(tokens))
    print(f"Qwen 7B full {tokens}: {found / GB:.1f} of {published} {found / GB / published:.2f}")
    assert found == pytest.approx(published * GB, rel=0.25)


@pytest.mark.parametrize(
    ("training", "published"),
    [
        (adapters(LLAMA, 16, ("q_proj", "v_proj", "o_proj")), 16.2),
        (adapters(LLAMA, 8, quantized=True), 7.4),
    ],
    ids=["LoRA", "QLoRA"],
)
def test_adapters_of_llama_8b_in_torchtune(training: Training, published: float) -> None:
    tokens = 2 * 2048
    found = total(training, tokens, with_logits=tokens // 8)
    print(f"Llama: {found / GIB:.1f} of {published} {found / GIB / published:.2f}")
    assert found == pytest.approx(published * GIB, rel=0.25)


def test_a_context_of_qwen_7b_takes_what_its_generation_adds() -> None:
    """README of QwenLM/Qwen, "Inference Performance": generating 2048 tokens in bfloat16 takes 16.99 GB."""
    shape = QWEN["7B"]
    found = shape.parameters * BFLOAT16 + shape.cached(2048, BFLOAT16)
    assert found == pytest.approx(16.99 * GB, rel=0.1)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("Qwen/Qwen3-0.6B", 596_049_920),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400),
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
    ],
)
def test_known_models_have_the_weights_that_their_files_state(model: str, parameters: int) -> None:
    assert read_shape(model).parameters == parameters


def test_quantized_weights_below_adapters_are_all_that_differs() -> None:
    plain = adapters(LLAMA, 8)
    smaller = replace(plain, quantized=True)
    linear = LLAMA.linear_parameters
    assert plain.weights - smaller.weights == 2 * linear - int(linear * 0.516)
    assert plain.activations(100) == smaller.activations(100)
