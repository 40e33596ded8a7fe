"""`ajet config`: keys explained, and job files from those of Trinity-RFT."""

from __future__ import annotations

import pytest

from .conftest import Folder


def test_a_key_has_help_type_and_default(folder: Folder) -> None:
    out = folder.ajet("config", "explain", "train.batch_size").out
    assert out.startswith("train.batch_size: Tasks per step")
    assert ["type", "int"] in [line.split() for line in out.splitlines()]
    assert ["default", "8"] in [line.split() for line in out.splitlines()]


def test_with_a_job_file_it_has_value_and_source_too(folder: Folder) -> None:
    for arguments in (("train.steps", "job.yaml"), ("job.yaml", "train.steps")):
        lines = [line.split() for line in folder.ajet("config", "explain", *arguments).out.splitlines()]
        assert ["value", "3"] in lines and ["from", "job.yaml"] in lines
    lines = [
        line.split()
        for line in folder.ajet("config", "explain", "train.keep_last", "job.yaml").out.splitlines()
    ]
    assert ["value", "2"] in lines and ["from", "default"] in lines


def test_a_section_lists_its_keys(folder: Folder) -> None:
    out = folder.ajet("config", "explain", "eval").out
    assert {"eval.every", "eval.sampling.temperature"} <= {line.split()[0] for line in out.splitlines()}


def test_keys_of_backbones_and_chosen_plugins_are_explained(folder: Folder) -> None:
    assert "Tasks to run." in folder.ajet("config", "explain", "backbone.debug.tasks").out
    assert "(math, math_llm)" in folder.ajet("config", "explain", "judge.tolerance").out
    outcome = folder.ajet("config", "explain", "judge.tolerance", "job.yaml")  # the job's judge is `exact`
    assert outcome.code == 2 and "judge.tolerance: unknown key" in outcome.err
    out = folder.ajet("config", "explain", "backbone.debug.group_size", "job.yaml").out
    assert ["value", "1"] in [line.split() for line in out.splitlines()]


def test_without_a_key_it_lists_all(folder: Folder) -> None:
    names = {line.split()[0] for line in folder.ajet("config", "explain", "job.yaml").out.splitlines()}
    assert {"workflow", "task.reader", "backbone.debug.tasks", "targets.NAME.agents"} <= names


def test_the_list_of_all_keys_fits_a_terminal_and_leaves_the_fields_of_plugins_to_them(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    lines = folder.ajet("config", "explain").out.splitlines()
    assert "train.steps  int = 100" in lines and max(map(len, lines)) <= 72
    assert not any(line.startswith("task.reader.path") for line in lines)
    assert lines[-1].endswith("ajet plugins show NAME")
    assert "task.reader.path  Path = required" in folder.ajet("config", "explain", "task.reader").out


def test_an_unknown_key_is_an_error_with_the_nearest(folder: Folder) -> None:
    outcome = folder.ajet("config", "explain", "train.lerning_rate")
    assert outcome.code == 2
    assert outcome.err.startswith(
        "error: train.lerning_rate: unknown key; did you mean 'train.learning_rate'"
    )
