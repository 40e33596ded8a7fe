"""`ajet plan`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ajet.estimate.devices import GIB
from tests.cli.conftest import Folder


def planned(folder: Folder, *arguments: str) -> dict[str, Any]:
    """The plan as JSON; its exit code says whether the job fits."""
    outcome = folder.ajet("plan", "--json", *arguments)
    found: dict[str, Any] = json.loads(outcome.out)
    assert outcome.code == (0 if found["fits"] else 1), outcome.err
    return found


def parts(found: dict[str, Any], phase: str) -> dict[str, float]:
    """GiB of a phase's parts."""
    (memory,) = [m for m in found["memory"] if m["phase"] == phase]
    assert memory["total"] == sum(memory["parts"].values())
    return {name: size / GIB for name, size in memory["parts"].items()}


QWEN3 = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
QWEN_4B = ("--model", "Qwen/Qwen3-4B", "--gpus", "H100")
QWEN_32B = ("--model", "Qwen/Qwen3-32B", "--set", "rollout.context_length=4096")


def test_qwen3_4b_trains_whole_on_one_card_of_80_gb_without_settings(folder: Folder) -> None:
    found = planned(folder, *QWEN_4B)
    assert found["fits"] and found["backbone"] == "local"
    memory = parts(found, "sampling and training")
    assert memory["weights"] == memory["gradients"] == pytest.approx(4 * 4.0225e9 / GIB, rel=0.001)
    assert found["cache_tokens"] > 32_768
    assert found["bottleneck"] in ("sampling", "training")
    low, high = found["speed"]["tokens"]["low"], found["speed"]["tokens"]["high"]
    assert 0 < low < high


def test_a_job_that_does_not_fit_is_exit_code_1_with_what_makes_it_fit(folder: Folder) -> None:
    found = planned(folder, *QWEN_32B, "--gpus", "H100")
    assert not found["fits"] and found["bottleneck"] == "memory"
    texts = [suggestion["text"] for suggestion in found["suggestions"]]
    assert "targets.policy.lora.rank: 16" in texts
    assert planned(folder, *QWEN_32B, "--gpus", "H100", "--set", "targets.policy.lora.rank=16")["fits"]
    (more,) = [text for text in texts if text.startswith("--backbone verl")]
    assert planned(folder, *QWEN_32B, *more.split())["fits"]
    half = more.replace(more.rpartition(" ")[2], f"{int(more.rpartition(' ')[2].split('x')[0]) // 2}xH100")
    assert not planned(folder, *QWEN_32B, *half.split())["fits"], "it is the smallest number that was tried"


def test_what_it_calls_faster_is_faster(folder: Folder) -> None:
    arguments = ("--model", "Qwen/Qwen3-14B", "--gpus", "RTX4090", "--method", "qlora")
    before = planned(folder, *arguments)
    best = before["suggestions"][0]
    after = planned(folder, *arguments, "--set", best["text"].replace(": ", "="))
    rates = [sum(found["speed"]["tokens"].values()) for found in (before, after)]
    assert rates[1] / rates[0] == pytest.approx(best["times"], rel=0.06) and best["times"] >= 1.1


def test_verl_divides_weights_over_all_gpus_and_shares_each_with_vllm(folder: Folder) -> None:
    arguments = ("--model", "Qwen/Qwen3-8B", "--backbone", "verl", "--set", "rollout.context_length=4096")
    four, eight = (planned(folder, *arguments, "--gpus", f"{n}xH100") for n in (4, 8))
    assert parts(four, "training")["AdamW"] == pytest.approx(2 * parts(eight, "training")["AdamW"])
    assert parts(eight, "training")["weights"] == pytest.approx(4 * 8.1907e9 / 8 / GIB, rel=0.001)
    assert parts(eight, "sampling")["vLLM"] == pytest.approx(0.72 * 80), (
        "what the trainer leaves, as of a job"
    )
    shared = planned(
        folder,
        *arguments,
        "--gpus",
        "8xH100",
        "--set",
        "backbone.verl.actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
    )
    assert parts(shared, "sampling")["vLLM"] == 40 and eight["cache_tokens"] > 1.5 * shared["cache_tokens"]
    out = folder.ajet("plan", *arguments, "--gpus", "8xH100").out
    assert "note: a step has 8 episodes for each GPU" in out
    assert (
        f"episodes at once: 64; the cache of each of 8 engines has room for {eight['cache_tokens']:,} tokens"
        in out
    )
    key = "backbone.verl.actor_rollout_ref.actor.fsdp_config.optimizer_offload=true"
    away = planned(folder, *arguments, "--gpus", "8xH100", "--set", key)
    assert "AdamW" not in parts(away, "sampling") and "AdamW" in parts(away, "training")


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize(
    ("size", "gpus"),
    [("0.6B", 1), *((size, gpus) for size in ("0.6B", "4B", "8B", "14B") for gpus in (8, 16))],
)
def test_what_verl_gets_without_settings_leaves_a_twentieth_of_each_gpu(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, size: str, gpus: int, flash: bool
) -> None:
    monkeypatch.setattr("ajet_verl.scale.find_spec", lambda name: name if flash else None)
    arguments = (
        "--model",
        f"Qwen/Qwen3-{size}",
        "--backbone",
        "verl",
        "--set",
        "rollout.context_length=16384",
    )
    found = planned(folder, *arguments, "--gpus", f"{gpus}xH100")
    assert max(phase["total"] for phase in found["memory"]) <= 0.95 * 80 * GIB


