"""A run that goes on from before the first wrong update learns first from the episodes that its parent has sampled."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import ajet
from ajet import train_job
from ajet.api.jobs import shown_or_not
from ajet.cli.run import clean_run
from ajet.rollout.recorder import JOURNAL, METRICS, live_lines
from ajet.runs.jobs import job_of, prepared
from ajet.testing import ScriptedEngine
from tests.plugins.audit.conftest import Counting, audited
from tests.plugins.rejudge.conftest import fixed, says

HERE = Path(__file__).with_name("conftest.py")
pytestmark = pytest.mark.whole


class Loading(Counting):
    """Goes on from a checkpoint. An update takes long enough for the next step's episodes to end, if they may begin."""

    seconds = 0.0

    def update(self, batch: Any) -> Any:
        time.sleep(self.seconds)
        return super().update(batch)

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
            trainer: Any = Loading(engine)
            trainer.seconds = 1.0 if ready.config.train.asynchronous else 0.0
            train_job(ready, trainer)
            assert lines.run_dir
            return lines.run_dir, len(engine.requests)


@pytest.fixture
def trained(tmp_path: Path, tokenizer: Any) -> Trained:
    return Trained(tmp_path, tokenizer)


def test_without_stale_tokens_the_first_wrong_step_alone_samples_nothing(trained: Trained) -> None:
    clean, taken = trained.go_on(trained.run())
    assert taken == [0, 8, 0] and audited(clean).faults == []


def test_with_stale_tokens_the_next_step_is_two_updates_away(trained: Trained) -> None:
    clean, taken = trained.go_on(trained.run(max_staleness=2))
    assert taken == [0, 8, 8] and audited(clean).faults == []
    line = next(line for line in live_lines(clean / METRICS) if line["step"] == 3)
    assert line["staleness"] == 2


def test_when_it_goes_on_it_may_allow_more(trained: Trained) -> None:
    clean, taken = trained.go_on(trained.run(), set={"train.max_staleness": 2})
    assert taken == [0, 8, 8] and audited(clean).faults == []


def test_of_an_asynchronous_run_two_steps_are_as_old_as_ever(trained: Trained) -> None:
    clean, taken = trained.go_on(trained.run(asynchronous=True))
    assert taken == [0, 8, 8] and audited(clean).faults == []


def test_without_a_checkpoint_right_steps_are_trained_again_from_their_episodes(trained: Trained) -> None:
    clean, taken = trained.go_on(trained.run(save_every=9))
    assert taken == [8, 8, 0] and audited(clean).faults == []


def test_a_deterministic_run_samples_all_again(trained: Trained) -> None:
    run = trained.run()
    job = json.loads(json.dumps(yaml.safe_load((run / "job.yaml").read_text())))
    job["run"]["deterministic"] = True
    (run / "job.yaml").write_text(json.dumps(job))
    assert trained.go_on(run)[1] == [0, 0, 0]


Plant = Callable[[Path, Path], None]


def edited(journal: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the lines of the episode 3.0/…/1, and leave out those of which ``change`` says so."""
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    kept = [
        line
        for line in lines
        if not (
            line.get("step") == 3
            and str(line.get("id")).startswith("3.0/")
            and line["member"] == 1
            and change(line)
        )
    ]
    journal.write_text("".join(json.dumps(line) + "\n" for line in kept))


def told(clean: Path, **change: Any) -> None:
    """Change parent.json."""
    path = clean / "parent.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def other_versions(line: dict[str, Any]) -> None:
    tokens = line["calls"][0]["tokens"]
    versions = np.frombuffer(base64.b64decode(tokens["versions"]), "<i4") + 1
    tokens["versions"] = base64.b64encode(versions.tobytes()).decode()


FAULTS: dict[str, Plant] = {
    "it is not in the journal of the parent": lambda run, clean: edited(run / JOURNAL, lambda line: True),
    "it is not what the parent recorded": lambda run, clean: edited(
        run / JOURNAL, lambda line: line.update(response="x")
    ),
    "its verdict is {'reward': 0.5}, but judged anew it was {'reward': 0.0}": lambda run, clean: edited(
        clean / JOURNAL, lambda line: line.update(reward=0.5)
    ),
    "its weight versions are not those that the parent's give": lambda run, clean: edited(
        clean / JOURNAL, other_versions
    ),
    "marked as one of the parent's, but was not taken over": lambda run, clean: told(clean, verdicts={}),
    "its verdict has changed, but its update counts as one of the parent's": lambda run, clean: told(
        clean, shared_version=3
    ),
    "parent.json: it does not say which run": lambda run, clean: told(clean, run=7),
    "parent.json: cannot be read": lambda run, clean: (clean / "parent.json").unlink(),
}


def test_the_audit_names_what_no_parent_has(trained: Trained, tmp_path: Path) -> None:
    clean, _ = trained.go_on(run := trained.run(max_staleness=2))
    for number, (fault, plant) in enumerate(FAULTS.items()):
        here = [tmp_path / f"{number}" / name for name in ("run", "clean")]
        for source, copy in zip((run, clean), here, strict=True):
            shutil.copytree(source, copy)
        told(here[1], run=str(here[0]))
        plant(*here)
        faults = audited(here[1]).faults
        assert any(fault in each for each in faults), (fault, faults)
    shutil.rmtree(run)
    audit = audited(clean)
    assert not audit.faults and "16 episodes were not compared" in audit.notes[0]


def test_one_command_makes_the_folder_and_goes_on_with_it(trained: Trained, tmp_path: Path) -> None:
    run = trained.run()
    folder = clean_run(run.parent, f"{HERE}:fixed", False)
    assert folder == run.with_name(f"{run.name}-clean") and (folder / "job.yaml").is_file()
    for given, refusal in (
        ((run, None, False), "has been used with this run. Go on: ajet run --resume"),
        ((None, None, False), "needs resume="),
        ((run, None, True), "remove dry_run="),
    ):
        with pytest.raises(ajet.ConfigError, match=refusal):
            clean_run(*given)
    shutil.rmtree(folder)
    with pytest.raises(ajet.AjetError, match="nothing to go back from"):
        clean_run(run, None, False)
    assert not folder.exists()
