"""`ajet run --backbone debug` as a user starts it: the local engine answers, breakpoints stop."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest

from ajet.utils import breakpoints

pytestmark = pytest.mark.e2e

BREAKS = """
import ajet, httpx2
async def run(task):
    reply = "4"
    ajet.breakpoint("BEFORE")
    async with httpx2.AsyncClient() as client:
        ask = {"model": "m", "messages": [{"role": "user", "content": task.query}]}
        await client.post("http://127.0.0.1:9/v1/chat/completions", json=ask)
    ajet.breakpoint("AFTER")
    return reply
def in_thread(task):
    ajet.breakpoint("BEFORE")
    ask = {"model": "m", "messages": [{"role": "user", "content": task.query}]}
    httpx2.post("http://127.0.0.1:9/v1/chat/completions", json=ask)
    return "4"
"""
ONE = ("--backbone", "debug", "--set", "backbone.debug.tasks=1", "--set", "backbone.debug.group_size=1")
SCRIPTED = ("--set", "backbone.debug.answers={type: script, path: script.yaml}")


def typed(project: Any, keys: str, *arguments: str) -> str:
    """What `ajet` prints, with something typed at its standard input."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(keys))
        patch.setattr(sys, "breakpointhook", sys.__breakpointhook__)  # not pytest's
        patch.setattr(breakpoints, "_enabled", set())
        return project.ajet(*arguments)


@pytest.fixture
def breaks(project) -> Any:
    (project.folder / "breaks.py").write_text(BREAKS)
    (project.folder / "script.yaml").write_text("- {say: '4'}\n")
    return project


@pytest.mark.whole
def test_the_local_engine_answers_and_the_batch_is_described(project) -> None:
    output = project.ajet("run", "job.yaml", "--backbone", "debug", "--set", "backbone.debug.group_size=3")
    assert len(re.findall(r"^done  1\.\d/q\d/\d  reward \d+  2 calls  \d+ tokens", output, re.M)) == 4 * 3
    found = re.search(r"batch: (\d+) samples, (\d+) tokens, (\d+) of them trained", output)
    assert found, output
    samples, tokens, trained = map(int, found.groups())
    said = [int(n) for n in re.findall(r"2 calls  (\d+) tokens", output)]
    assert trained == sum(said) > 0, "each sampled token once"
    assert samples >= 12 and tokens > trained
    assert re.search(r"groups with zero advantage \(nothing to learn\): \d+%", output)
    assert "train.learning_rate" in output.split("no effect now: ")[1].splitlines()[0]
    assert not list(project.folder.glob("runs/*/checkpoints/*"))


@pytest.mark.slow
def test_groups_of_equal_rewards_come_with_a_remedy(project) -> None:
    output = project.ajet("run", "job.yaml", "--backbone", "debug", "--judge", "agent.py:constant")
    assert "groups with zero advantage (nothing to learn): 100%" in output
    assert "every group's rewards are equal: use a larger group" in output


def test_a_breakpoint_stops_where_its_tag_is_enabled_and_goes_on(breaks) -> None:
    job = ("run", "job.yaml", "--workflow", "breaks.py:run", *ONE, *SCRIPTED)
    said = typed(breaks, "p 'the reply is ' + reply\nc\n", *job, "--break", "BEFORE,OTHER")
    assert said.count("(Pdb)") == 2 and "the reply is 4" in said
    assert "breaks.py(6)run()" in said, "at the user's line, after the call"
    assert "done  1.0/" in said


@pytest.mark.slow
def test_a_breakpoint_in_a_plain_function_stops_too(breaks) -> None:
    job = ("run", "job.yaml", "--workflow", "breaks.py:in_thread", *ONE, *SCRIPTED)
    said = typed(breaks, "p task.id + '!'\nc\n", *job, "--break", "*")
    assert re.search(r"'q\d!'", said) and "done  1.0/" in said


@pytest.mark.slow
def test_without_break_nothing_stops(breaks) -> None:
    said = typed(breaks, "", "run", "job.yaml", "--workflow", "breaks.py:run", *ONE, *SCRIPTED)
    assert "(Pdb)" not in said, said


@pytest.mark.slow
def test_all_episodes_failing_is_exit_code_1_with_the_cause_in_one_line(project) -> None:
    (project.folder / "lost.py").write_text("async def run(task):\n    raise KeyError('lost')\n")
    output = project.ajet(
        "run",
        "job.yaml",
        "--workflow",
        "lost.py:run",
        *ONE,
        *SCRIPTED[:1],
        "backbone.debug.answers=script",
        "--set",
        "backbone.debug.answers.path=none.yaml",
        code=1,
    )
    line = output.strip().splitlines()[-1]
    assert line.startswith("error: all 1 episodes failed: 1 workflow:KeyError. First: ")
    assert "lost.py:2" in line and "Traceback" not in output
