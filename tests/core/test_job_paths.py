"""Relative paths of a job: the types of fields say what is a path, and each is relative to where it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ajet.job.config import Layers
from ajet.job.prepare import prepare, resolved_yaml

MINE = '''
from pathlib import Path

from ajet import Judge, JudgeOutput
from ajet.interfaces.base import PathOrName, Settings


class Model(Settings):
    """Where a model is."""

    path: str = "org/none"
    folder: PathOrName = "org/none"
    notes: Path | None = None


class Scored(Judge):
    """Scores by a model."""

    name = "scored"
    model: Model = Model()
    files: tuple[Path, ...] = ()

    async def judge(self, task, output, episode):
        return JudgeOutput(1.0)


def agent(task):
    return "a"
'''


@pytest.fixture
def layers(tmp_path: Path) -> Layers:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "tasks.jsonl").write_text('{"query": "q"}\n')
    made = Layers()
    judge = {
        "type": "mine.py:Scored",
        "model": {"path": "org/model", "folder": "org/model", "notes": "notes.md"},
        "files": ["a.txt", "/b.txt"],
    }
    job = {
        "task": {"reader": "tasks.jsonl"},
        "workflow": "mine.py:agent",
        "judge": judge,
        "model": "org/model",
        "backbone": "debug",
    }
    made.add(job, "job.yaml", tmp_path)
    return made


def test_a_hub_id_under_model_path_stays_a_hub_id(layers: Layers) -> None:
    kept = yaml.safe_load(resolved_yaml(prepare(layers)))
    assert kept["judge"]["model"]["path"] == kept["judge"]["model"]["folder"] == kept["model"] == "org/model"


def test_a_folder_of_the_same_name_is_taken_where_the_field_allows_both(
    layers: Layers, tmp_path: Path
) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    kept = yaml.safe_load(resolved_yaml(prepare(layers)))
    assert kept["judge"]["model"]["folder"] == kept["model"] == str(tmp_path / "org" / "model")
    assert kept["judge"]["model"]["path"] == "org/model", "a string is not a path"


def test_each_path_is_relative_to_the_folder_in_which_it_was_written(layers: Layers, tmp_path: Path) -> None:
    layers.set("judge.model.notes", "other.md", "--set", tmp_path / "elsewhere")
    job = prepare(layers)
    kept = yaml.safe_load(resolved_yaml(job))
    assert kept["judge"]["model"]["notes"] == str(tmp_path / "elsewhere" / "other.md")
    assert kept["judge"]["files"] == [str(tmp_path / "a.txt"), "/b.txt"]
    assert kept["judge"]["type"] == f"{tmp_path}/mine.py:Scored"
    assert str(job.judge.model.notes) == kept["judge"]["model"]["notes"], "the plugin has the job file's path"  # type: ignore[attr-defined]


def test_a_resolved_job_is_the_same_job_in_another_folder(layers: Layers, tmp_path: Path) -> None:
    first = resolved_yaml(prepare(layers))
    run = tmp_path / "runs" / "1"
    run.mkdir(parents=True)
    again = Layers()
    again.add(yaml.safe_load(first), "job.yaml", run)
    assert resolved_yaml(prepare(again)) == first
