"""A job that goes to another process is there what it was here."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import yaml

from ajet.job.config import Layers
from ajet.job.prepare import prepare, resolved_yaml
from ajet.job.spec import JobSpec

OPEN = """
import pickle, sys
from ajet.job.prepare import resolved_yaml
job = pickle.loads(bytes.fromhex(sys.stdin.read())).open()
print(job.workflow.spec, len(job.tasks), job.algorithm.name, job.filters[0].max_tokens)
print(resolved_yaml(job))
"""


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
    (tmp_path / "tasks.jsonl").unlink()  # another machine may not have them
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", OPEN],
        input=pickle.dumps(spec).hex(),
        cwd=elsewhere,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    first, _, text = done.stdout.partition("\n")
    assert first == f"{tmp_path}/flow.py:run 0 gspo 7"
    assert yaml.safe_load(text) == yaml.safe_load(resolved_yaml(job))
