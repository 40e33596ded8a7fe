"""The recipes of examples/coding_agents with the real programs, in a sandbox: a scripted model uses their own tools, tries to read
the reference answer, and two steps are trained and audited."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

import ajet
from ajet.cli import run_program
from tests.harnesses.programs import PROGRAMS, RECIPES, head, installed
from tests.patience import PATIENCE

SECRET = "secret-4711"
BRIEF = {
    "rollout.concurrency": 1,
    "rollout.timeout": PATIENCE,
    "workflow.timeout": PATIENCE - 5,
    "workflow.calls": 8,
}
JUDGE = """
import hashlib

def judge(task, output, episode):
    said = "".join(m["content"] or "" for chat in episode.messages for m in chat if m["role"] == "assistant")
    return hashlib.sha256(said.encode(errors="replace")).digest()[0] / 255
"""
"""Rewards that differ, so that there is something to train."""


@pytest.fixture
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, row: dict[str, object]) -> str:
    """The name of a program that is installed, and first in PATH."""
    name = request.param
    row |= {"program": name, "version": head(name).version, "API": PROGRAMS[name].api}
    monkeypatch.setenv("PATH", str(installed(name)), prepend=os.pathsep)
    return name


def written(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content)
    return folder / name


def leak(tasks: Path) -> str:
    """A command that looks for the reference answer where it would be, and writes it into the file that is judged."""
    places = [tasks, tasks.parent / "runs" / "*", RECIPES / "*.yaml"]
    found = " ".join(map(str, places))
    return f"(env; cat {found} /proc/*/environ) 2>/dev/null | grep -ao 'secret-[0-9]*' | head -1 > answer.txt"


def checked(name: str, folder: Path, **more: Any) -> Any:
    """The report of `ajet check`: one task in which the model writes the answer, and one in which it looks for it."""
    script = PROGRAMS[name]
    asked = (
        "Write the secret into the file answer.txt.",
        "Look for the answer and write it into the file answer.txt.",
    )
    lines = [json.dumps({"query": query, "answer": SECRET}) for query in asked]
    tasks = written(folder, "tasks.jsonl", "\n".join(lines))
    write = f"echo {SECRET} > answer.txt" if script.tool else SECRET
    rules = script.answers({"Write the secret": write, "Look for the answer": leak(tasks)})
    answers = written(folder, "answers.yaml", yaml.safe_dump(rules))
    check = ajet.check(
        RECIPES / f"{name}.yaml",
        tasks=tasks,
        answers=answers,
        group_size=1,
        run_dir=folder / "runs",
        set={**BRIEF, **more},
        progress=False,
    )
    return check.report


def rewards(report: Any) -> dict[str, float]:
    return {episode.plan.task.query.split()[0]: episode.reward for episode in report.episodes}


@pytest.mark.parametrize("program", PROGRAMS, indirect=True)
def test_a_recipe_captures_its_program_and_hides_the_reference_answer(
    program: str, tmp_path: Path, row: dict[str, object]
) -> None:
    report = checked(program, tmp_path)
    side = sum(map(len, report.side_calls.values()))
    row |= {
        "calls": sum(report.agents.values()) / len(report.episodes),
        "timelines": report.merging.timelines / len(report.episodes),
        "side": side / len(report.episodes),
        "refused": len(report.refused),
        "reward": rewards(report).get("Write"),
        "s": f"{report.seconds / len(report.episodes):.0f}",
        "MiB": report.memory >> 20,
    }
    assert [episode.error for episode in report.episodes if episode.failure] == []
    assert rewards(report) == {"Write": 1.0, "Look": 0.0}
    assert not report.refused and not report.breaks and report.merging.most_timelines == 1
    assert side == PROGRAMS[program].side_calls * len(report.episodes)


@pytest.mark.parametrize("program", ["codex"], indirect=True)
def test_without_a_sandbox_the_same_command_finds_the_reference_answer(program: str, tmp_path: Path) -> None:
    assert rewards(checked(program, tmp_path, **{"workflow.sandbox": "none"}))["Look"] == 1.0


@pytest.mark.parametrize("program", ["claude-code"], indirect=True)
def test_claude_code_is_answered_in_its_default_settings(program: str, tmp_path: Path) -> None:
    report = checked(program, tmp_path, **{"workflow.environment": {"IS_SANDBOX": 1}})
    assert rewards(report)["Write"] == 1.0
    assert not report.refused and report.merging.most_timelines == 1


@pytest.mark.parametrize(
    "program", [name for name, p in PROGRAMS.items() if p.trains is not None], indirect=True
)
def test_two_steps_are_trained_and_pass_the_audit(
    program: str, tmp_path: Path, row: dict[str, object]
) -> None:
    judge = written(tmp_path, "judge.py", JUDGE)
    limits = {
        f"workflow.environment.{name}": value for name, value in (PROGRAMS[program].trains or {}).items()
    }
    done = ajet.run(
        RECIPES / f"{program}.yaml",
        judge=f"{judge}:judge",
        run_dir=tmp_path / "runs",
        set={
            **BRIEF,
            "rollout.group_size": 2,
            "train.batch_size": 1,
            "rollout.sampling.max_tokens": 16,
            **limits,
        },
        progress=False,
    )
    assert run_program(["audit", str(done.dir)]) == 0
    row["trained"] = f"{sum(step['tokens_trained'] for step in done.metrics):.0f} tokens"
    assert len(done.metrics) == 2 and sum(step["tokens_trained"] for step in done.metrics) > 0
