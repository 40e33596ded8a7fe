"""Lengths that follow from the model and verl's engines, and what they are checked against."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ajet.types import ConfigError
from ajet_verl.alignment import RunPaths, compose_with_lengths, describe
from ajet_verl.lengths import architecture, at_once, check_cache, row_limit
from ajet_verl.plugin import Verl
from tests.plugins.verl.models import model
from tests.plugins.verl.test_alignment import job_of

CONTEXT = 40_960
"""Of Qwen3."""


pytestmark = pytest.mark.usefixtures("on_gpus")


def composed(folder: Path, name: str = "qwen3-8b", **sections: Any) -> tuple[Any, dict[str, Any]]:
    """What verl receives for a job with this model, and the lengths by their names."""
    path = model(folder, name)
    job = job_of(folder, **sections)
    assert isinstance(job.backbone, Verl)
    paths = RunPaths(str(path), "/runs/one", model_shape=architecture(str(path)))
    config, found = compose_with_lengths(job, job.backbone, paths)
    return config, {length.name: length for length in found}


def actor_keys(**keys: Any) -> dict[str, Any]:
    return {"actor_rollout_ref": {"actor": keys}}


def rollout_keys(**keys: Any) -> dict[str, Any]:
    return {"actor_rollout_ref": {"rollout": keys}}


def test_the_context_is_the_models(tmp_path: Path) -> None:
    config, lengths = composed(tmp_path)
    assert config.actor_rollout_ref.rollout.max_model_len == CONTEXT
    assert config.actor_rollout_ref.rollout.response_length == CONTEXT
    assert lengths["context"].why == "the model's max_position_embeddings"


def test_a_job_may_limit_the_context(tmp_path: Path) -> None:
    config, lengths = composed(tmp_path, rollout={"context_length": 8192})
    assert config.actor_rollout_ref.rollout.max_model_len == 8192
    assert lengths["context"].why == "rollout.context_length"
    with pytest.raises(ConfigError, match=r"rollout\.context_length: .* more than the model's"):
        composed(tmp_path, rollout={"context_length": CONTEXT + 1})


def test_a_row_of_the_whole_context_can_be_trained(tmp_path: Path) -> None:
    config, lengths = composed(tmp_path)
    assert row_limit(config) >= CONTEXT
    assert lengths["row"].value == CONTEXT
    assert config.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu == CONTEXT


def test_a_smaller_context_keeps_verls_micro_batch(tmp_path: Path) -> None:
    config, lengths = composed(tmp_path, verl=rollout_keys(max_model_len=8192))
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 16_384
    assert lengths["row"].value == lengths["context"].value == 8192


@pytest.mark.parametrize(
    ("engine", "keys"),
    [
        ("dp", {"ulysses_sequence_parallel_size": 4}),
        ("dp", {"fsdp_config": {"ulysses_sequence_parallel_size": 4}}),
        ("megatron", {"megatron": {"context_parallel_size": 4}}),
    ],
)
def test_ranks_that_share_a_row_need_fewer_tokens_each(
    engine: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    few = {**keys, "ppo_max_token_len_per_gpu": CONTEXT // 4}
    config, lengths = composed(tmp_path, verl={"engine": engine, **actor_keys(**few)})
    assert row_limit(config) == lengths["row"].value == CONTEXT
    config, lengths = composed(tmp_path, verl={"engine": engine, **actor_keys(**keys)})
    assert lengths["micro-batch"].value == 16_384


def test_a_step_of_shorter_rows_computes_fewer_tokens_at_once_than_a_context(tmp_path: Path) -> None:
    config, _ = composed(tmp_path)
    assert [at_once(config, longest) for longest in (100, 20_000, CONTEXT)] == [16_384, 20_000, CONTEXT]
    shared = {"ulysses_sequence_parallel_size": 2}
    config, _ = composed(tmp_path, verl=actor_keys(**shared))
    assert [at_once(config, longest) for longest in (100, 20_000, CONTEXT)] == [16_384, 16_384, CONTEXT // 2]
    assert at_once(composed(tmp_path, rollout={"context_length": 8192})[0], 100) is None, "verl's default"
    larger = actor_keys(ppo_max_token_len_per_gpu=2 * CONTEXT)
    assert at_once(composed(tmp_path, verl=larger)[0], 100) is None, "the user's own"


def test_the_reference_model_limits_rows_too(tmp_path: Path) -> None:
    """Only the actor's ranks share rows here: verl copies the section's key to no other model."""
    verl = actor_keys(fsdp_config={"ulysses_sequence_parallel_size": 4})
    config, lengths = composed(tmp_path, train={"kl": 0.1}, verl=verl)
    assert lengths["micro-batch"].value == CONTEXT
    assert row_limit(config) == CONTEXT


def test_rows_that_could_not_be_trained_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"rows of up to 16384 tokens, but the context has 40960\. .*long_rows: drop"
    ):
        composed(tmp_path, verl=actor_keys(ppo_max_token_len_per_gpu=16_384))


def test_such_rows_are_dropped_only_if_the_job_says_so(tmp_path: Path) -> None:
    verl = {"long_rows": "drop", **actor_keys(ppo_max_token_len_per_gpu=16_384)}
    config, lengths = composed(tmp_path, verl=verl)
    assert row_limit(config) == lengths["row"].value == 16_384
    assert "dropped and counted" in lengths["row"].why


def test_rows_are_not_limited_without_dynamic_batches(tmp_path: Path) -> None:
    sizes = {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 1}
    config, lengths = composed(tmp_path, verl=actor_keys(**sizes))
    assert row_limit(config) == float("inf")
    assert "row" not in lengths


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"verl": rollout_keys(max_model_len=65_536)},
            "max_model_len: 65536 tokens are more than the model's 40960",
        ),
        (
            {"verl": {"data": {"max_prompt_length": 40_000, "max_response_length": 2000}}},
            "data.max_response_length: 42000 tokens are more than the model's 40960",
        ),
        (
            {"rollout": {"sampling": {"max_tokens": 50_000}}},
            "rollout.sampling.max_tokens: 50000 tokens are more than the context of 40960",
        ),
        (
            {"eval": {"sampling": {"max_tokens": 9000}}, "verl": rollout_keys(max_model_len=8192)},
            "eval.sampling.max_tokens: 9000 tokens are more than the context of 8192",
        ),
        (
            {"verl": {"data": {"max_response_length": 50_000}}},
            "data.max_response_length: 50000 tokens are more than the context of 40960",
        ),
    ],
)
def test_a_length_above_its_limit_is_an_error(sections: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        composed(tmp_path, **sections)


def test_explicit_lengths_are_kept(tmp_path: Path) -> None:
    data = {"max_prompt_length": 3000, "max_response_length": 1000}
    config, lengths = composed(tmp_path, verl={"data": data, **actor_keys(ppo_max_token_len_per_gpu=5000)})
    assert lengths["context"].value == config.actor_rollout_ref.rollout.max_model_len == 4000
    assert (config.data.max_prompt_length, config.data.max_response_length) == (3000, 1000)
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 5000


def test_the_cache_holds_one_context(tmp_path: Path) -> None:
    """Qwen3-8B: 2 x 36 layers x 8 heads x 128 numbers of 2 bytes a token."""
    config, lengths = composed(tmp_path)
    assert lengths["cache, MiB"].value == 2 * 36 * 8 * 128 * 2 * CONTEXT // 2**20 == 5760
    shape = architecture(str(model(tmp_path, "qwen3-8b")))
    assert check_cache(config, shape, 80 * 2**30)
    with pytest.raises(ConfigError, match=r"takes 5\.6 GiB on each GPU, but vLLM has 4\.0 GiB"):
        check_cache(config, shape, 8 * 2**30)
    config.actor_rollout_ref.rollout.tensor_model_parallel_size = 2
    assert check_cache(config, shape, 8 * 2**30)


def test_the_cache_of_a_model_with_other_attention_is_left_to_vllm(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    path = model(tmp_path, "qwen3-8b", num_hidden_layers=2, layer_types=kinds, sliding_window=128)
    found = architecture(str(path))
    assert (found.context, found.cache_heads, found.cache_width) == (CONTEXT, None, 2 * 2 * 128)


def test_a_model_without_a_config_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"^model: .*empty"):
        architecture(str(tmp_path / "empty"))


OWN_CODE = """
from transformers import Qwen3Config, Qwen3ForCausalLM
class OwnConfig(Qwen3Config):
    model_type = "own"
