"""Workflows whose programs call no model, such as one that applies a known solution."""

from __future__ import annotations

from pathlib import Path

import pytest

import ajet
from ajet import AjetError, Task, Tuner, WorkflowOutput, WorkflowPlugin

pytestmark = pytest.mark.models("starter")


class Agent(WorkflowPlugin):
    """It calls no model, although it should."""

    name = "agent"

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        return WorkflowOutput(1.0, "4")


class Solution(Agent):
    """It says that it calls none."""

    name = "solution"

    @property
    def calls_model(self) -> bool:
        return False


def run(tmp_path: Path, workflow: WorkflowPlugin) -> ajet.Run:
    (tmp_path / "answers.yaml").write_text("- {say: '4'}\n")
    return ajet.run(
        workflow=workflow,
        tasks=[{"query": "2 + 2"}],
        backbone="debug",
        run_dir=tmp_path / "run",
        set={"backbone.debug.answers": {"type": "script", "path": str(tmp_path / "answers.yaml")}},
        progress=False,
    )


@pytest.mark.whole
def test_a_workflow_that_calls_no_model_is_judged_all_the_same(tmp_path: Path) -> None:
    assert {episode.reward for episode in run(tmp_path, Solution()).episodes()} == {1.0}


def test_a_workflow_that_should_call_a_model_and_does_not_has_failed(tmp_path: Path) -> None:
    with pytest.raises(AjetError, match="nothing_captured"):
        run(tmp_path, Agent())
