"""A job that goes to another process is there what it was here."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.job.config import Layers
from ajet.job.prepare import prepare, resolved_yaml
from ajet.runs.jobs import job_of
from ajet.types import ConfigError, Task
from ajet_verl.spec import JobSpec
from tests.patience import PATIENCE

OPEN = """
import pickle, sys
from ajet.job.prepare import resolved_yaml
job = pickle.loads(bytes.fromhex(sys.stdin.read())).open()
print(job.workflow.spec, len(job.tasks), job.algorithm.name, job.filters[0].max_tokens)
print(resolved_yaml(job))
"""


@pytest.mark.whole
def test_another_process_in_another_folder_makes_the_same_job_without_its_tasks(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("REWARD = 1.0\n")
    (tmp_path / "flow.py").write_text(
        "from helper import REWARD\n\nasync def run(task, tuner):\n    return REWARD\n"
    )
    (tmp_path / "tasks.jsonl").write_text('{"query": "q"}\n')
    values = {
        "task": {"reader": "tasks.jsonl"},
        "workflow": "flow.py:run",
        "model": "somewhere/model",
        "train": {"algorithm": "gspo", "filters": [{"type": "over_long", "max_tokens": 7}]},
        "backbone": "debug",
    }
    layers = Layers()
    layers.add(values, "test", tmp_path)
    job = prepare(layers)
    spec = JobSpec.of(job)
    assert spec.objects == {}
    (tmp_path / "tasks.jsonl").unlink()  # another machine may not have them
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", OPEN],
        input=pickle.dumps(spec).hex(),
        cwd=elsewhere,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    first, _, text = done.stdout.partition("\n")
    assert first == f"{tmp_path}/flow.py:run 0 gspo 7"
    assert yaml.safe_load(text) == yaml.safe_load(resolved_yaml(job))


SCRIPT = """
import asyncio, pickle, sys
from cloudpickle import dumps
from ajet import Judge, JudgeOutput, Task, WorkflowOutput
from ajet.job.prepare import prepare
from ajet_verl.spec import JobSpec
from ajet.runs.jobs import job_of

TWICE = 2

async def agent(task):
    return task.query * TWICE

class Own(Judge):
    points: float = 1.0

    async def judge(self, task, output, episode):
        return JudgeOutput(self.points * TWICE)

layers = job_of({"workflow": agent, "tasks": [{"query": "a"}], "judge": Own(points=3), "backbone": "debug"})
print(pickle.dumps(JobSpec.of(prepare(layers), dumps)).hex())
"""


@pytest.mark.whole
def test_functions_and_judges_of_a_script_reach_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cloudpickle")
    monkeypatch.chdir(tmp_path)  # `open` changes both
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    job = pickle.loads(bytes.fromhex(done.stdout)).open()
    assert asyncio.run(job.workflow.target(Task("t", "ab"))) == "abab" and len(job.tasks) == 0
    assert job.judge.points == 3.0 and asyncio.run(job.judge.judge(None, None, None)).reward == 6.0


def test_an_object_that_cannot_be_sent_is_named_with_a_remedy() -> None:
    lock = threading.Lock()

    async def agent(task: Any) -> str:
        return str(lock)

    dumps: list[Callable[[Any], bytes]] = [pickle.dumps, pytest.importorskip("cloudpickle").dumps]
    layers = job_of({"workflow": agent, "tasks": [{"query": "a"}], "judge": "exact", "backbone": "debug"})
    for each in dumps:
        with pytest.raises(ConfigError) as caught:
            JobSpec.of(prepare(layers), each)
        said = str(caught.value)
        assert said.startswith(
            "workflow: test_an_object_that_cannot_be_sent_is_named_with_a_remedy.<locals>.agent "
        )
        assert "the backbone 'debug' runs agents and judges" in said and "Define it in a module" in said
        assert "\n" not in said
