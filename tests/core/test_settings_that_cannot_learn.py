"""Settings that cannot learn are named before a model is loaded."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet import ConfigError
from ajet.job.config import Layers
from ajet.job.prepare import prepare
from ajet.reports.progress import Lines
from ajet.runs.restarts import run_job

ALONE: dict[str, Any] = {"rollout": {"group_size": 1}}


def layers(folder: Path, **keys: Any) -> Layers:
    (folder / "agent.py").write_text("async def agent(task):\n    return 1.0\n")
    (folder / "tasks.jsonl").write_text('{"query": "a"}\n{"query": "b"}\n')
    found = Layers()
    job = {"task": {"reader": "tasks.jsonl"}, "workflow": "agent.py:agent", "backbone": "local"}
    found.add({**job, **keys}, "test", folder)
    return found


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "dr_grpo", "rloo", "gspo", "reinforce++", "dpo"])
def test_a_group_of_one_is_refused_by_algorithms_that_compare_its_episodes(
    tmp_path: Path, algorithm: str
) -> None:
    said = rf"rollout\.group_size: the algorithm '{algorithm}' compares .* Set it to 2 or more"
    with pytest.raises(ConfigError, match=said.replace("+", r"\+")):
        prepare(layers(tmp_path, train={"algorithm": algorithm}, **ALONE))


@pytest.mark.parametrize(
    "algorithm",
    [
        "ppo",
        {"type": "reinforce++", "group_baseline": False},
        {"type": "rejection_sampling", "threshold": 0.5},
    ],
)
def test_other_algorithms_take_a_group_of_one(tmp_path: Path, algorithm: Any) -> None:
    assert prepare(layers(tmp_path, train={"algorithm": algorithm}, **ALONE))


def test_a_job_that_only_validates_takes_any_group_size(tmp_path: Path) -> None:
    assert prepare(layers(tmp_path, train={"steps": 0}, **ALONE))


def test_one_task_is_counted_in_good_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    job = prepare(layers(tmp_path, train={"batch_size": 2})).with_progress(Lines(out))
    job = dataclasses.replace(job, tasks=job.tasks[:1])
    monkeypatch.setattr(type(job.backbone), "run", lambda self, job: SimpleNamespace(run_dir=tmp_path))
    run_job(job)
    assert "but there is only 1 task, so" in out.getvalue()


@pytest.mark.parametrize(
    ("batch", "said"), [(3, "train.batch_size is 3, but there are only 2 tasks"), (2, "")]
)
def test_a_batch_of_more_tasks_than_there_are_is_said_before_the_run(
    tmp_path: Path, batch: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    job = prepare(layers(tmp_path, train={"batch_size": batch})).with_progress(Lines(out))
    ran = SimpleNamespace(run_dir=tmp_path)
    monkeypatch.setattr(type(job.backbone), "run", lambda self, job: ran)
    run_job(job)
    assert (said in out.getvalue()) if said else not out.getvalue()
