"""Defaults that a backbone derives: for keys that the user has not set, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from ajet.cli.run import describe_job
from ajet.job.config import JobConfig
from ajet.job.job import Job
from ajet.job.layers import job_layers
from ajet.job.prepare import prepare, resolved_yaml
from ajet.runs.debug import Debug

JOB = """
task: {{reader: tasks.jsonl}}
workflow: agent.py:run
judge: {{type: exact}}
backbone: {{name: debug, debug: {{answers: {{type: script, path: script.yaml}}}}}}
rollout: {{{rollout}}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tasks.jsonl").write_text('{"query": "1+1", "answer": "2"}\n')
    (tmp_path / "agent.py").write_text("async def run(task): ...\n")
    (tmp_path / "script.yaml").write_text("- {say: '2'}\n")
    found = {
        "rollout.concurrency": (7, "seven fit into this machine"),
        "backbone.debug.group_size": (3, "three are enough"),
    }
    monkeypatch.setattr(Debug, "defaults", lambda self, config: found)
    return tmp_path


def prepared(folder: Path, rollout: str) -> Job:
    (folder / "job.yaml").write_text(JOB.format(rollout=rollout))
    return prepare(job_layers(folder / "job.yaml"))


def test_they_take_effect_where_nothing_is_set_and_are_shown_with_their_reason(folder: Path) -> None:
    job = prepared(folder, rollout="")
    assert job.config.rollout.concurrency == 7
    assert isinstance(job.backbone, Debug) and job.backbone.group_size == 3
    assert "default of debug: seven fit into this machine" in describe_job(job, job.layers)


def test_what_the_user_sets_is_stronger(folder: Path) -> None:
    assert prepared(folder, rollout="concurrency: 5").config.rollout.concurrency == 5


def test_they_are_added_to_the_resolved_job_whose_files_are_not_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "texts.yaml").write_text("plan: first\n")

    def changes_the_file(self: Debug, config: JobConfig) -> Mapping[str, tuple[object, str]]:
        (folder / "texts.yaml").write_text("plan: second\n")
        return {"rollout.concurrency": (7, "seven fit into this machine")}

    monkeypatch.setattr(Debug, "defaults", changes_the_file)
    (folder / "job.yaml").write_text(f"{JOB.format(rollout='timeout: 5m')}prompts: texts.yaml\n")
    kept = yaml.safe_load(resolved_yaml(prepare(job_layers(folder / "job.yaml"))))
    assert kept["prompts"] == {"plan": "first"}
    assert (kept["rollout"]["concurrency"], kept["rollout"]["timeout"]) == (7, 300.0)
    assert kept["backbone"]["debug"]["answers"]["path"] == str(folder / "script.yaml")
