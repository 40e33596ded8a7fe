"""A run folder that an earlier version wrote, as commit 5ab75eca left it (a two-step run of the starter model; only checkpoints, the
tokenizer and files of loggers are left out), is judged anew like one of this version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import ajet
from ajet.types import Task


def fixed(task: Task, output: ajet.WorkflowOutput) -> float:
    return float(str(output.response).strip() == task.metadata["answer"])


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    return shutil.copytree(Path(__file__).with_name("earlier_run"), tmp_path / "run")


def test_its_verdicts_and_its_first_wrong_step_are_found_and_agree_with_its_record(earlier: Path) -> None:
    found = ajet.rejudge(earlier, fixed, progress=False)
    assert (found.changed, found.first_wrong_step) == (7, 1)
    first, second = found.as_dict()["steps"]
    assert (first["tokens"], first["wrong"], first["as_recorded"]) == (16, 16, True)
    assert second["tokens"] == 0, "all four rewards of step 2 were 1, so nothing was trained"
    assert len((earlier / "rejudged.jsonl").read_text().splitlines()) == 8


def test_training_can_go_on_from_before_it(earlier: Path, tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    ajet.rejudge(earlier, fixed, clean=clean, progress=False)
    lines = [json.loads(line) for line in (clean / "episodes.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in lines if line["step"] == 1] == [0.0] * 4
