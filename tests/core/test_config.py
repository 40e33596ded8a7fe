"""The job's layers: short forms, provenance, errors with the nearest name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ajet.job.config import JobConfig, Layers, explain, parse_set
from ajet.runs.runtime import evaluation_policy
from ajet.types import ConfigError

HERE = Path("/here")


def layers(*trees: dict[str, Any]) -> Layers:
    """Trees laid over each other, from `1`, `2`, …"""
    made = Layers()
    for number, tree in enumerate(trees, 1):
        made.add(tree, str(number), HERE / str(number))
    return made


def refused(tree: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        layers(tree).job()
    return str(caught.value)


def test_an_empty_job_is_all_defaults() -> None:
    assert layers().job() == JobConfig()


def test_a_misspelt_key_is_an_error_with_the_nearest_name_and_its_source() -> None:
    said = refused({"train": {"learning_rat": 1.0}})
    assert said.startswith("1: train.learning_rat: unknown key; did you mean 'learning_rate'. Known: ")


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("train.max_steps", "steps"),
        ("train.beta", "kl"),
        ("rollout.num_generations", "group_size"),
        ("train.num_generations", "rollout.group_size"),
    ],
)
def test_a_key_of_trl_is_an_error_with_ours(key: str, ours: str) -> None:
    section, _, name = key.partition(".")
    assert f"{key}: unknown key; did you mean {ours!r}" in refused({section: {name: 4}})


def test_a_misspelt_section_is_an_error_with_the_nearest_name() -> None:
    assert "1: workflw: unknown key; did you mean 'workflow'" in refused({"workflw": "x"})


def test_a_wrong_value_names_key_value_and_source() -> None:
    assert refused({"train": {"steps": "many"}}).startswith("1: train.steps: ")
    assert "'many'" in refused({"train": {"steps": "many"}})


def test_all_wrong_keys_are_told_at_once_each_once() -> None:
    tree = {
        "train": {"steps": "many", "learning_rat": 1.0},
        "rollout": {"timeout": "soon"},
        "prompts": 3,
        "trian": {},
        "targets": {"policy": {"agents": 3}},
    }
    said = refused(tree)
    for key in (
        "train.steps",
        "train.learning_rat",
        "rollout.timeout",
        "prompts.",
        "trian",
        "targets.policy.agents",
    ):
        assert said.count(f"{key}: ") + said.count(f"{key}dict") == 1, (key, said)


def test_a_key_that_stands_elsewhere_is_named_also_below_targets() -> None:
    assert "did you mean 'targets.NAME.lora.rank'" in refused({"lora": {"rank": 8}})
    assert "did you mean 'targets.NAME.lora.rank'. Known: agents, " in refused(
        {"targets": {"lora": {"rank": 8}}}
    )


@pytest.mark.parametrize("where", ["{}", "train.{}"])
def test_a_key_of_a_backbone_is_named_where_it_stands(where: str) -> None:
    pytest.importorskip("ajet_local")
    layers = Layers()
    layers.set(where.format("device"), "cuda", "--set", Path.cwd())
    with pytest.raises(ConfigError, match=r"unknown key; did you mean 'backbone\.local\.device'"):
        layers.job()


@pytest.mark.parametrize("key", ["save_every", "learning_rate", "max_timelines"])
def test_true_is_no_number(key: str) -> None:
    assert f"1: train.{key}: expected a number (found True)" in refused({"train": {key: True}})


@pytest.mark.parametrize("key", ["learning_rate", "max_grad_norm"])
def test_nan_is_no_number(key: str) -> None:
    assert f"1: train.{key}: expected a number (found nan)" in refused({"train": {key: float("nan")}})


def test_an_array_is_no_number() -> None:
    assert "input should be a valid number (found array([1., 2.]))" in refused(
        {"train": {"learning_rate": np.array([1.0, 2.0])}}
    )


@pytest.mark.parametrize("judge", [["exact", "math"], ("exact",)])
def test_a_list_of_judges_is_refused_with_the_one_that_adds_them_up(judge: Any) -> None:
    assert "{type: combine, parts: {" in refused({"judge": judge})


def test_the_strongest_layer_wins_and_is_the_source() -> None:
    made = layers({"train": {"steps": 1, "batch_size": 2}}, {"train": {"steps": 3}})
    assert (made.job().train.steps, made.job().train.batch_size) == (3, 2)
    assert [made.source_of(f"train.{k}") for k in ("steps", "batch_size", "keep_last")] == [
        "2",
        "1",
        "default",
    ]
    assert made.base_of("train.steps") == HERE / "2"


@pytest.mark.parametrize(
    ("tree", "long"),
    [
        ({"judge": "math"}, {"judge": {"type": "math"}}),
        ({"backbone": "debug"}, {"backbone": {"name": "debug"}}),
        ({"train": {"algorithm": "grpo"}}, {"train": {"algorithm": {"type": "grpo"}}}),
        (
            {"task": {"reader": "a.jsonl", "validation": "b.jsonl"}},
            {
                "task": {
                    "reader": {"type": "jsonl", "path": "a.jsonl"},
                    "validation": {"type": "jsonl", "path": "b.jsonl"},
                }
            },
        ),
    ],
)
def test_a_short_form_is_its_long_form(tree: dict[str, Any], long: dict[str, Any]) -> None:
    assert layers(tree).job() == layers(long).job() == JobConfig(**tree)


def test_a_field_set_over_a_short_form_keeps_it() -> None:
    made = layers(
        {"task": {"reader": "a.jsonl"}, "judge": "math"},
        {"task": {"reader": {"limit": 3}}, "judge": {"x": 1}},
    )
    job = made.job()
    assert job.task and job.task.reader == {"type": "jsonl", "path": "a.jsonl", "limit": 3}
    assert job.judge == {"type": "math", "x": 1}
    assert (made.source_of("judge.type"), made.source_of("judge.x")) == ("1", "2")


def test_a_validation_without_a_type_is_the_reader_with_other_fields() -> None:
    reader = {"type": "jsonl", "path": "a.jsonl", "query": "question"}
    made = layers({"task": {"reader": reader}}, {"task": {"validation": {"path": "b.jsonl"}}})
    job = made.job()
    assert job.task and job.task.validation == {**reader, "path": "b.jsonl"}
    assert made.base_of("task.validation.query") == HERE / "1"
    assert made.base_of("task.validation.path") == HERE / "2"


def test_a_short_form_over_a_long_one_replaces_it_with_its_sources() -> None:
    made = layers({"judge": {"type": "exact", "ignore_case": True}}, {"judge": "math"})
    assert made.job().judge == {"type": "math"}
    assert made.source_of("judge.type") == "2"
    assert made.source_of("judge") == "2"


def test_switching_the_backbone_keeps_the_keys_of_all_backbones() -> None:
    made = layers(
        {"backbone": {"name": "local", "local": {"threads": 2}, "verl": {"any": 1}}}, {"backbone": "debug"}
    )
    backbone = made.job().backbone
    assert (backbone.name, backbone.section("local"), backbone.section("verl")) == (
        "debug",
        {"threads": 2},
        {"any": 1},
    )
    assert (made.source_of("backbone.name"), made.source_of("backbone.local.threads")) == ("2", "1")


@pytest.mark.parametrize(
    ("text", "seconds"), [("300s", 300), ("5m", 300), ("1h", 3600), ("250ms", 0.25), (7, 7), ("7", 7)]
)
def test_durations_have_units(text: object, seconds: float) -> None:
    assert layers({"rollout": {"timeout": text}}).job().rollout.timeout == seconds


@pytest.mark.parametrize("text", ["5 parsecs", "-3s", 0])
def test_what_is_no_duration_is_refused(text: object) -> None:
    assert "rollout.timeout: " in refused({"rollout": {"timeout": text}})


@pytest.mark.parametrize("sampling", [{"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.1}])
def test_truncated_sampling_is_trained_exactly_unless_the_job_says_otherwise(
    sampling: dict[str, Any],
) -> None:
    ((name, value),) = sampling.items()
    settings = layers({"rollout": {"sampling": sampling}}).job().rollout.sampling
    assert settings.exact and settings.truncating == f"{name}={value}"
    allowed = layers({"rollout": {"sampling": {**sampling, "allow_truncated": True}}}).job()
    assert not allowed.rollout.sampling.exact


def test_validation_samples_with_all_that_eval_says() -> None:
    asked = {"top_p": 0.9, "top_k": 50, "min_p": 0.1, "max_tokens": 9}
    job = SimpleNamespace(config=layers({"eval": {"sampling": asked}}).job())
    policy = evaluation_policy(cast(Any, job), 0.5)
    assert {name: getattr(policy, name) for name in asked} == asked
    assert (policy.training, policy.temperature) == (False, 0.5)


def test_set_reads_its_value_as_yaml() -> None:
    assert parse_set("a.b=3") == ("a.b", 3)
    assert parse_set("a.b=[1, x]") == ("a.b", [1, "x"])
    assert parse_set("a.b=k=v") == ("a.b", "k=v")
    assert parse_set("a.b={") == ("a.b", "{")


def test_explain_knows_every_key_and_the_nearest_of_an_unknown_one() -> None:
    assert explain("train.steps")[0].default == 100
    assert {k.key for k in explain("run")} == {
        "run.dir",
        "run.name",
        "run.tags",
        "run.seed",
        "run.deterministic",
        "run.record_batches",
        "run.stop_on",
        "run.restarts",
        "run.loggers",
        "run.services",
    }
    assert all(k.help for k in explain(""))
    with pytest.raises(ConfigError, match=r"did you mean 'run\.seed'"):
        explain("run.sed")
