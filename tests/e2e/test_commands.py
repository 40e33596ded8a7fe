"""Commands as workflows, from a job file to trained weights; and what `ajet check` says of missed calls."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import yaml

from ajet.rollout.recorder import JOURNAL, live_lines

pytestmark = pytest.mark.e2e

COMMAND = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
ask = {"model": "m", "max_tokens": 6, "messages": [{"role": "user", "content": task["query"]}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(ask).encode())
request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
print(json.dumps({"response": answer, "reward": float(len(set(answer)))}))
"""

MISSED = """
import socket
import openai
client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
def run(task):
    try:
        socket.create_connection(("127.0.0.1", 9), timeout=1)  # the line to be named
    except OSError:
        pass
    ask = [{"role": "user", "content": task.query}]
    return client.chat.completions.create(model="m", messages=ask, max_tokens=6).choices[0].message.content
"""


def rewrite(project: Any, **values: Any) -> None:
    job = yaml.safe_load((project.folder / "job.yaml").read_text())
    project.job(**{**job, **values})


@pytest.mark.slow
def test_a_command_is_trained_and_resumed_from_any_folder(project: Any) -> None:
    (project.folder / "solve.py").write_text(COMMAND)
    rewrite(project, workflow=f"cmd:{sys.executable} solve.py", judge=None)
    project.ajet(
        "run", "job.yaml", "--set", "run.dir=r", "--set", "train.steps=1", "--set", "eval.episodes=1"
    )
    (run_dir,) = project.runs("r")
    lines = [line for line in live_lines(run_dir / JOURNAL) if line["phase"] == "train"]
    assert len(lines) == 6 and all(line["failure"] is None and line["reward"] > 0 for line in lines)
    resolved = yaml.safe_load((run_dir / "job.yaml").read_text())
    assert resolved["rollout"]["workdir"] == str(project.folder)
    project.ajet("run", "--resume", str(run_dir), "--steps", "2")
    lines = [line for line in live_lines(run_dir / JOURNAL) if line["phase"] == "train"]
    assert [line["failure"] for line in lines] == [None] * 12


@pytest.mark.slow
def test_check_lists_host_line_and_remedy_of_missed_calls(project: Any) -> None:
    (project.folder / "agent.py").write_text(MISSED)
    rewrite(project, judge=None, workflow="agent.py:run")
    page = project.ajet(
        "check",
        "job.yaml",
        "--first",
        "1",
        "--group-size",
        "2",
        "--set",
        "judge.type=contains",
        "--set",
        "run.dir=c",
        code=1,  # the tasks have no answer, so the judge fails all episodes
    )
    place = f"{project.folder / 'agent.py'}:{1 + MISSED[: MISSED.index('# the line')].count(chr(10))}"
    assert f"! 2 connections were not captured: 127.0.0.1:9 ({place})" in page
    assert "tuner.as_base_url()" in page and "ajet.passthrough()" in page


def test_refusing_missed_calls_fails_the_episode_by_name(project: Any) -> None:
    (project.folder / "agent.py").write_text(MISSED.replace("except OSError", "except TimeoutError"))
    rewrite(project, workflow="agent.py:run", judge=None, backbone="debug", rollout={"missed": "refuse"})
    output = project.ajet("run", "job.yaml", "--set", "run.dir=d", code=1)
    assert "workflow:MissedCall: MissedCall: a connection to 127.0.0.1:9" in output
