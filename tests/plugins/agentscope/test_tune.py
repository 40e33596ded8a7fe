"""`tune` of AgentScope's tuner: each field of its classes, its folder, and its errors. The agents speak plain HTTP, so that the
tests need no AgentScope."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from ajet.job.layers import job_layers, lay_sets
from ajet.job.parts import build_backbone
from ajet.types import AjetError, ConfigError, ContractBroken
from tests.tiny import save_tiny_model

from ..programs import CLOSED, require

require("torch", "datasets")

from ajet_agentscope.tuner import (
    AlgorithmConfig,
    DatasetConfig,
    JudgeOutput,
    TinkerConfig,
    TunedModel,
    TunerModelConfig,
    WorkflowOutput,
    check_judge_function,
    check_workflow_function,
    tune,
)
from ajet_agentscope.tuner.config import ours
from ajet_agentscope.tuner.experiment import removed_if_nothing_runs
from ajet_agentscope.tuner.functions import TunerJudge
from ajet_agentscope.tuner.keys import WHY, JobKeys, algorithm, model_keys
from ajet_agentscope.tuner.tune import loggers_of
from ajet_trinity_files.keys import NEAREST, SAME

RECORDS = [{"question": f"say {i}", "answer": str(i)} for i in range(4)]
Tune = Callable[..., TunedModel]


async def ask(question: str) -> str:
    async with httpx2.AsyncClient() as client:
        body = {"model": "m", "messages": [{"role": "user", "content": question}]}
        answer = (await client.post(f"{CLOSED}/chat/completions", json=body)).json()
    return str(answer["choices"][0]["message"]["content"])


async def run(task: dict[str, Any], model: Any) -> WorkflowOutput:
    return WorkflowOutput(response=await ask(task["question"]))


async def judge(task: dict[str, Any], response: Any) -> JudgeOutput:
    return JudgeOutput(reward=len(response) % 3 / 2, metrics={"length": float(len(response))})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny", tokenizer)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a data set."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in RECORDS))
    return tmp_path


@pytest.fixture
def tuned(folder: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """`tune` with small settings; the fields of each class may be given by its name."""
    monkeypatch.setattr("ajet_agentscope.chat_model", lambda *arguments, **options: None)

    def call(
        model: dict[str, Any] | None = None,
        algorithm: dict[str, Any] | AlgorithmConfig | None = None,
        train: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> TunedModel:
        asked = {"model_path": str(tiny), "max_model_len": 64, "max_tokens": 8, **(model or {})}
        if not isinstance(algorithm, AlgorithmConfig):
            steps = {"learning_rate": 1e-3, "batch_size": 2, "group_size": 2, **(algorithm or {})}
            algorithm = AlgorithmConfig(**steps)
        data = {"path": "data.jsonl", "total_steps": 1, **(train or {})}
        given: dict[str, Any] = {
            "workflow_func": run,
            "judge_func": judge,
            "train_dataset": DatasetConfig(**{k: v for k, v in data.items() if v is not None}),
            "model": TunerModelConfig(**asked),
            "algorithm": algorithm,
            "progress": False,
        }
        return tune(**given | arguments)

    return call


def error_of(call: Callable[[], Any], kind: type[AjetError] = ConfigError) -> str:
    """The one line of the error that a call raises."""
    with pytest.raises(kind) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


# ------------------------------------------------------------------ functions


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda task, model: None, None),
        (lambda model, task, logger, auxiliary_models: None, None),
        (lambda tsk, model: None, "has the parameter 'tsk'; did you mean 'task'"),
        (lambda task: None, "lacks the parameter 'model'"),
        (lambda task, model, temperature=1: None, "has the parameter 'temperature'"),
        (lambda task, model, *more: None, "has *more"),
        (lambda task, model, **more: None, "has **more"),
        (lambda task, model, /: None, "takes 'task' by position only"),
    ],
)
def test_a_workflow_takes_task_and_model_by_these_names(function: Any, said: str | None) -> None:
    if said is None:
        check_workflow_function(function)
        return
    line = error_of(lambda: check_workflow_function(function))
    assert line.startswith(f"workflow_func: <lambda> {said}") and "must take task and model" in line


def test_a_judge_takes_task_and_response_and_the_error_is_a_value_error_as_in_agentscope() -> None:
    check_judge_function(judge)
    check_judge_function(lambda task, response, auxiliary_models, logger: None)
    with pytest.raises(ValueError, match="judge_func: run has the parameter 'model'"):
        check_judge_function(run)
    with pytest.raises(ValueError, match="judge_func: is a int, which is not callable"):
        check_judge_function(3)  # type: ignore[arg-type]


@pytest.mark.whole
def test_closures_get_the_raw_record_and_are_judged(tuned: Tune) -> None:
    seen: list[dict[str, Any]] = []

    async def closure(logger: Any, task: dict[str, Any], model: Any) -> WorkflowOutput:
        seen.append(dict(task))
        logger.info("hello")
        return WorkflowOutput(response=await ask(task["question"]), metrics={"calls": 1.0})

    found = tuned(workflow_func=closure, judge_func=lambda task, response: JudgeOutput(reward=0.25))
    assert [e.reward for e in found.episodes(step=1)] == [0.25] * 4
    assert found.metrics[0]["judge/calls"] == 1.0
    assert all(record in RECORDS for record in seen) and len(seen) == 4


def test_a_judge_can_be_sent_to_other_processes() -> None:
    made = TunerJudge(function=judge, models={"critic": {"base_url": "http://x/v1", "model": "m"}})
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.whole
def test_without_a_judge_the_workflows_own_reward_counts(tuned: Tune) -> None:
    async def rewarded(task: dict[str, Any], model: Any) -> WorkflowOutput:
        return WorkflowOutput(response=await ask(task["question"]), reward=0.5)

    assert tuned(workflow_func=rewarded, judge_func=None).metrics[0]["reward"] == 0.5


@pytest.mark.whole
def test_classes_of_agentscope_1_are_accepted_and_only_what_is_set_counts(tuned: Tune) -> None:
    class AgentScopes(BaseModel):
        path: str
        total_steps: int | None = None
        total_epochs: int = 1
        name: str | None = None

    AgentScopes.__name__ = "DatasetConfig"
    theirs: Any = AgentScopes(path="data.jsonl", total_steps=2)
    assert ours(DatasetConfig, theirs).model_fields_set == {"path", "total_steps"}
    assert len(tuned(train_dataset=theirs).metrics) == 2


# ------------------------------------------------------------------ each field


@pytest.mark.whole
def test_the_fields_of_the_algorithm(tuned: Tune) -> None:
    fields = {
        "algorithm_type": "rloo",
        "learning_rate": 2e-3,
        "group_size": 3,
        "batch_size": 1,
        "save_interval_steps": 2,
        "eval_interval_steps": 1,
    }
    found = tuned(algorithm=fields, train={"total_steps": 3}, eval_dataset=DatasetConfig(path="data.jsonl"))
    assert found.job["train"]["algorithm"] == {"type": "rloo"}
    assert {m["learning_rate"] for m in found.metrics} == {2e-3}
    episodes = found.episodes(step=2, phase=None)
    assert len(episodes) == 3 and len({e.task for e in episodes}) == 1
    assert [path.name for path in found.checkpoints] == ["step_000002", "step_000003"]
    assert all("validation/reward" in m for m in found.metrics)
    assert found.before["episodes"] == found.after["episodes"] == 4


@pytest.mark.whole
def test_epochs_and_steps_of_the_data(tuned: Tune) -> None:
    epochs = tuned(train={"total_steps": None, "total_epochs": 2}, algorithm={"batch_size": 5})
    assert len(epochs.metrics) == 2  # 2 times 4 records, 5 a step
    assert len(tuned(train={"total_steps": 1, "total_epochs": 9}).metrics) == 1


def test_name_and_split_of_the_data(folder: Path) -> None:
    parts = folder / "set"
    parts.mkdir()
    for name in ("easy", "hard"):
        for split in ("train", "test"):
            (parts / f"{name}-{split}.jsonl").write_text(json.dumps({"question": f"{name} {split}"}))
    (parts / "README.md").write_text(
        "---\nconfigs:\n"
        + "".join(
            f"- config_name: {name}\n  data_files:\n"
            + "".join(f"  - split: {s}\n    path: {name}-{s}.jsonl\n" for s in ("train", "test"))
            for name in ("easy", "hard")
        )
        + "---\n"
    )
    read = DatasetConfig(path="./set", name="hard", split="test").preview()
    assert read == [{"question": "hard test"}]
    said = error_of(lambda: DatasetConfig(path="./set", name="hard", split="dev").preview())
    assert "dev" in said


def test_a_preview_prints_the_first_records(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "words.jsonl").write_text('{"word": "süß"}\n{"word": "b"}\n')
    assert DatasetConfig(path="words.jsonl").preview(1) == [{"word": "süß"}]
    assert capsys.readouterr().out == '[\n  {\n    "word": "süß"\n  }\n]\n'


@pytest.mark.whole
def test_lengths_and_temperature_of_the_model(tuned: Tune) -> None:
    found = tuned(model={"max_tokens": 5, "temperature": 0.5}, algorithm={"group_size": 8})
    lines = [line for e in found.episodes(step=1) for line in e.timelines]
    assert max(line.mask.sum() for line in lines) == 5
    for section in ("rollout", "eval"):
        assert found.job[section]["sampling"]["temperature"] == 0.5
    prompt = max(len(line.token_ids) - line.mask.sum() for line in lines)
    short = tuned(model={"max_model_len": int(prompt) + 3}, algorithm={"group_size": 8})
    assert max(len(line.token_ids) for e in short.episodes(step=1) for line in e.timelines) == prompt + 3


@pytest.mark.whole
def test_thinking_is_the_chat_templates_variable(tuned: Tune) -> None:
    for thinks in (True, False):
        found = tuned(model={"enable_thinking": thinks})
        (line,) = found.episodes(step=1)[0].timelines
        assert ("<think>\n\n</think>" in line.text.partition("assistant\n")[2][:20]) is not thinks


def test_vllms_parsers_are_not_needed_whatever_the_model(caplog: pytest.LogCaptureFixture) -> None:
    keys_of({"tool_call_parser": "hermes", "reasoning_parser": None}, "local")
    keys_of({"tool_call_parser": None}, "local")
    assert caplog.messages == []
    keys_of({"tool_call_parser": "kimi_k2", "reasoning_parser": "qwen3"}, "verl")
    assert [message.partition(": no effect of ")[0::2] for message in caplog.messages] == [
        (
            f"TunerModelConfig.{field}",
            f"{value}: answers are read as the model's chat template writes them, whatever the parser",
        )
        for field, value in (("tool_call_parser", "kimi_k2"), ("reasoning_parser", "qwen3"))
    ]


def keys_of(model: dict[str, Any], backbone: str) -> dict[str, Any]:
    keys = JobKeys(job_layers(None))
    model_keys(keys, TunerModelConfig(**{"model_path": "m", "max_model_len": 9, **model}), backbone)
    return keys.values


def test_engines_are_for_verl() -> None:
    found = keys_of({"tensor_parallel_size": 2, "inference_engine_num": 3}, "verl")
    assert found["backbone.verl.actor_rollout_ref.rollout.tensor_model_parallel_size"] == 2
    assert found["backbone.verl.trainer.n_gpus_per_node"] == 6
    assert not [key for key in keys_of({}, "verl") if key.startswith("backbone.")]


@pytest.mark.whole
def test_engines_and_gpus_warn_where_they_have_no_meaning(
    tuned: Tune, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = {"tensor_parallel_size": 2, "inference_engine_num": 4}
    tuned(
        model=many, auxiliary_models={"a": TunerModelConfig(model_path=str(tiny), max_model_len=99, **many)}
    )
    said = [record.getMessage() for record in caplog.records if "TunerModelConfig" in record.getMessage()]
    assert said[0].startswith(
        "TunerModelConfig.tensor_parallel_size: no effect of 2: the backbone 'local' samples"
    )
    assert said[1].startswith("TunerModelConfig.inference_engine_num: no effect of 4: the backbone 'local'")
    assert said[3].startswith(
        "TunerModelConfig.inference_engine_num: no effect of 4: an auxiliary model is served"
    )


def test_the_hosted_trainer_gets_its_fields() -> None:
    fields = {
        "rank": 4,
        "seed": 7,
        "train_mlp": False,
        "train_attn": True,
        "train_unembed": False,
        "base_url": "http://x",
    }
    found = keys_of({"tinker_config": TinkerConfig(**fields)}, "tinker")
    section = {key.removeprefix("backbone.tinker."): v for key, v in found.items() if "tinker" in key}
    assert found["run.seed"] == fields.pop("seed") and section == fields
    layers = job_layers(None)
    lay_sets(layers, {"backbone": "tinker", **found})
    assert build_backbone(layers).model_dump(include=fields.keys()) == fields
    assert "run.seed" not in keys_of({"tinker_config": TinkerConfig()}, "tinker")
    said = error_of(lambda: keys_of({"tinker_config": TinkerConfig()}, "local"))
    assert said.startswith("TunerModelConfig.tinker_config: trains at Tinker, but backbone='local'")


@pytest.mark.parametrize("name", sorted({*SAME, "grpo", "dapo", "cispo"}))
def test_algorithms_have_the_names_of_trinity_and_ours(name: str) -> None:
    assert algorithm(name) == SAME.get(name, name)


@pytest.mark.parametrize("name", sorted({*WHY, *NEAREST, "grop"} - {"reinforce"}))
def test_an_algorithm_that_is_missing_is_refused_with_the_nearest_one(name: str) -> None:
    said = error_of(lambda: algorithm(name))
    assert said.startswith(f"AlgorithmConfig.algorithm_type: {name!r}")
    nearest = re.search(r"(?:The nearest algorithm is|did you mean) '([^']+)'", said)
    assert nearest and algorithm(nearest[1]) == nearest[1]


@pytest.mark.whole
def test_fields_lie_over_the_job_file_and_their_defaults_below_it(tuned: Tune, folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "rollout: {group_size: 3}\ntrain: {batch_size: 1, keep_last: 7}\nrun: {dir: elsewhere}\n"
    )
    found = tuned(config_path="job.yaml", algorithm=AlgorithmConfig(batch_size=2))
    assert found.job["train"]["keep_last"] == 7 and found.job["train"]["learning_rate"] == 1e-6
    assert len(found.episodes(step=1)) == 6
    assert found.dir.parent == folder / "elsewhere"
    assert (found.experiment / "run").resolve() == found.dir


# ------------------------------------------------------------------ auxiliary models


@pytest.mark.whole
def test_auxiliary_models_answer_workflow_and_judge_and_are_not_trained(
    tuned: Tune, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def served(base_url: str, api_key: str, model: str, headers: Any, **options: Any) -> Any:
        async def answer(question: str) -> str:
            sent = {"authorization": f"Bearer {api_key}", **headers}
            async with httpx2.AsyncClient(headers=sent) as client:
                body = {"model": model, "messages": [{"role": "user", "content": question}]}
                reply = await client.post(f"{base_url}/chat/completions", json=body)
            asked.append((base_url, reply.json()["choices"][0]["message"]["content"]))
            return asked[-1][1]

        return answer

    async def with_help(task: dict[str, Any], model: Any, auxiliary_models: Any) -> WorkflowOutput:
        hint = await auxiliary_models["critic"]("help")
        return WorkflowOutput(response=await model(f"{task['question']} {hint}"))

    async def with_judge(task: dict[str, Any], response: Any, auxiliary_models: Any) -> JudgeOutput:
        return JudgeOutput(reward=len(await auxiliary_models["critic"](response)) % 2)

    monkeypatch.setattr("ajet_agentscope.chat_model", served)
    critic = TunerModelConfig(model_path=str(tiny), max_model_len=200, max_tokens=4, top_p=0.9)
    before = dict(os.environ)
    found = tuned(
        workflow_func=with_help,
        judge_func=with_judge,
        auxiliary_models={"critic": critic},
        model={"max_model_len": 250},
    )
    episode = found.episodes(step=1)[0]
    assert len(episode.messages) == 2 and len(episode.timelines) == 1
    assert found.job["targets"]["critic"]["frozen_model"]["type"] == "openai"
    assert len(asked) == 12 and len({url for url, _ in asked}) == 2  # the judge's own calls are not captured
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"policy": {}}, "auxiliary_models: 'policy': "),
        ({"a": {"tinker_config": TinkerConfig()}}, "TunerModelConfig.tinker_config: an auxiliary model"),
        ({"a": {"max_model_len": 999}}, "rollout.context_length: 999 tokens are more than the model's 256"),
    ],
)
def test_what_an_auxiliary_model_cannot_have_is_refused(
    tuned: Tune, tiny: Path, models: dict[str, Any], said: str
) -> None:
    configs = {
        name: TunerModelConfig(**{"model_path": str(tiny), "max_model_len": 99, **fields})
        for name, fields in models.items()
    }
    assert error_of(lambda: tuned(auxiliary_models=configs)).startswith(said)


# ------------------------------------------------------------------ the folder


@pytest.mark.whole
def test_the_folder_has_agentscopes_layout_and_nothing_twice(tuned: Tune, folder: Path) -> None:
    found = tuned(project_name="P", experiment_name="E", algorithm={"save_interval_steps": 1})
    experiment = folder / "checkpoints" / "P" / "E"
    assert found.experiment == experiment
    assert (experiment / "global_step_1").resolve() == found.checkpoint
    assert (experiment / "global_step_1" / "config.json").is_file()
    assert (experiment / "monitor" / "tensorboard").resolve() == found.dir / "tensorboard"
    links = [path for path in experiment.rglob("*") if path.is_symlink()]
    assert links and not any(os.path.isabs(os.readlink(link)) for link in links)
    assert found.dir.is_relative_to(experiment / "runs")


@pytest.mark.parametrize(("monitor", "field"), [("wandb", "project"), ("mlflow", "experiment")])
def test_a_monitor_gets_the_name_of_the_project(folder: Path, monitor: str, field: str) -> None:
    (folder / "job.yaml").write_text(f"run: {{loggers: [tensorboard, {{type: {monitor}, {field}: other}}]}}")
    tensorboard, named, layout = loggers_of(monitor, "P", folder, job_layers(folder / "job.yaml"))
    assert (tensorboard, named) == ({"type": "tensorboard"}, {"type": monitor, field: "P"})
    assert layout == {"type": "agentscope_layout", "folder": str(folder)}
    assert loggers_of(None, "P", folder, job_layers(None)) == [layout]


@pytest.mark.whole
def test_an_experiment_without_a_name_has_the_time_in_it(tuned: Tune, folder: Path) -> None:
    first, second = tuned().experiment, tuned().experiment
    assert first.parent == second.parent == folder / "checkpoints" / "AgentScope"
    assert first != second and first.name.startswith("Experiment-20")


@pytest.mark.whole
def test_an_experiment_that_exists_is_resumed_or_refused(tuned: Tune) -> None:
    first = tuned(experiment_name="E", resume=True)  # begins
    said = error_of(lambda: tuned(experiment_name="E"))
    assert said.startswith(f"experiment_name: {first.experiment} already exists. Pass resume=True")
    more = tuned(
        experiment_name="E", resume=True, train={"total_steps": 3}, algorithm={"save_interval_steps": 1}
    )
    assert more.dir == first.dir and [m["step"] for m in more.metrics] == [1, 2, 3]
    kept = {link.name for link in more.experiment.glob("global_step_*")}
    assert kept == {"global_step_2", "global_step_3"}  # train.keep_last
    assert "resume=True: give the experiment_name" in error_of(lambda: tuned(resume=True))
    assert "becomes the name of a folder" in error_of(lambda: tuned(project_name="a/b"))


def test_an_experiment_whose_run_is_elsewhere_is_kept_when_its_run_fails(tmp_path: Path) -> None:
    experiment, run = tmp_path / "experiment", tmp_path / "elsewhere"
    run.mkdir()
    (run / "episodes.jsonl").write_text("{}\n")
    with pytest.raises(AjetError), removed_if_nothing_runs(experiment):
        experiment.mkdir()
        (experiment / "run").symlink_to(run)
        raise AjetError("the disk is full")
    assert (experiment / "run").is_symlink()


# ------------------------------------------------------------------ errors


async def returns_a_float(task: Any, response: Any) -> Any:
    return 0.5


async def asks_for_another_column(task: Any, model: Any) -> Any:
    return WorkflowOutput(response=await ask(task["query"]))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"judge_func": returns_a_float}, "judge_func: returned a float; return JudgeOutput(reward=…)."),
        (
            {"workflow_func": asks_for_another_column},
            "task['query']: the data set has no such column; it has 'question', 'answer'.",
        ),
    ],
)
def test_a_mistake_that_every_episode_repeats_ends_the_run_at_once(
    tuned: Tune, arguments: dict[str, Any], said: str
) -> None:
    assert error_of(lambda: tuned(**arguments), ContractBroken).startswith(said)


@pytest.fixture
def without_tokenizer(tiny: Path, folder: Path) -> Iterator[str]:
    made = folder / "bare"
    made.mkdir()
    for name in ("config.json", "model.safetensors"):
        (made / name).symlink_to(tiny / name)
    yield str(made)


def test_a_model_without_a_tokenizer_is_refused(tuned: Tune, without_tokenizer: str) -> None:
    said = error_of(lambda: tuned(model={"model_path": without_tokenizer}), AjetError)
    assert said.startswith(f"TunerModelConfig.model_path (model) folder {without_tokenizer}: no tokenizer")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": {"top_p": 0.9}}, "TunerModelConfig.top_p: 0.9 removes tokens"),
        ({"model": {"temperature": 0}}, "TunerModelConfig.temperature: with 0"),
        (
            {"model": {"max_model_len": 999}},
            "TunerModelConfig.max_model_len (rollout.context_length): 999 tokens",
        ),
        (
            {"model": {"model_path": "./nowhere"}},
            "TunerModelConfig.model_path (model) ./nowhere: no such folder",
        ),
        (
            {"algorithm": {"algorithm_type": "grop"}},
            "AlgorithmConfig.algorithm_type: 'grop': unknown algorithm",
        ),
        ({"train_dataset": None}, "train_dataset: is missing"),
        (
            {"train_dataset": DatasetConfig(path=".", split=None)},
            "DatasetConfig.split: . is not a file; name the split",
        ),
        ({"train": {"path": "./no.jsonl"}}, "./no.jsonl: no such file"),
        (
            {"eval_dataset": DatasetConfig(path="data.jsonl", total_epochs=2)},
            "DatasetConfig.total_epochs: evaluation reads the data once",
        ),
        (
            {"eval_dataset": DatasetConfig(path="data.jsonl", total_steps=2)},
            "DatasetConfig.total_steps: evaluation reads the data once",
        ),
        (
            {"monitor_type": "tensorbord"},
            "monitor_type: 'tensorbord': no logger of this name is installed; did you",
        ),
        (
            {"monitor_type": "swanlab", "project_name": "my project"},
            "project_name (run.loggers.0.project): ",
        ),
        ({"backbone": "loca"}, "backbone: 'loca' is not installed; did you mean 'local'"),
        ({"config_path": "wrong.yaml"}, "wrong.yaml: trian: unknown key; did you mean 'train'"),
    ],
)
def test_mistakes_are_one_line_before_anything_runs(
    tuned: Tune, folder: Path, arguments: dict[str, Any], said: str
) -> None:
    (folder / "wrong.yaml").write_text("trian: {steps: 4}\n")
    assert error_of(lambda: tuned(**arguments)).startswith(said)
    assert not (folder / "checkpoints").exists()


# ------------------------------------------------------------------ names of AgentScope's releases


def test_names_of_older_releases_and_of_the_samples_are_there() -> None:
    from ajet_agentscope import tuner
    from ajet_agentscope.tuner.prompt_tune import PromptTuneConfig, tune_prompt

    assert (tuner.Algorithm, tuner.Dataset) == (AlgorithmConfig, DatasetConfig)
    assert tuner.TunerChatModel is TunerModelConfig
    assert (tuner.PromptTuneConfig, tuner.tune_prompt) == (PromptTuneConfig, tune_prompt)


def test_a_model_says_what_trinity_would_be_told() -> None:
    model = TunerModelConfig(model_path="m", max_model_len=9, inference_engine_num=4, reasoning_parser=None)
    told = model.get_config()
    assert (told["model_path"], told["max_model_len"], told["engine_num"]) == ("m", 9, 4)
    assert told["reasoning_parser"] is None and told["tool_call_parser"] == "hermes"
    assert TinkerConfig(rank=4).get_config() == TinkerConfig(rank=4).model_dump()


@pytest.mark.parametrize("nothing", ["", None])
def test_a_file_needs_neither_name_nor_split(folder: Path, nothing: str | None) -> None:
    assert DatasetConfig(path="data.jsonl", name=nothing, split=nothing).preview(4) == RECORDS
    (folder / "set").mkdir()
    said = error_of(lambda: DatasetConfig(path="set", split=nothing).preview())
    assert said == "DatasetConfig.split: set is not a file; name the split to read."