def test_verls_micro_batch_is_divided_by_the_ranks_that_share_a_row(folder: Folder) -> None:
    arguments = ("--model", "Qwen/Qwen3-8B", "--backbone", "verl", "--gpus", "8xH100")
    key = "backbone.verl.actor_rollout_ref.actor.ulysses_sequence_parallel_size=4"
    whole, shared = planned(folder, *arguments), planned(folder, *arguments, "--set", key)
    assert "activations of 40960 tokens" in parts(whole, "training")
    assert "activations of 4096 tokens" in parts(shared, "training")


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_a_method_replaces_what_the_job_says(folder: Folder, method: str) -> None:
    lora = ("--set", "targets.solver.lora.rank=8")
    found = planned(folder, "--model", "Qwen/Qwen3-0.6B", "--gpus", "H100", *lora, "--method", method)
    memory = parts(found, "sampling and training")
    assert ("adapters" in memory) == (method != "full")
    assert (memory["weights"] < 0.6) == (method == "qlora"), "the embedding is not quantized"


def test_a_job_file_gives_targets_reference_and_batch(folder: Folder) -> None:
    folder.write(
        "big.yaml",
        """
model: Qwen/Qwen3-0.6B
rollout: {group_size: 4, context_length: 2048, sampling: {max_tokens: 300}}
targets: {a: {lora: {rank: 4}}, b: {lora: {rank: 4}}}
train: {targets: [a], batch_size: 2, reference: Qwen/Qwen3-1.7B}
""",
    )
    found = planned(folder, "big.yaml", "--gpus", "H100")
    memory = parts(found, "sampling and training")
    assert memory["adapters"] == pytest.approx(2 * memory["gradients"]), "one of two is trained"
    assert memory["the reference"] == pytest.approx(2 * 1.72057e9 / GIB, rel=0.001)
    seconds, rate = found["speed"]["sampling_seconds"]["high"], found["speed"]["sampled"]["low"]
    assert seconds * rate == pytest.approx(2 * 4 * 300)


def test_a_run_has_its_hours_and_with_a_price_its_cost(folder: Folder) -> None:
    arguments = ("--model", "Qwen/Qwen3-0.6B", "--gpus", "2xH100", "--set", "train.steps=200")
    free, paid = planned(folder, *arguments), planned(folder, *arguments, "--price", "2.5")
    step = [
        paid["speed"]["sampling_seconds"][end] + paid["speed"]["training_seconds"][end]
        for end in ("low", "high")
    ]
    hours = paid["run"]["hours"]
    assert [hours["low"], hours["high"]] == pytest.approx([200 * seconds / 3600 for seconds in step])
    cost = paid["run"]["cost"]
    assert [cost["low"], cost["high"]] == pytest.approx([2 * 2.5 * hours["low"], 2 * 2.5 * hours["high"]])
    assert free["run"]["cost"] is None
    out = folder.ajet("plan", *arguments, "--price", "2.5").out
    assert re.search(r"^the run, 200 steps: [\d.]+–[\d.]+ \w+, [\d.]+–[\d.]+ at 2\.5 a GPU hour$", out, re.M)


