"""The local backbone trains while vLLM samples from its weights, beside vLLM's CPU build (`make test-vllm`)."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from transformers import Qwen2_5_VLConfig, Qwen3Config

import ajet
from ajet.rollout.recorder import JOURNAL
from ajet.types import AjetError, ConfigError

needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm")
SETTINGS = {
    "backbone.local.engine": "vllm",
    "backbone.local.device": "cpu",
    "backbone.local.cache_mib": 64,
    "backbone.local.memory_limit": "8GiB",
    "train.batch_size": 2,
    "train.save_every": 1,
    "rollout.group_size": 3,
    "rollout.sampling.max_tokens": 8,
}


async def guess(task: ajet.Task) -> str:
    """Two calls, of which the second continues the first."""
    client = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": task.query}]
    for _ in range(2):
        made = await client.chat.completions.create(model="m", messages=messages)
        messages += [
            made.choices[0].message.model_dump(exclude_none=True),
            {"role": "user", "content": "more"},
        ]
    return made.choices[0].message.content or ""


async def discuss(task: ajet.Task) -> str:
    """A call of each of three agents, each with an adapter of its own."""
    client = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    said = [
        await client.chat.completions.create(model=name, messages=[{"role": "user", "content": task.query}])
        for name in ("solver", "critic", "frozen")
    ]
    return "".join(answer.choices[0].message.content or "" for answer in said)


def judge(task: ajet.Task, output: ajet.WorkflowOutput) -> float:
    """Any reward that differs between answers."""
    return float(sum(map(ord, output.response)) % 7)


SCRIPT = """
import sys
import test_training

print("the script runs")
print(test_training.{}(sys.argv[1], sys.argv[2], steps=3).dir)
"""
"""A user's script, without ``if __name__ == "__main__"``."""


def trained(model: Path, runs: Path, **more: Any) -> ajet.Run:
    """A run on two tasks with vLLM as the engine."""
    return ajet.run(
        workflow=more.pop("workflow", guess),
        tasks=[{"id": name, "query": name} for name in ("a", "b")],
        judge=judge,
        model=str(model),
        backbone="local",
        run_dir=str(runs),
        progress=False,
        **{"set": SETTINGS, **more},
    )


def learns(model: Path, runs: Path, **more: Any) -> ajet.Run:
    """A run in which all weights learn so fast that each version answers differently."""
    return trained(model, runs, set={**SETTINGS, "train.learning_rate": 0.01}, **more)


def adapters_learn(model: Path, runs: Path, **more: Any) -> ajet.Run:
    """The same with the adapters of two of three agents, of which one covers other layers than the others."""
    adapters = {
        "targets.solver.lora": {"rank": 4},
        "targets.critic.lora": {"rank": 12, "modules": ["q_proj", "down_proj"]},
        "targets.frozen.lora.rank": 8,
        "train.targets": ["solver", "critic"],
        "train.learning_rate": 0.05,
    }
    return trained(model, runs, workflow=discuss, set={**SETTINGS, **adapters, **more.pop("set", {})}, **more)


def versions_of(run: ajet.Run) -> dict[int, set[int]]:
    """The weight versions that have sampled each step's tokens."""
    found: dict[int, set[int]] = {}
    for line in (Path(run.dir) / JOURNAL).read_text().splitlines():
        episode = json.loads(line)
        for call in episode["calls"]:
            versions = np.frombuffer(base64.b64decode(call["tokens"]["versions"]), "<i4")
            found.setdefault(episode["step"], set()).update(versions.tolist())
    return found


