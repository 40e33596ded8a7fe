"""`tune` with a configuration file of Trinity-RFT."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.types import ConfigError
from tests.tiny import save_tiny_model

from ..programs import require

require("torch", "datasets")

from ajet_agentscope.tuner import (
    AlgorithmConfig,
    DatasetConfig,
    TunedModel,
    TunerModelConfig,
    WorkflowOutput,
    tune,
)
from ajet_agentscope.tuner.keys import JobKeys
from ajet_trinity_files.files import training_file

from .test_tune import RECORDS, ask, judge

pytestmark = pytest.mark.whole

Tune = Callable[..., TunedModel]
seen: list[dict[str, Any]] = []


async def run(task: dict[str, Any], model: Any) -> WorkflowOutput:
    seen.append(dict(task))
    return WorkflowOutput(response=await ask(task["question"]))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny", tokenizer)


@pytest.fixture
def given(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A file as the samples of AgentScope have it, for a working directory with its data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ajet_agentscope.chat_model", lambda *arguments, **options: None)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in RECORDS))
    seen.clear()
    return {
        "project": "Games",
        "name": "first",
        "checkpoint_root_dir": "${oc.env:TRINITY_CHECKPOINT_ROOT_DIR,./kept}",
        "algorithm": {
            "algorithm_type": "multi_step_grpo",
            "repeat_times": 2,
            "kl_loss_fn": "low_var_kl",
            "kl_loss_fn_args": {"kl_coef": 0},
            "policy_loss_fn_args": {"clip_range_low": 0.2, "clip_range_high": 0.28},
            "optimizer": {"lr": "1e-3"},
        },
        "model": {"model_path": str(tiny), "max_response_tokens": 8, "max_model_len": 64},
        "cluster": {"node_num": 1, "gpu_per_node": 8},
        "buffer": {
            "batch_size": 2,
            "total_epochs": 1,
            "explorer_input": {
                "taskset": {"path": "data", "split": "train", "workflow_args": {"side": "good_guy"}}
            },
        },
        "explorer": {"max_timeout": 60, "rollout_model": {"engine_num": 4, "enable_openai_api": True}},
        "trainer": {"save_interval": 100},
    }


def tuned(file: dict[str, Any], **arguments: Any) -> TunedModel:
    Path("config.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
    asked: dict[str, Any] = {
        "workflow_func": run,
        "judge_func": judge,
        "config_path": "config.yaml",
        "progress": False,
    }
    return tune(**asked | arguments)


def test_a_file_alone_says_it_all(given: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    found = tuned(given)
    train = found.job["train"]
    assert train["algorithm"] == {"type": "grpo", "clip_low": 0.2, "clip_high": 0.28}
    assert (train["steps"], train["batch_size"], train["learning_rate"], train["kl"]) == (2, 2, 1e-3, 0.0)
    assert (train["weight_decay"], found.job["rollout"]["group_size"]) == (0.01, 2)
    assert found.job["rollout"]["timeout"] == 60 and len(found.episodes(step=1)) == 4
    assert found.experiment == Path.cwd() / "kept" / "Games" / "first"
    assert found.dir.parent == found.experiment / "runs"
    assert any(
        "no effect of cluster.{node_num,gpu_per_node}" in record.getMessage() for record in caplog.records
    )


def test_the_arguments_of_the_workflow_are_in_its_task(given: dict[str, Any]) -> None:
    tuned(given, eval_dataset=DatasetConfig(path="data"))
    assert {task["workflow_args"]["side"] for task in seen} == {"good_guy"}


def test_fields_lie_over_the_file_and_their_defaults_below_it_but_over_those_of_trinity(
    given: dict[str, Any], tiny: Path
) -> None:
    given["model"]["model_path"] = "nowhere"
    del given["buffer"]["batch_size"]
    found = tuned(
        given,
        train_dataset=DatasetConfig(path="data/train.jsonl", total_steps=1),
        model=TunerModelConfig(model_path=str(tiny), max_model_len=48),
        algorithm=AlgorithmConfig(group_size=3),
        project_name="Mine",
        experiment_name="second",
    )
    assert found.experiment == Path.cwd() / "kept" / "Mine" / "second"
    assert (found.job["rollout"]["group_size"], found.job["rollout"]["context_length"]) == (3, 48)
    assert found.job["rollout"]["sampling"]["max_tokens"] == 8, "the file's, not the field's default"
    assert found.job["train"]["batch_size"] == 32, "the field's default, not Trinity's"
    assert found.job["train"]["steps"] == 1


def test_the_variable_of_trinity_names_the_root_of_the_checkpoints(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRINITY_CHECKPOINT_ROOT_DIR", str(tmp_path / "elsewhere"))
    given["buffer"]["total_steps"] = 1
    assert tuned(given).experiment == tmp_path / "elsewhere" / "Games" / "first"
    with pytest.raises(ConfigError, match=r"already exists\. Pass resume=True"):
        tuned(given)
    given["continue_from_checkpoint"] = True
    given["name"] = "third"
    tuned(given)
    tuned(given)


def test_a_file_without_a_name_begins_an_experiment_each_time(given: dict[str, Any]) -> None:
    del given["name"]
    given["group"] = "g"
    first, second = tuned(given).experiment, tuned(given).experiment
    assert first != second and first.parent == second.parent == Path.cwd() / "kept" / "Games" / "g"


def test_verl_takes_a_file_that_names_no_selector(given: dict[str, Any]) -> None:
    Path("config.yaml").write_text(yaml.safe_dump(given))
    trinity = training_file(Path("config.yaml"), "verl")
    assert trinity and "task.selector" not in JobKeys(trinity.layers(), trinity).values


def test_auxiliary_models_of_the_file_are_served(given: dict[str, Any], tiny: Path) -> None:
    given["explorer"]["auxiliary_models"] = [{"name": "rival", "model_path": str(tiny), "engine_num": 8}]

    async def asks(task: dict[str, Any], model: Any, auxiliary_models: dict[str, Any]) -> WorkflowOutput:
        assert list(auxiliary_models) == ["rival"]
        return await run(task, model)

    found = tuned(given, workflow_func=asks)
    assert found.job["targets"]["rival"]["frozen_model"]["type"] == "openai"


def test_a_file_of_only_a_model_is_recognised(given: dict[str, Any]) -> None:
    found = tuned(
        {"model": given["model"]},
        train_dataset=DatasetConfig(path="data", total_steps=1),
        algorithm=AlgorithmConfig(batch_size=2, group_size=2),
    )
    assert found.job["model"] == given["model"]["model_path"]
    assert found.experiment.parent == Path.cwd() / "checkpoints" / "AgentScope"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"mode": "serve"},
            "config.yaml: mode: 'serve' does not train on tasks. It is for online training: `ajet online",
        ),
        ({"buffer": {"batch_size": 2}}, "train_dataset: is missing"),
        ({"model": {"model_path": "./no"}}, "config.yaml: model.model_path (model) ./no: no such folder"),
        (
            {"buffer": {"batch_size": "abc", "explorer_input": {"taskset": {"path": "data"}}}},
            "config.yaml (buffer.batch_size): train.batch_size",
        ),
        ({"name": "../../x"}, "config.yaml: name: '../../x' becomes the name of a folder"),
        ({"algorithm": {"repeat_times": 0}}, "config.yaml (algorithm.repeat_times): rollout.group_size"),
        (
            {"explorer": {"max_timeot": 3}},
            "config.yaml: explorer.max_timeot: Trinity-RFT has no such key; did you mean",
        ),
    ],
)
def test_mistakes_name_the_key_of_the_file(given: dict[str, Any], change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        tuned(given | change, backbone="local")
    assert str(error.value).startswith(said) and "\n" not in str(error.value)


def test_the_name_of_an_experiment_is_that_of_a_folder_with_a_file_too(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^experiment_name: '\.\./\.\./x' becomes the name of a folder"):
        tuned(given, experiment_name="../../x")
