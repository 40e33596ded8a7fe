"""Objects of a script on their way to verl's processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

SCRIPT = """
import ajet
from ajet.job.prepare import prepare
from ajet_verl.spec import JobSpec
from ajet.runs.jobs import job_of
from ajet_verl.recorder import dumps, to_text

async def agent(task):
    return task.query.upper()

def judge(task, output):
    return float(output.response == "AB")

layers = job_of({"workflow": agent, "tasks": [{"query": "a"}], "judge": judge, "backbone": "verl"})
print(to_text(JobSpec.of(prepare(layers), dumps)))
"""
OPEN = """
import asyncio, sys
import ajet
from ajet_verl.recorder import from_text

job = from_text(sys.stdin.read()).open()
print(asyncio.run(job.workflow.target(ajet.Task("t", "ab"))), job.backbone.name, type(job.judge).__name__)
"""


def python(code: str, folder: Path, given: str = "") -> str:
    (folder / "script.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "script.py"],
        input=given,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_functions_of_a_script_are_sent_as_ray_sends_them(tmp_path: Path) -> None:
    assert python(OPEN, tmp_path, python(SCRIPT, tmp_path)) == "AB verl FunctionJudge\n"