@needs_vllm
# Whole weights go to a running engine in test_engine.py, and in the runs of make prove-gpu.
@pytest.mark.parametrize("how", [pytest.param(learns, marks=pytest.mark.slow), adapters_learn])
def test_each_step_samples_from_the_weights_of_the_step_before(
    checkpoints: list[Path], tmp_path: Path, how: Callable[..., ajet.Run]
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(how.__name__))
    command = [sys.executable, str(tmp_path / "script.py"), str(checkpoints[0]), str(tmp_path)]
    with tempfile.TemporaryDirectory() as temporary:
        here = {"PYTHONPATH": str(Path(__file__).parent), "TMPDIR": temporary}
        done = subprocess.run(command, env=os.environ | here, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0
        assert not [path for path in Path(temporary).rglob("*") if path.is_socket()]
    assert done.stdout.count("the script runs") == 1, "vLLM's processes do not run it again"
    run = ajet.load_run(done.stdout.split()[-1])
    for step in run.metrics:
        assert step["tokens_trained"] and step["grad_norm"] > 0
        # The trainer computes what vLLM recorded only if vLLM has the trainer's weights, and no older keys and values.
        assert 0 < step["logprob_diff_max"] < 1e-3
    assert versions_of(run) == {1: {0}, 2: {1}, 3: {2}}


@needs_vllm
@pytest.mark.whole
def test_an_asynchronous_run_samples_during_updates_and_takes_new_weights_between_calls(
    checkpoints: list[Path], tmp_path: Path
) -> None:
    run = adapters_learn(checkpoints[0], tmp_path, steps=3, set={"train.asynchronous": True})
    assert 0 < run.metrics[0]["logprob_diff_max"] < 1e-3
    assert all(step["tokens_trained"] and step["grad_norm"] > 0 for step in run.metrics)
    versions = versions_of(run)
    assert versions[1] == {0}
    # The first calls of a step begin before the update of the step before it.
    assert 0 in versions[2] <= {0, 1} and 1 in versions[3] <= {1, 2}


@needs_vllm
def test_vllms_cpu_build_has_no_sleep_mode_of_its_own(checkpoints: list[Path]) -> None:
    """So `sleep` only pauses there. If this fails, it can free memory on a CPU as well."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    with pytest.raises(ValueError, match="Sleep mode is not supported on current platform"):
        AsyncEngineArgs(model=str(checkpoints[0]), enable_sleep_mode=True).create_engine_config()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"targets.policy.lora.rank": 513}, "a rank of at most 512"),
        ({"targets.policy.lora.rank": 4, "backbone.local.quantize": "4bit"}, "do not have the 4 bits"),
        ({"run.deterministic": True}, "do not repeat bit for bit"),
        ({"rollout.sampling.top_p": 0.9}, "does not say which tokens rollout.sampling keeps"),
    ],
)
def test_jobs_that_vllm_cannot_sample_for_are_refused(
    tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(
        ConfigError, match=rf"^set= backbone\.local\.engine: vllm cannot sample for this job, as .*{why}"
    ):
        trained(tmp_path, tmp_path / "runs", steps=1, set={**SETTINGS, **settings})


def described(model: Path, config: Any) -> None:
    """A folder of which only the config is a model's."""
    config.save_pretrained(model)
    for name in ("tokenizer.json", "model.safetensors"):
        (model / name).touch()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, r"differ from the trainer's\. Set train\.correction=truncated"),
        ({"backbone.local.engine": "local", "train.correction": "truncated"}, "only vllm has such a cache"),
    ],
)
def test_a_cache_of_8_bits_needs_vllm_and_the_correction_of_its_logprobs(
    tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    described(tmp_path, Qwen3Config())
    eight_bits = {**SETTINGS, "backbone.local.kv_cache_dtype": "fp8", **settings}
    with pytest.raises(ConfigError, match=rf"^set= backbone\.local\.kv_cache_dtype: fp8: .*{why}"):
        trained(tmp_path, tmp_path / "runs", steps=1, set=eight_bits)


def test_a_model_that_reads_images_is_sampled_by_the_local_engine(tmp_path: Path) -> None:
    described(tmp_path, Qwen2_5_VLConfig())
    with pytest.raises(ConfigError, match=r"vllm cannot sample for this job, as training on images has not"):
        trained(tmp_path, tmp_path / "runs", steps=1)


def test_an_engine_that_takes_no_new_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AjetError, match=r"unknown engine 'vlm'; did you mean 'vllm'"):
        trained(tmp_path, tmp_path / "runs", steps=1, set={**SETTINGS, "backbone.local.engine": "vlm"})
