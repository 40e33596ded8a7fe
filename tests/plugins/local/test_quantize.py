"""QLoRA: adapters above weights of 4 bits have the gradients that they have above the same weights in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from safetensors.torch import load_file

import ajet
from ajet.interfaces.progress import Silent
from ajet.learning.settings import LoraSettings, TrainSettings
from ajet.types import AjetError, ConfigError
from ajet_local import quantization
from ajet_local.backbone import Local
from tests.tiny import save_tiny_model

bnb = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")

LORA = {"policy": LoraSettings(rank=4)}
IDS = torch.arange(20)[None]


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Any) -> Path:
    return save_tiny_model(tmp_path / "model", tokenizer)


def loaded(folder: Path, **settings: Any) -> tuple[Any, Any]:
    """A model with an adapter that changes its output."""
    model, _, adapters = Local(device="cpu", **settings).load(folder, 0, LORA, torch.float32)
    assert adapters
    adapters.activate("policy")
    adapters.train(["policy"])
    torch.manual_seed(1)
    for weight in adapters.parameters("policy"):
        weight.data = torch.randn_like(weight) * 0.1
    return model, adapters


def test_gradients_are_those_of_lora_on_the_dequantised_weights(folder: Path) -> None:
    model, adapters = loaded(folder, quantize="4bit")
    plain, others = loaded(folder)
    layers = {name: one for name, one in model.named_modules() if isinstance(one, bnb.nn.Linear4bit)}
    assert len(layers) == 14 and "lm_head" not in layers
    for name, layer in layers.items():
        weight = bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        own = plain.get_submodule(name).weight.data
        assert not torch.equal(own, weight), "4 bits lose something"
        own.copy_(weight)
    for one in (model, plain):
        one(IDS).logits.log_softmax(-1)[..., 3].sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, plain(IDS).logits)
    for found, wanted in zip(adapters.parameters("policy"), others.parameters("policy"), strict=True):
        assert wanted.grad.abs().max() > 0.01
        torch.testing.assert_close(found.grad, wanted.grad)


def test_sampling_and_training_compute_the_same_logits(folder: Path) -> None:
    model, _ = loaded(folder, quantize="4bit")
    trained = model(IDS).logits
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, trained.detach())
        torch.testing.assert_close(model(IDS).logits, trained.detach(), msg="the second time, too")


def test_the_base_weights_take_about_an_eighth_of_float32(folder: Path) -> None:
    model, _ = loaded(folder, quantize="4bit")
    layer = model.model.layers[0].mlp.up_proj.base_layer
    assert layer.weight.dtype == torch.uint8
    assert layer.weight.numel() * 2 == layer.in_features * layer.out_features


def test_without_adapters_it_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"backbone\.local\.quantize: weights of 4 bits cannot be trained"):
        Local(device="cpu", quantize="4bit").trainer(
            str(folder), TrainSettings(), seed=0, deterministic=False, progress=Silent()
        )


def test_without_bitsandbytes_the_error_says_how_to_install_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization, "find_spec", lambda name: None)
    with pytest.raises(AjetError, match=r"needs bitsandbytes: pip install 'ajet-plugin-local\[quantize\]'"):
        Local(device="cpu", quantize="4bit").load(folder, 0, LORA, torch.float32)


@pytest.mark.whole
def test_a_job_trains_an_adapter_and_its_checkpoint_goes_on(folder: Path, tmp_path: Path) -> None:
    def train(steps: int, **more: Any) -> Path:
        settings = {
            "targets.policy.lora.rank": 4,
            "backbone.local.quantize": "4bit",
            "train.batch_size": 2,
            "rollout.group_size": 3,
            "rollout.sampling.max_tokens": 6,
            "run.deterministic": True,
            "train.save_every": 1,
        }
        done = ajet.run(
            workflow=guess,
            tasks=[{"id": name, "query": name} for name in ("a", "b")],
            judge=judge,
            model=str(folder),
            backbone="local",
            steps=steps,
            progress=False,
            set=settings,
            **more,
        )
        return Path(done.dir)

    run = train(2, run_dir=str(tmp_path / "runs"))
    first, last = (
        load_file(run / f"checkpoints/step_00000{n}/adapters/policy/adapter_model.safetensors")
        for n in (1, 2)
    )
    assert all("lora_" in name for name in last)
    assert any(not torch.equal(first[name], last[name]) for name in last), "the second step learned something"
    model, _, adapters = Local(device="cpu", quantize="4bit").load(
        run / "checkpoints/step_000002", 0, LORA, torch.float32
    )
    assert adapters and {type(m).__name__ for m in model.modules()} >= {"Linear4bit"}


def guess(task: ajet.Task) -> str:
    """One call; the reward of its answer is the length."""
    client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    made = client.chat.completions.create(model="m", messages=[{"role": "user", "content": task.query}])
    return made.choices[0].message.content or ""


def judge(task: ajet.Task, output: ajet.WorkflowOutput) -> float:
    return float(len(output.response) % 7)
