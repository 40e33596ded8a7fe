"""Configuration files of Trinity-RFT as jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.job.config import JobConfig, Layers, all_keys
from ajet.job.prepare import prepare
from ajet.plugins import load_plugins
from ajet.types import ConfigError
from ajet_trinity_files.files import TrinityFile, job_values, trinity_file
from ajet_trinity_files.keys import EQUAL, NEAREST, SAME, TABLE, is_trinity
from tests.pages import page


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads a text or a tree as a file ``t.yaml`` of the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRINITY_CHECKPOINT_ROOT_DIR", raising=False)

    def call(content: str | dict[str, Any], backbone: str = "local") -> TrinityFile:
        text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
        if not is_trinity(yaml.safe_load(text)):
            text += "\ncluster: {}\n"
        Path("t.yaml").write_text(text)
        found = trinity_file(Path("t.yaml"), backbone)
        assert found is not None
        return found

    return call


def error_of(read: Any, content: str | dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as error:
        read(content)
    assert "\n" not in str(error.value)
    return str(error.value)


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    ("key", "value", "job"),
    [
        ("algorithm.repeat_times", 16, {"rollout.group_size": 16}),
        ("algorithm.optimizer.lr", "1e-6", {"train.learning_rate": 1e-6}),
        ("algorithm.optimizer.lr_warmup_steps", -1, {}),
        (
            "algorithm.policy_loss_fn_args.clip_range",
            0.1,
            {"train.algorithm.clip_low": 0.1, "train.algorithm.clip_high": 0.1},
        ),
        ("algorithm.kl_loss_fn", "none", {"train.kl": 0.0}),
        ("algorithm.kl_loss_fn", "k3", {"train.kl": 0.001}),
        ("algorithm.kl_loss_fn_args.kl_coef", 0.01, {"train.kl": 0.01}),
        ("algorithm.entropy_loss_fn_args.entropy_coef", 0.02, {"train.entropy": 0.02}),
        ("algorithm.bypass_old_logprobs", False, {"train.correction": "truncated"}),
        (
            "model.max_response_tokens",
            99,
            {"rollout.sampling.max_tokens": 99, "eval.sampling.max_tokens": 99},
        ),
        ("model.top_k", -1, {}),
        (
            "model.lora_configs",
            [{"lora_rank": 8, "target_modules": "q_proj"}],
            {
                "targets.policy.lora.rank": 8,
                "targets.policy.lora.alpha": 32,
                "targets.policy.lora.modules": ["q_proj"],
            },
        ),
        ("explorer.over_rollout.ratio", 0.2, {"rollout.oversample": 1.25}),
        ("explorer.runner_per_model", 16, {"rollout.concurrency": 16}),
        ("trainer.max_checkpoints_to_keep", 0, {"train.keep_last": 1_000_000}),
        ("trainer.save_interval", 0, {}),
        ("synchronizer.sync_offset", 1, {"train.asynchronous": True}),
        ("synchronizer.sync_offset", 0, {}),
        ("model.tinker.enable", True, {"backbone.name": "tinker"}),
    ],
)
def test_what_keys_set(read: Any, key: str, value: Any, job: dict[str, Any]) -> None:
    found = read(nested(key, value))
    assert found.values == job
    found.layers().job()


def test_a_schedule_ends_at_trinitys_share(read: Any) -> None:
    found = read("algorithm: {optimizer: {lr_scheduler_type: cosine}}")
    assert found.values == {"train.schedule": "cosine", "train.final_share": 0.01}
    assert read("algorithm: {optimizer: {min_lr_ratio: 0.5}}").values == {}


@pytest.mark.parametrize("name", sorted({*SAME, *EQUAL}))
def test_algorithms_become_installed_ones(read: Any, name: str) -> None:
    chosen = read({"algorithm": {"algorithm_type": name}}).values["train.algorithm"]
    assert ("algorithm", chosen) in load_plugins().classes


@pytest.mark.parametrize("name", sorted(NEAREST))
def test_other_algorithms_are_refused_with_the_nearest(read: Any, name: str) -> None:
    said = error_of(read, {"algorithm": {"algorithm_type": name}})
    assert (
        said
        == f"t.yaml: algorithm.algorithm_type: {name!r} is not in AgentJet. The nearest algorithm is {NEAREST[name]!r}."
    )
    assert read({"algorithm": {"algorithm_type": NEAREST[name]}}).values


def test_where_the_file_is_silent_training_is_as_in_trinity(read: Any) -> None:
    job = read("algorithm: {algorithm_type: grpo}").full_layers().job()
    assert (job.train.learning_rate, job.train.weight_decay, job.train.kl) == (1e-6, 0.01, 0.001)
    assert (job.train.batch_size, job.rollout.timeout, job.eval.every) == (1, 1800, 100)
    assert read("algorithm: {algorithm_type: raft}").full_layers().job().train.kl == 0
    job = read("buffer: {batch_size: 4}").full_layers().job()
    assert (job.train.algorithm["type"], job.rollout.group_size, job.train.batch_size) == ("ppo", 1, 4)


def test_keys_without_effect_are_named_once_for_each_reason(read: Any) -> None:
    found = read(
        "cluster: {node_num: 1, gpu_per_node: 8}\nexplorer: {rollout_model: {engine_num: 4}, db_url: x}"
    )
    engines, kept = found.warnings()
    assert engines.startswith(
        "t.yaml: no effect of cluster.{node_num,gpu_per_node}, explorer.rollout_model.engine_num: the backbone"
    )
    assert kept.startswith("t.yaml: no effect of explorer.db_url: AgentJet keeps episodes itself")


def test_gpus_are_keys_of_verl_where_verl_trains(read: Any) -> None:
    found = read(
        "cluster: {node_num: 2, gpu_per_node: 8}\nexplorer: {rollout_model: {tensor_parallel_size: 4}}",
        "verl",
    )
    section = found.full_layers().job().backbone.section("verl")
    assert section["trainer"] == {"nnodes": 2, "n_gpus_per_node": 8}
    assert section["actor_rollout_ref"]["rollout"] == {"tensor_model_parallel_size": 4}
    assert found.full_layers().job().backbone.name == "verl"
    (order,) = found.warnings()
    assert (
        "data_selector (by default sequential): the backbone `verl` takes the tasks of each epoch in" in order
    )


@pytest.mark.parametrize("selector", [{}, {"selector_type": "shuffle"}])
def test_a_file_is_prepared_for_verl_which_takes_tasks_in_a_random_order(
    read: Any, selector: dict[str, Any]
) -> None:
    Path("flow.py").write_text("async def run(task):\n    return 1.0\n")
    found = read(selecting(selector) | {"algorithm": {"algorithm_type": "grpo"}}, "verl")
    layers = Layers()
    layers.add({**job_values(found, len), "workflow": "flow.py:run"}, "t.yaml", Path.cwd())
    assert prepare(layers, read_tasks=False).config.task.selector.type == "shuffle"  # type: ignore[union-attr]


def test_a_selector_that_verl_cannot_honour_is_refused_by_its_key(read: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^t\.yaml: buffer\.\S+\.data_selector\.selector_type: .*'verl' takes"
    ):
        read(selecting({"selector_type": "sequential"}), "verl")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "buffer: {batch_sise: 4}",
            "buffer.batch_sise: Trinity-RFT has no such key; did you mean 'buffer.batch_size'",
        ),
        ("cluster: {}\nbuffer: 4", "buffer: expected a section"),
        ("buffer: {}\ntrian: 1", "trian: Trinity-RFT has no such key"),
        ("mode: fast\nbuffer: {}", "mode: 'fast' is not a mode of Trinity-RFT. Known: both"),
        (
            "algorithm: {algorithm_type: grop}",
            "algorithm.algorithm_type: 'grop' is not an algorithm of Trinity-RFT; did you",
        ),
        (
            "algorithm: {kl_loss_fn_args: {kl_coef: much}}",
            "algorithm.kl_loss_fn_args.kl_coef: expected a number, found 'much'",
        ),
        ("model: {repetition_penalty: 1.2}", "model.repetition_penalty: it would change"),
        ("stages: [{stage_name: one}]\nbuffer: {}", "stages: write a file for each stage"),
        ("explorer: {env_vars: {A: b}}", "explorer.env_vars: set these variables"),
        (
            "buffer: {explorer_input: {tasksets: [{path: a}, {path: b}]}}",
            "buffer.explorer_input.taskset: AgentJet reads one task set",
        ),
        ("buffer: {explorer_input: {tasksets: 3}}", "buffer.explorer_input.tasksets: expected a list"),
        (
            "buffer: {explorer_input: {taskset: {pth: a}}}",
            "buffer.explorer_input.taskset.pth: Trinity-RFT has no such key",
        ),
        ("buffer: {explorer_input: {taskset: {split: a}}}", "buffer.explorer_input.taskset.path: is missing"),
        (
            "buffer: {explorer_input: {taskset: {path: a, storage_type: sql}}}",
            "buffer.explorer_input.taskset.storage_type: a task",
        ),
        (
            "buffer: {explorer_input: {taskset: {path: a, task_selector: {selector_type: difficult}}}}",
            "buffer.explorer_input.taskset.task_selector.selector_type: 'difficult' is not a selector of Trinity-RFT; did",
        ),
        (
            "buffer: {explorer_input: {taskset: {path: a, data_selector: {selector_type: difficulty_based, kwargs: {lam: 1}}}}}",
            "buffer.explorer_input.taskset.data_selector.kwargs.lam: 'difficulty_based' has no such argument; did you mean 'lamb'",
        ),
        (
            "buffer: {explorer_input: {taskset: {path: a, data_selector: {kwargs: {lamb: 1}}}}}",
            "buffer.explorer_input.taskset.data_selector.kwargs.lamb: 'sequential' has no such argument",
        ),
        (
            "buffer: {explorer_input: {taskset: {path: a, data_selector: {kwargs: [lamb]}}}}",
            "buffer.explorer_input.taskset.data_selector.kwargs: expected a mapping, found ['lamb']",
        ),
        (
            "buffer: {explorer_input: {taskset: {path: a, data_selector: {feature_keys: rate}}}}",
            "buffer.explorer_input.taskset.data_selector.feature_keys: expected a list of fields, found 'rate'",
        ),
        (
            "model: {lora_configs: [{lora_rnk: 8}]}",
            "model.lora_configs[0].lora_rnk: Trinity-RFT has no such key; did you mean 'lora_rank'",
        ),
        (
            "model: {lora_configs: [{lora_dropout: 0.1}]}",
            "model.lora_configs[0].lora_dropout: Trinity-RFT has no such key",
        ),
        (
            "model: {lora_configs: [{path: old}]}",
            "model.lora_configs[0].path: AgentJet trains a new adapter. Remove the key",
        ),
        ("name: ../../x\nbuffer: {}", "name: '../../x' becomes the name of a folder; leave out slashes"),
        (
            "data_processor: {experience_pipeline: {operators: [{name: pass_rate_calculator}, {name: other}]}}\nbuffer: {}",
            "data_processor.experience_pipeline.operators: 'other' is not in AgentJet",
        ),
        ("explorer: {auxiliary_models: [{name: a}]}", "explorer.auxiliary_models[0].model_path: is missing"),
        (
            "model: {model_path: '${oc.env:NO_SUCH_VARIABLE}'}",
            "model.model_path: the environment variable NO_SUCH_VARIABLE",
        ),
        (
            "model: {model_path: '${model.nothing}'}",
            "model.model_path: ${model.nothing} names no value of this file",
        ),
        (
            "model: {model_path: '${model.model_path}'}",
            "model.model_path: '${model.model_path}' refers to itself",
        ),
        ("model: {model_path: '${oc.decode:x}'}", "model.model_path: ${oc.decode:x}: AgentJet knows"),
    ],
)
def test_what_is_wrong_or_impossible_is_refused_by_its_name(read: Any, content: str, said: str) -> None:
    assert error_of(read, content).startswith(f"t.yaml: {said}")


def selecting(selector: dict[str, Any]) -> dict[str, Any]:
    tasks = {"path": "d", "data_selector": selector}
    return {"buffer": {"total_steps": 1, "explorer_input": {"taskset": tasks}}}


@pytest.mark.parametrize(
    ("selector", "ours"),
    [
        ({}, {"type": "sequential"}),
        ({"selector_type": "sequential"}, {"type": "sequential"}),
        ({"selector_type": "shuffle", "seed": 7}, {"type": "shuffle"}),
        ({"selector_type": "random"}, {"type": "shuffle"}),
        (
            {"selector_type": "offline_easy2hard", "feature_keys": ["rate"]},
            {"type": "easy_to_hard", "pass_rates": ["rate"]},
        ),
        (
            {
                "selector_type": "difficulty_based",
                "feature_keys": ["weak", "strong"],
                "kwargs": {"m": 8, "lamb": 0.1, "tau": 0, "do_sample": True},
            },
            {
                "type": "difficulty",
                "pass_rates": ["weak", "strong"],
                "forgetting": 0.1,
                "known_weight": 0.2,
                "target_pass_rate": 1.0,
                "softmax_temperature": 0,
                "thompson_sampling": True,
            },
        ),
    ],
)
def test_the_selector_of_tasks(read: Any, selector: dict[str, Any], ours: dict[str, Any]) -> None:
    job = job_values(read(selecting(selector)), lambda reader: 1)
    assert job["task"]["selector"] == ours
    assert job.get("run", {}).get("seed") == selector.get("seed")


def test_what_means_nothing_is_accepted(read: Any) -> None:
    found = read(
        "algorithm: {kl_penalty_fn: none, policy_loss_fn: ppo, rollout_correction: null}\nstages: []\n"
        "model: {repetition_penalty: 1.0, critic_model_path: ''}\nexplorer:\n"
    )
    assert not found.values and not found.warnings()


def test_variables_and_references_are_values(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", "a-model")
    monkeypatch.setenv("SIZE", "12")
    found = read(
        "model: {model_path: '${oc.env:MODEL,other}', max_model_len: '${oc.env:LENGTH,${oc.env:SIZE}}'}\n"
        "project: 'of-${model.model_path}'\nbuffer: {batch_size: '${oc.env:SIZE}'}"
    )
    assert found.values == {"model": "a-model", "rollout.context_length": 12, "train.batch_size": 12}
    assert found.project == "of-a-model"


def test_the_variable_of_trinity_is_the_root_of_a_silent_file(
    read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read("buffer: {}").folder == "checkpoints/Trinity-RFT/rft"
    monkeypatch.setenv("TRINITY_CHECKPOINT_ROOT_DIR", "/kept")
    assert read("project: p\ngroup: g\nname: n\nbuffer: {}").folder == "/kept/p/g/n"
    assert read("checkpoint_root_dir: own\nbuffer: {}").folder == "own/Trinity-RFT/rft"


def test_a_job_has_tasks_fields_steps_folder_and_logger(read: Any) -> None:
    found = read(
        "project: p\nname: n\nbuffer:\n  batch_size: 4\n  total_epochs: 3\n  explorer_input:\n"
        "    taskset: {path: d, subset_name: main, format: {prompt_key: question, response_key: answer}, workflow_args: {a: 1}}\n"
        "    eval_tasksets: [{path: e, split: test, repeat_times: 4, rollout_args: {temperature: 0.1, n: 1}}]\n"
        "monitor: {monitor_type: wandb}\n"
    )
    values = job_values(found, lambda reader: {"d": 10}[reader["path"]])
    job = JobConfig(**values)
    assert job.task and job.task.validation
    named = {"id": None, "query": "question", "answer": "answer", "messages": None}
    assert job.task.reader == {
        "type": "huggingface",
        "path": "d",
        "split": "train",
        "subset": "main",
        **named,
    }
    assert (job.task.validation["split"], job.task.validation["query"]) == ("test", None)
    assert (job.eval.repeats, job.eval.sampling.temperature, job.rollout.sampling.temperature) == (
        4,
        0.1,
        1.0,
    )
    assert job.train.steps == 8, "10 records three times, in batches of 4"
    assert job.run.dir == "checkpoints/p/n" and job.run.loggers == ({"type": "wandb", "project": "p"},)
    assert "workflow_args: `ajet run` gives a workflow the task alone" in found.warnings()[-1]


def test_tasks_that_cannot_be_counted_are_a_warning(read: Any) -> None:
    def fails(reader: Any) -> int:
        raise ConfigError("the hub cannot be reached.")

    found = read("buffer: {explorer_input: {taskset: {path: d}}}")
    assert "steps" not in job_values(found, fails)["train"]
    assert found.warnings()[-1].endswith(
        "cannot be counted here (the hub cannot be reached.) Set train.steps."
    )
    with pytest.raises(ConfigError, match=r"taskset: is missing\. Name the tasks"):
        job_values(read("buffer: {}"), fails)


def test_a_bad_value_is_an_error_that_names_both_keys(read: Any) -> None:
    with pytest.raises(ConfigError, match=r"^t\.yaml \(algorithm\.repeat_times\): rollout\.group_size"):
        read("algorithm: {repeat_times: many}").full_layers().job()


@pytest.mark.parametrize("size", ["abc", 0])
def test_a_bad_batch_size_is_an_error_before_tasks_are_counted(read: Any, size: Any) -> None:
    found = read({"buffer": {"batch_size": size, "explorer_input": {"taskset": {"path": "d"}}}})
    with pytest.raises(ConfigError, match=r"^t\.yaml \(buffer\.batch_size\): train\.batch_size"):
        job_values(found, lambda reader: 4)


def test_keys_of_task_sets_and_adapters_without_effect_are_named(read: Any) -> None:
    found = read(
        "buffer: {explorer_input: {taskset: {path: d, repeat_times: 4, data_selector: {feature_keys: [rate]}},\n"
        "  eval_tasksets: [{path: e, data_selector: {selector_type: nonsense, seed: 5}}]}}\n"
        "model: {lora_configs: [{lora_dtype: float16}]}"
    )
    keys = " ".join(found.warnings())
    for key in ("taskset.repeat_times", "eval_tasksets.data_selector.{selector_type,seed}", "[0].lora_dtype"):
        assert f"{key}: " in keys
    assert "taskset.data_selector.feature_keys: the selector 'sequential' reads no fields" in keys
    assert "run.seed" not in found.values


@pytest.mark.parametrize(
    ("text", "trinitys"),
    [
        ("model: {model_path: m}", True),
        ("synchronizer: {sync_method: nccl}", True),
        ("model: starter\ntrain: {steps: 1}", False),
        ("algorithm: grpo", False),
        ("services: {x: {command: [a]}}", False),
        ("workflow: a.py:run\ntrainer: {steps: 3}", False),
        ("algorithm: {algorithm_type: grpo}\ntrainer: {save_interval: 3}", True),
        ("algorithm: {adv_estimator: grpo}\ntrainer: {nnodes: 1}\nactor_rollout_ref: {}", False),
    ],
)
def test_which_files_are_trinitys(text: str, trinitys: bool) -> None:
    assert is_trinity(yaml.safe_load(text)) == trinitys


def test_every_key_of_the_job_in_the_table_exists() -> None:
    known = {key.key for key in all_keys()} | {
        "train.algorithm",
        "backbone.name",
        "rollout.sampling.temperature",
    }
    fields = {
        name
        for kind, found in load_plugins().classes.items()
        if kind[0] == "algorithm"
        for name in found.cls.model_fields
    }

    def exists(key: str) -> bool:
        algorithm = key.removeprefix("train.algorithm.")
        free = ("backbone.", "plugins.online.", "targets.", "rollout.chat_template.")
        return key in known or (algorithm != key and algorithm in fields) or key.startswith(free)

    assert [key for rule in TABLE.values() for key in rule.keys if not exists(key)] == []


def test_a_loss_of_trinitys_own_and_normalization_over_the_batch_are_named_as_without_effect(
    read: Any,
) -> None:
    found = read(
        "algorithm: {algorithm_type: multi_step_grpo, policy_loss_fn: rec, policy_loss_fn_args: {epsilon_low: 0.2, clip_mode: ring},"
        " advantage_fn_args: {std_cal_level: batch}}"
    )
    assert found.values == {"train.algorithm": "grpo"}
    loss, level = found.warnings()
    assert (
        "algorithm.policy_loss_fn, algorithm.policy_loss_fn_args.{epsilon_low,clip_mode}: each algorithm"
        in loss
    )
    assert "algorithm.advantage_fn_args.std_cal_level: AgentJet normalizes over the group" in level
    assert not read("algorithm: {policy_loss_fn: ppo, advantage_fn_args: {std_cal_level: group}}").unused


def test_what_the_file_says_of_the_engine_is_stronger_than_what_it_says_of_the_model(read: Any) -> None:
    found = read(
        "explorer: {rollout_model: {max_model_len: 64, temperature: 0.7}}\nmodel: {max_model_len: 32, top_p: 0.9}"
    )
    sampling = {
        f"{section}.sampling.{name}": value
        for section in ("rollout", "eval")
        for name, value in (("temperature", 0.7), ("top_p", 0.9))
    }
    assert found.values == {"rollout.context_length": 64, **sampling}


def test_the_page_has_every_key_that_sets_a_key_of_the_job() -> None:
    trinitys = page("plugins/migrate/KEYS.md").partition("## Keys of the earlier AgentJet")[0]
    rows = [line for line in trinitys.splitlines() if line.startswith("|")]
    for key, rule in TABLE.items():
        if rule.only != "online":
            assert not rule.keys or any(
                f"`{key}`" in row and all(f"`{k}`" in row for k in rule.keys) for row in rows
            ), key
