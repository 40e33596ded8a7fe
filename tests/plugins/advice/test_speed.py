"""A roofline gives the speeds that others have published, and what limits a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ajet.estimate.devices import Gpus
from ajet.estimate.layout import JobSizes, Layout, StepPhase
from ajet.estimate.shape import QUANTIZED
from ajet.types import ConfigError
from ajet_advice.known import DEVICES, named, parse_gpus, read_shape
from ajet_advice.speed import (
    BANDWIDTH_USED,
    Range,
    requests_at_once,
    sampling_rate,
    speed,
    training_operations,
)
from ajet_local.backbone import PASS_SECONDS, Local
from tests.plugins.advice.published import SPEEDS

ROOT = Path(__file__).parents[3]
LLAMA = read_shape("meta-llama/Llama-3.1-8B")


def sizes(shape=LLAMA, **more) -> JobSizes:
    given = dict(episodes=64, concurrency=64, context=4096, prompt=1024, answer=1024, adapters={}, trained=())
    return JobSizes(shape=shape, **{**given, **more})


def layout(**more) -> Layout:
    given = dict(
        gpus=1,
        phases=(StepPhase("all", {}, 1),),
        running=64,
        cache=40 << 30,
        batch=256,
        checkpointing=False,
    )
    return Layout(**{**given, **more})


@pytest.mark.parametrize("case", SPEEDS, ids=lambda case: case.name)
def test_published_speeds_are_in_the_range(case) -> None:
    assert case.estimated.low <= case.published <= case.estimated.high


def test_the_job_that_ran_on_a_gpu_is_in_the_range_of_its_plan() -> None:
    found = json.loads((ROOT / "bench" / "results" / "prove_h200.json").read_text())["figures"]["checks"]
    figures = {check["name"]: check["figures"] for check in found}
    ran = sizes(
        read_shape("Qwen/Qwen3-0.6B"), episodes=128, concurrency=128, context=1024, prompt=512, answer=256
    )
    card = parse_gpus("H200")
    planned = speed(ran, Local(engine="local").layout(ran, card), card.device)
    seconds = figures["steps"]["seconds_rollout"], figures["steps"]["seconds_update"]
    for measured, plan in zip(seconds, (planned.sampling_seconds, planned.training_seconds), strict=True):
        assert plan.low < measured < plan.high
    alone = figures["generation"]["generated_tokens_per_second"]
    assert planned.sampled.low < alone < planned.sampled.high


def test_one_request_reads_all_weights_for_each_token() -> None:
    one = sizes(prompt=1, answer=2)
    a100 = DEVICES["A100-80"]
    rate = sampling_rate(one, layout(), a100, 1, 1)
    read = 2 * LLAMA.multiplied + LLAMA.cached(2, 2)
    assert rate == pytest.approx(2039e9 * BANDWIDTH_USED[1] / read)


def test_many_requests_share_what_is_read_until_the_gpu_must_multiply() -> None:
    a100 = DEVICES["A100-80"]
    rates = [sampling_rate(sizes(), layout(), a100, n, 1) for n in (1, 8, 64, 512)]
    assert rates == sorted(rates) and 7 < rates[1] / rates[0] < 8
    assert rates[3] / rates[2] < 4


def test_python_between_layers_slows_down_sampling() -> None:
    plain, slow = (speed(sizes(), layout(pass_seconds=p), DEVICES["H100"]) for p in ((0, 0), PASS_SECONDS))
    assert plain.sampled.low > 1.5 * slow.sampled.low and plain.trained == slow.trained


def test_weights_of_4_bits_are_slower_to_sample_from_because_they_are_converted() -> None:
    adapters = dict(adapters={"policy": 1000}, trained=("policy",))
    one, other = (
        speed(sizes(**adapters, quantized=q), layout(), DEVICES["H100"]).sampled.high for q in (False, True)
    )
    assert 0.4 < other / one < 1 and QUANTIZED < 1


def test_a_trained_token_costs_three_passes_adapters_two_and_checkpointing_one_more() -> None:
    forward = training_operations(sizes(), checkpointing=False) / 3
    assert forward == pytest.approx(2 * LLAMA.multiplied + 4 * LLAMA.layers * LLAMA.queries * 1024), (
        "attention sees half of an episode on average"
    )
    adapted = sizes(adapters={"policy": 1000})
    assert training_operations(adapted, checkpointing=False) == 2 * forward
    assert training_operations(adapted, checkpointing=True) == 3 * forward
    assert (
        training_operations(sizes(keeps_first=True), checkpointing=False)
        == 3 * forward + 2 * LLAMA.multiplied
    )


def test_requests_at_once_are_those_that_run_fit_into_the_cache_and_are_accepted() -> None:
    held = LLAMA.cached(2048, 2)
    assert requests_at_once(sizes(), layout()) == 64
    assert requests_at_once(sizes(), layout(cache=10 * held)) == 10
    assert requests_at_once(sizes(), layout(batch=16)) == 16
    assert requests_at_once(sizes(), layout(engines=8)) == 8
    assert requests_at_once(sizes(), layout(cache=0)) == 1


def test_the_bottleneck_is_what_takes_longer() -> None:
    assert speed(sizes(prompt=64), layout(), DEVICES["H100"]).bottleneck == "sampling"
    long_prompts = sizes(prompt=30_000, answer=10)
    assert speed(long_prompts, layout(), DEVICES["H100"]).bottleneck == "training"


def test_a_step_takes_sampling_and_training_one_after_the_other() -> None:
    found = speed(sizes(), layout(), DEVICES["H100"])
    seconds = found.sampling_seconds.high + found.training_seconds.high
    assert found.tokens.low == pytest.approx(64 * 1024 / seconds)


def test_more_gpus_are_faster_by_their_number() -> None:
    one = speed(sizes(), layout(), DEVICES["H100"])
    eight = speed(sizes(), layout(gpus=8, engines=8, running=512), DEVICES["H100"])
    assert eight.trained.low == pytest.approx(8 * one.trained.low)


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [("H100", 1, "H100"), ("8xH100", 8, "H100"), ("2 x a100-80", 2, "A100-80"), ("4×l40s", 4, "L40S")],
)
def test_gpus_are_a_number_and_a_name(text: str, count: int, name: str) -> None:
    assert parse_gpus(text) == Gpus(count, DEVICES[name])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("H1000", "unknown GPU; did you mean 'H100'"),
        ("0xH100", "write a number and a name"),
        ("8 H100 or so", "write a number and a name"),
    ],
)
def test_other_gpus_are_refused_with_those_that_are_known(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="--gpus") as refused:
        parse_gpus(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100-PCIE-40GB", "A100-40"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA A1000", None),
        ("NVIDIA L40", None),
    ],
)
def test_gpus_of_this_machine_are_found_by_the_name_that_the_driver_reports(reported, name) -> None:
    assert named(reported) == (DEVICES[name] if name else None)


def test_ranges_are_written_with_two_digits() -> None:
    assert str(Range(1234, 56_789)) == "1,200–57,000"
    assert str(Range(0.123, 45.6)) == "0.12–46"
    assert str(Range(99.6, 100)) == "100–100"


def test_a_model_of_another_family_or_without_sizes_is_refused(tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ConfigError, match=r"family 'gpt2' .*Known: llama, mistral, qwen2, qwen3"):
        read_shape(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 64}')
    with pytest.raises(ConfigError, match=r"config\.json has no 'num_hidden_layers'"):
        read_shape(str(tmp_path))
    (tmp_path / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"cannot read config\.json"):
        read_shape(str(tmp_path))


def test_a_model_that_no_table_and_no_hub_has_is_refused_with_a_remedy(monkeypatch) -> None:
    def offline(*_):
        raise OSError("offline")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    with pytest.raises(
        ConfigError, match=r"not known here \(offline\)\. Give a folder with the model's config\.json"
    ):
        read_shape("nobody/has-this")
    assert read_shape("Qwen/Qwen3-4B-Instruct-2507") == read_shape("Qwen/Qwen3-4B"), "no network is needed"
