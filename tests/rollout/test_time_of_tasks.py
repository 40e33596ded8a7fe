"""Tasks that give their agents more time than the job gives an episode."""

from __future__ import annotations

from pathlib import Path

import pytest

import ajet
from ajet import Task, Tuner, WorkflowOutput, WorkflowPlugin

pytestmark = pytest.mark.models("starter")


class Timed(WorkflowPlugin):
    """Each task says how long it may take."""

    name = "timed"

    @property
    def calls_model(self) -> bool:
        return False

    def seconds_of(self, task: Task) -> float | None:
        return task.metadata.get("seconds")

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        return WorkflowOutput(1.0, "done")


@pytest.mark.parametrize("timeout, told", [(600, True), (601, False)])
def test_the_job_tells_which_tasks_it_may_cut_short(
    timeout: float, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "answers.yaml").write_text("- {say: '4'}\n")
    tasks = [{"id": f"t{seconds}", "query": "?", "seconds": seconds} for seconds in (60, 600)]
    ajet.run(
        workflow=Timed(),
        tasks=[*tasks, {"id": "free", "query": "?"}],
        backbone="debug",
        run_dir=tmp_path / "run",
        set={
            "backbone.debug.answers": {"type": "script", "path": str(tmp_path / "answers.yaml")},
            "rollout.timeout": timeout,
        },
    )
    said = "1 of 3 tasks, such as t600, let their agents work for up to 600 s, but rollout.timeout ends an episode after 600 s"
    assert (said in capsys.readouterr().err) is told
