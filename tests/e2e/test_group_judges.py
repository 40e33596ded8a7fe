"""Judges of groups in real training: complete groups, also where members failed, on a resumed run, and inside `combine`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.rollout.checkpoints import checkpoints
from ajet.rollout.recorder import JOURNAL, METRICS, live_lines

pytestmark = pytest.mark.e2e
AGENT = """
import openai
client = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
async def run(task):
    ask = [{"role": "user", "content": task.query}]
    answer = await client.chat.completions.create(model="m", messages=ask, max_tokens=6)
    return answer.choices[0].message.content or ""
async def flaky(task):
    said = await run(task)
    if sum(map(ord, said)) % 3 == 0:
        raise KeyError("lost")
    return said
"""
JUDGES = """
import json
import ajet


class Ranked(ajet.GroupJudge):
    \"\"\"Reward by the rank of a response's length within its group.\"\"\"

    name = "ranked"

    async def score_group(self, task, episodes):
        live = sorted(len(e.output.response) for e in episodes if not e.failure)
        with open("seen.jsonl", "a") as file:
            members = [[e.member, e.failure] for e in episodes]
            file.write(json.dumps([task.id, members]) + "\\n")
        return [
            None if e.failure else ajet.JudgeOutput(live.index(len(e.output.response)) / max(len(live), 1))
            for e in episodes
        ]
"""


@pytest.fixture
def grouped(project: Any) -> Any:
    (project.folder / "agent.py").write_text(AGENT)
    (project.folder / "judges.py").write_text(JUDGES)
    return project


def job(project: Any, model: Path, judge: Any, workflow: str = "agent.py:run") -> None:
    project.job(
        task={"reader": "tasks.jsonl", "validation": "tasks.jsonl"},
        workflow=workflow,
        judge=judge,
        model=str(model),
        rollout={"group_size": 4, "retries": 0},
        train={"steps": 2, "batch_size": 2, "learning_rate": 1e-3, "save_every": 1},
        eval={"episodes": 2},
        backbone={"local": {"threads": 1}},
        run={"deterministic": True},
    )


def train_lines(run_dir: Path) -> list[dict[str, Any]]:
    return [line for line in live_lines(run_dir / JOURNAL) if line["phase"] == "train"]


def seen(project: Any) -> list[Any]:
    return [json.loads(line) for line in (project.folder / "seen.jsonl").read_text().splitlines()]


@pytest.mark.whole
def test_training_learns_from_rewards_of_whole_groups(grouped: Any, tiny_model: Path) -> None:
    from safetensors.numpy import load_file

    job(grouped, tiny_model, "judges.py:Ranked")
    grouped.ajet("run", "job.yaml", "--set", "run.dir=runs")
    (run_dir,) = grouped.runs("runs")
    groups = [members for _, members in seen(grouped) if len(members) > 1]
    assert len(groups) == 4 and all([m for m, _ in members] == [0, 1, 2, 3] for members in groups)
    assert len(seen(grouped)) == 4 + 2 * 2, "and twice each of two validation episodes, alone"
    rewards = {line["reward"] for line in train_lines(run_dir)}
    assert rewards <= {0.0, 0.25, 0.5, 0.75} and len(rewards) > 1
    for m in (m for m in live_lines(run_dir / METRICS) if m["type"] == "train"):
        assert m["tokens_trained"] + m["tokens_zero_advantage"] == m["tokens_sampled"] > 0
    before, after = (
        load_file(folder / "model.safetensors") for folder in (tiny_model, checkpoints(run_dir)[-1])
    )
    assert any(not np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_members_that_failed_stay_failed_and_the_rest_is_judged_and_trained(
    grouped: Any, tiny_model: Path
) -> None:
    job(grouped, tiny_model, "judges.py:Ranked", "agent.py:flaky")
    grouped.ajet("run", "job.yaml", "--set", "run.dir=runs", "--set", "task.validation=null", "--steps", "4")
    (run_dir,) = grouped.runs("runs")
    lines = train_lines(run_dir)
    failed = [line for line in lines if line["failure"]]
    assert 0 < len(failed) < len(lines) == 4 * 8
    assert {line["failure"] for line in failed} == {"workflow:KeyError"}
    told = sum(failure is not None for _, members in seen(grouped) for _, failure in members)
    assert all(len(members) == 4 for _, members in seen(grouped))
    judged = {(line["step"], line["task"]) for line in lines if not line["failure"]}
    assert len(seen(grouped)) == len(judged), "a group of which all failed is not judged"
    assert told == sum((line["step"], line["task"]) in judged for line in failed)


@pytest.mark.slow
def test_a_resumed_run_judges_whole_groups_as_the_uninterrupted_one(grouped: Any, tiny_model: Path) -> None:
    import shutil

    judge = {
        "type": "combine",
        "parts": {
            "rank": {"judge": "judges.py:Ranked"},
            "text": {"judge": "judges.py:Ranked", "weight": 0.5},
        },
    }
    job(grouped, tiny_model, judge)
    grouped.ajet("run", "job.yaml", "--set", "run.dir=runs", "--set", "task.validation=null")
    (run_dir,) = grouped.runs("runs")
    whole = train_lines(run_dir)
    assert all(line["reward"] == pytest.approx(1.5 * line["metrics"]["rank"]) for line in whole)
    shutil.rmtree(checkpoints(run_dir)[-1])  # as after a kill in the second step
    grouped.ajet("run", "--resume", str(run_dir))

    def story(lines: list[dict[str, Any]]) -> Any:
        return sorted((line["id"], line["reward"], line["response"]) for line in lines)

    assert story(train_lines(run_dir)) == story(whole)
    assert all(len(members) == 4 for _, members in seen(grouped))
