"""The recipes of examples/coding_agents, without the programs: `make test-harnesses` runs them with these."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ajet import Task, WorkflowOutput
from tests.harnesses.programs import PROGRAMS, RECIPES, head
from tests.pages import files, page

NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))
SHOWN = files(page("docs/coding-agents.md"))


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_configuration_only_and_names_what_it_was_tested_with(name: str) -> None:
    text = (RECIPES / f"{name}.yaml").read_text()
    job = yaml.safe_load(text)
    assert len(text.splitlines()) <= 15
    assert job["workflow"]["type"] == "command" and job["workflow"]["sandbox"] == "bubblewrap"
    assert head(name).version in " ".join(head(name).what)


def test_each_recipe_is_tested_with_its_program() -> None:
    assert sorted(PROGRAMS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_recipe(name: str) -> None:
    """Whole, or the lines in which it differs from the first one."""
    shown = SHOWN[f"{name}.yaml"].splitlines()
    lines = (RECIPES / f"{name}.yaml").read_text().splitlines()
    first = (RECIPES / "claude-code.yaml").read_text().splitlines()
    assert [line for line in shown if line not in lines] == []
    assert [line for line in lines if line not in shown and line not in first] == []


@pytest.mark.parametrize(("left", "reward"), [("42\n", 1.0), ("43", 0.0), (None, 0.0)])
def test_the_judge_reads_the_file_that_the_agent_left(
    tmp_path: Path, left: str | None, reward: float
) -> None:
    space: dict = {}
    exec((RECIPES / "shared" / "judge.py").read_text(), space)
    file = tmp_path / "answer.txt"
    if left is not None:
        file.write_text(left)
    output = WorkflowOutput(response="", files={} if left is None else {"answer.txt": file})
    assert space["judge"](Task("t", "q", metadata={"answer": "42"}), output) == reward