def test_the_model_of_a_recipe_is_built_and_planned(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_CACHE", str(folder.path / "cache"))
    folder.write(
        "recipe.py",
        "from pathlib import Path\n"
        "from ajet import Recipe\n"
        "class Small(Recipe):\n"
        "    name = 'small'\n"
        "    def build(self, folder, seed, progress):\n"
        f"        (folder / 'config.json').write_text('''{json.dumps(QWEN3)}''')\n"
        "    def tokenizer(self, seed):\n"
        "        raise NotImplementedError\n",
    )
    found = planned(folder, "--model", "recipe.py:Small", "--gpus", "L4")
    assert found["fits"] and found["parameters"] < 1e6


def test_where_vllm_samples_the_peak_that_was_measured_above_a_plan_is_told(folder: Folder) -> None:
    vllm = ("--set", "backbone.local.engine=vllm")
    (note,) = [n for n in planned(folder, *QWEN_4B, *vllm)["notes"] if "118%" in n]
    assert "of 80.0 GiB" in note and "adamw_8bit" in note
    small = (
        "--model",
        "Qwen/Qwen3-0.6B",
        "--gpus",
        "H100",
        "--set",
        "backbone.local.micro_batch_tokens=2048",
    )
    tight = "rollout.context_length=1024"
    assert not [n for n in planned(folder, *small, *vllm, "--set", tight)["notes"] if "118%" in n]
    assert not [n for n in planned(folder, *QWEN_4B)["notes"] if "118%" in n]


def test_checkpoints_that_stop_a_cluster_for_long_are_told(folder: Folder) -> None:
    verl = ("--model", "Qwen/Qwen3-8B", "--gpus", "8xH100", "--backbone", "verl")
    (note,) = [n for n in planned(folder, *verl)["notes"] if "save_every" in n]
    assert "verl writes 91.5 GiB every 10 steps" in note and "49–98 s" in note
    assert not [
        n for n in planned(folder, *verl, "--set", "train.save_every=1000")["notes"] if "save_every" in n
    ]
    assert not [n for n in planned(folder, *verl, "--method", "lora")["notes"] if "save_every" in n]


def test_it_is_readable_too(folder: Folder) -> None:
    out = folder.ajet("plan", *QWEN_4B).out
    assert out.startswith("Qwen/Qwen3-4B: 4.02B weights, all weights, backbone local, 1 × H100\n")
    assert "GiB on each GPU, fits" in out and "bottleneck:" in out and "faster with:" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpus", "H1000"), "--gpus H1000: unknown GPU; did you mean 'H100'"),
        ((), "--gpus: this machine has none. Name GPUs, such as 8xH100."),
        ((*QWEN_4B, "--method", "lorra"), "--method lorra: unknown; did you mean 'lora'"),
        ((*QWEN_4B, "--backbone", "debug"), "the backbone 'debug' has no estimate"),
        ((*QWEN_4B, "--backbone", "verl", "--method", "qlora"), "4 bits have no estimate"),
        (
            (*QWEN_4B, "--backbone", "verl", "--set", "backbone.verl.engine=megatron"),
            "megatron has no estimate",
        ),
        (
            (*QWEN_4B, "--backbone", "verl", "--set", "backbone.verl.mode=separate_async"),
            "separate_async has no estimate",
        ),
        (
            (*QWEN_4B, "--prompt-tokens", "40000", "--answer-tokens", "2000"),
            "42000 tokens are more than the context of 40960",
        ),
    ],
)
def test_what_cannot_be_planned_is_exit_code_2(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr("ajet.estimate.devices.reported_gpus", lambda fields: [])
    outcome = folder.ajet("plan", *arguments)
    assert outcome.code == 2 and said in outcome.err and outcome.err.count("\n") == 1


def test_vllm_beside_the_trainer_sleeps_in_one_of_two_phases(folder: Folder) -> None:
    together = planned(folder, *QWEN_4B)
    apart = planned(folder, *QWEN_4B, "--set", "backbone.local.engine=vllm")
    assert apart["settings"]["backbone.local.engine"] == "vllm"
    assert "the engine's cache" in parts(apart, "sampling") and "gradients" not in parts(apart, "sampling")
    assert "the sleeping engine" in parts(apart, "training")
    assert apart["cache_tokens"] > together["cache_tokens"]
    assert apart["speed"]["sampled"]["low"] > 2 * together["speed"]["sampled"]["low"]
    assert "backbone.local.engine: vllm" in [found["text"] for found in together["suggestions"]]


def test_jobs_that_vllm_cannot_sample_for_are_not_planned_with_it(folder: Folder) -> None:
    lora = (*QWEN_4B, "--method", "lora", "--set", "backbone.local.engine=vllm")
    assert planned(folder, *lora)["settings"]["backbone.local.engine"] == "vllm"
    outcome = folder.ajet("plan", *lora, "--set", "backbone.local.quantize=4bit", "--json")
    assert outcome.code == 2
    assert "backbone.local.engine: vllm cannot sample for this job, as its weights" in outcome.err


@pytest.mark.whole
def test_a_family_without_a_formula_is_described_by_the_backbone_and_its_states_count(folder: Folder) -> None:
    AutoConfig = pytest.importorskip("transformers").AutoConfig
    shape = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 1000, "max_position_embeddings": 4096}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    # States of 128 x 128 float32 in three layers.
    states = {"linear_num_key_heads": 16, "linear_num_value_heads": 16}
    AutoConfig.for_model("qwen3_5_text", **shape, **heads, **states).save_pretrained(folder.path / "hybrid")
    small = ("--gpus", "H100", "--set", "backbone.local.cache_mib=100", "--set", "rollout.concurrency=512")
    found = planned(folder, "--model", "hybrid", *small)
    assert found["fits"] and found["cache_tokens"] == 100 * 2**20 // (2 * 2 * 32 * 2)
    assert found["speed"]["at_once"] == pytest.approx(100 / 3.7, rel=0.1)
    outcome = folder.ajet("plan", "--model", "hybrid", "--gpus", "8xH100", "--backbone", "verl")
    assert (
        outcome.code == 2 and "its family 'qwen3_5_text' has layers that the estimate does not" in outcome.err
    )
