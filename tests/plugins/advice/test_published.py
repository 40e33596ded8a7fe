"""The formulas of memory agree within a quarter with peaks that others have measured and published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ajet_advice.known import read_shape
from tests.plugins.advice.published import ALL_ADAPTERS, GB, LLAMA, MEMORY, QWEN, SMALLEST, Memory, adapters

RUNS = {figure.name: figure for figure in (*ALL_ADAPTERS, *MEMORY) if figure not in SMALLEST}


@pytest.mark.parametrize("figure", RUNS.values(), ids=RUNS)
def test_the_estimate_is_within_a_quarter_of_the_published_peak(figure: Memory) -> None:
    assert figure.estimated == pytest.approx(figure.published, rel=0.25)


def test_only_the_smallest_runs_differ_by_more() -> None:
    assert len(ALL_ADAPTERS) == 42 and len(SMALLEST) == 3
    for figure in SMALLEST:
        assert figure.published < 7 and 0.5 < figure.estimated / figure.published < 0.75


def test_weights_and_a_context_of_qwen_7b_take_what_its_generation_takes() -> None:
    """README of QwenLM/Qwen at 03cd81f, "Inference Performance": generating 2048 tokens in bfloat16 takes 16.99 GB."""
    shape = QWEN["7B"]
    assert 2 * shape.parameters + shape.cached(2048, 2) == pytest.approx(16.99 * GB, rel=0.1)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen/Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen2.5-32B", 32_763_876_352),
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("meta-llama/Llama-3.1-70B-Instruct", 70_553_706_496),
    ],
)
def test_known_models_have_the_numbers_of_weights_that_the_hub_states(model: str, parameters: int) -> None:
    assert read_shape(model).parameters == parameters


def test_4_bits_change_the_weights_of_linear_layers_alone() -> None:
    plain = adapters(LLAMA, 8)
    smaller = replace(plain, quantized=True)
    linear = LLAMA.linear_parameters
    assert plain.weights - smaller.weights == 2 * linear - int(linear * 0.516)
    assert plain.activations(100) == smaller.activations(100)
