"""The reader `harbor`: tasks as Harbor keeps them. No sandbox is started."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ajet import ConfigError
from ajet.testing.readers import check_reader
from ajet_harbor import HarborTasks
from tests.plugins.harbor.conftest import TASKS

NAMES = ["ajet/greeting", "ajet/total", "ajet/words"]


def test_a_folder_of_tasks_is_read_in_the_order_of_its_names() -> None:
    check_reader(HarborTasks(path=TASKS))
    first, *_ = found = list(HarborTasks(path=TASKS).tasks())
    assert [task.id for task in found] == NAMES
    assert first.query == "Write `Hello, world!` into the file /app/greeting.txt."
    assert first.metadata == {"path": str(TASKS / "greeting"), "source": "tasks", "difficulty": "easy"}


def test_a_folder_may_be_one_task() -> None:
    (task,) = HarborTasks(path=TASKS / "total").tasks()
    assert task.id == "ajet/total"


def test_tasks_are_chosen_by_their_own_metadata() -> None:
    assert [task.id for task in HarborTasks(path=TASKS, where={"difficulty": "hard"}).tasks()] == [
        "ajet/words"
    ]


def test_neither_tests_nor_solution_are_in_a_task() -> None:
    for task in HarborTasks(path=TASKS).tasks():
        assert "solve" not in str(task) and "reward" not in str(task)


def test_a_dataset_of_a_registry_in_a_file_is_read_without_a_network(tmp_path: Path) -> None:
    listed = [{"name": name, "path": str(TASKS / name)} for name in ("words", "greeting")]
    shutil.copytree(TASKS / "total", tmp_path / "near")
    listed.append({"name": "near", "path": "near"})
    dataset = {"name": "small", "version": "1.0", "description": "", "tasks": listed}
    registry = tmp_path / "registry.json"
    registry.write_text(json.dumps([dataset]))
    found = list(HarborTasks(dataset="small@1.0", registry_path=registry).tasks())
    assert [task.id for task in found] == ["ajet/words", "ajet/greeting", "ajet/total"]
    assert found[2].metadata["path"] == str(tmp_path / "near") and found[2].metadata["source"] == "small@1.0"
    with pytest.raises(ConfigError, match=r"dataset 'large' of .*registry.json: .*large"):
        list(HarborTasks(dataset="large", registry_path=registry).tasks())


def test_a_folder_without_tasks_and_a_broken_task_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none: no such folder"):
        list(HarborTasks(path=tmp_path / "none").tasks())
    with pytest.raises(ConfigError, match=r"has a task\.toml"):
        list(HarborTasks(path=tmp_path).tasks())
    broken = shutil.copytree(TASKS / "words", tmp_path / "broken")
    (broken / "instruction.md").unlink()
    with pytest.raises(ConfigError, match=r"broken: not a task .*instruction\.md"):
        list(HarborTasks(path=tmp_path).tasks())
    (broken / "task.toml").write_text("[environment\n")
    with pytest.raises(ConfigError, match="broken: not a task") as error:
        list(HarborTasks(path=tmp_path).tasks())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "fields, said",
    [
        ({}, "path.*dataset"),
        ({"path": "tasks", "dataset": "small"}, "path.*dataset"),
        ({"path": "tasks", "registry_path": "registry.json"}, "dataset"),
        (
            {"dataset": "small", "registry_path": "registry.json", "registry_url": "http://example.org"},
            "one registry",
        ),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        HarborTasks.model_validate(fields)