class OwnModel(Qwen3ForCausalLM):
    config_class = OwnConfig
"""


def test_a_model_with_python_code_of_its_own_must_be_trusted(tmp_path: Path) -> None:
    path = model(tmp_path, "qwen3-8b")
    (path / "own.py").write_text(OWN_CODE)
    config = json.loads((path / "config.json").read_text())
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (path / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": classes}))
    with pytest.raises(
        ConfigError, match=r"contains Python code\. If you trust it, set backbone\.verl\..*: true"
    ):
        job_of(tmp_path, model=str(path))
    verl = {"actor_rollout_ref": {"model": {"trust_remote_code": True}}}
    job = job_of(tmp_path, model=str(path), verl=verl)
    assert isinstance(job.backbone, Verl)
    assert re.search(r"context +40,960", describe(job, job.backbone))


def test_the_dry_run_shows_each_length_and_why(tmp_path: Path) -> None:
    path = model(tmp_path, "qwen3-8b")
    job = job_of(tmp_path, model=str(path), rollout={"sampling": {"max_tokens": 2048}})
    assert isinstance(job.backbone, Verl)
    text = describe(job, job.backbone)
    assert re.search(r"context +40,960 +the model's max_position_embeddings", text)
    assert re.search(r"answer +2,048 +rollout\.sampling\.max_tokens", text)
    assert re.search(r"rollout\.max_model_len +40960 +the model's max_position_embeddings", text)


def test_the_dry_run_of_a_recipe_says_what_is_not_known_yet(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    assert isinstance(job.backbone, Verl)
    assert "once the recipe starter is built" in describe(job, job.backbone)
