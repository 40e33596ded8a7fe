"""A run that goes on from before the first wrong update learns first from the episodes that its parent has sampled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ajet
from ajet import train_job
from ajet.api.jobs import shown_or_not
from ajet.cli.run import clean_run
from ajet.rollout.recorder import METRICS, live_lines
from ajet.runs.jobs import job_of, prepared
from ajet.testing import ScriptedEngine
from tests.plugins.audit.conftest import Counting, audited
from tests.plugins.rejudge.conftest import fixed, says

HERE = Path(__file__).with_name("conftest.py")
pytestmark = pytest.mark.whole


class Loading(Counting):
    """Goes on from a checkpoint."""

    def load(self, path: Path) -> None:
        self.engine.version = int(path.name.removeprefix("step_"))


class Trained:
    """Runs of three steps with 8 episodes each, whose judge has a hole from step 2 on."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        tasks = [json.dumps({"id": f"t{n}", "query": f"question {n}"}) for n in range(6)]
        (folder / "tasks.jsonl").write_text("\n".join(tasks) + "\n")

    def run(self, **train: Any) -> Path:
        """A new run; ``train`` lies over its settings."""
        settings = {"steps": 3, "batch_size": 2, "save_every": 1, "keep_last": 9, **train}
        job = {
            "task": {"reader": str(self.folder / "tasks.jsonl")},
            "workflow": f"{HERE}:once",
            "judge": f"{HERE}:with_hole",
            "model": "starter",
            "rollout": {"group_size": 4},
            "train": settings,
            "run": {"dir": str(self.folder / "runs")},
        }
        (self.folder / "job.yaml").write_text(json.dumps(job))
        return self._train({"job": self.folder / "job.yaml"})[0]

    def go_on(self, run: Path, **given: Any) -> tuple[Path, list[int]]:
        """The folder of the run that goes on, and how many episodes each of its steps has taken over."""
        ajet.rejudge(run, fixed, clean=run.with_name("clean"), progress=False)
        clean, asked = self._train({"resume": run.with_name("clean"), **given})
        steps = [line for line in live_lines(clean / METRICS) if line["type"] == "train"]
        taken = [int(line.get("episodes_reused", 0)) for line in steps]
        after = json.loads((clean / "parent.json").read_text())["after_step"]
        assert asked == 8 * (3 - after) - sum(taken)
        return clean, taken

    def _train(self, given: dict[str, Any]) -> tuple[Path, int]:
        engine = ScriptedEngine(self.tokenizer, says)
        resume = given.get("resume")
        with shown_or_not(False) as lines, prepared(job_of(given), lines, None, resume) as ready:
            train_job(ready, Loading(engine))  # type: ignore[arg-type]
            assert lines.run_dir
            return lines.run_dir, len(engine.requests)


@pytest.fixture
def trained(tmp_path: Path, tokenizer: Any) -> Trained:
    return Trained(tmp_path, tokenizer)


def test_without_stale_tokens_the_first_step_alone_costs_none(trained: Trained) -> None:
    clean, taken = trained.go_on(trained.run())
    assert taken == [0, 8, 0]
