"""A run folder with which training goes on from before the first wrong update."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import ajet
from ajet.rollout.checkpoints import checkpoints
from ajet.rollout.recorder import live_lines
from tests.plugins.rejudge.conftest import MakeRun, fixed


@pytest.mark.whole
def test_it_has_all_up_to_the_last_good_checkpoint_and_the_next_steps_with_the_new_verdicts(
    recorded: MakeRun, tmp_path: Path
) -> None:
    folder, clean = recorded(steps=3), tmp_path / "clean"
    found = ajet.rejudge(folder, fixed, clean=clean, progress=False)
    assert f"to go on after step 1: ajet run --resume {clean}" in str(found)
    assert [path.name for path in checkpoints(clean)] == ["step_000001"]
    assert [path.name for path in (clean / "batches").iterdir()] == ["step_000001.npz"]
    episodes = live_lines(clean / "episodes.jsonl")
    assert [e["step"] for e in episodes] == [1] * 8 + [2] * 8 + [3] * 8
    assert [e["reward"] for e in episodes if e["response"] == "not right"] == [0.0] * 4
    assert [line["step"] for line in live_lines(clean / "metrics.jsonl")] == [1]
    job: Any = yaml.safe_load((clean / "job.yaml").read_text())
    assert job["judge"]["type"].endswith("conftest:fixed") or job["judge"]["type"].endswith(
        "conftest.py:fixed"
    )
    told = json.loads((clean / "parent.json").read_text())
    assert (told["run"], told["after_step"]) == (str(folder), 1)
    # It is a run folder like any other: judged again, its rewards stay.
    assert ajet.rejudge(clean, progress=False).changed == 0
    with pytest.raises(ajet.ConfigError, match="already exists"):
        ajet.rejudge(folder, fixed, clean=clean, progress=False)


def test_without_a_wrong_update_nothing_is_written(recorded: MakeRun, tmp_path: Path) -> None:
    found = ajet.rejudge(recorded(steps=1), fixed, clean=tmp_path / "clean", progress=False)
    assert "there is nothing to go back from" in str(found) and not (tmp_path / "clean").exists()


def test_a_judge_that_no_job_can_name_is_refused(recorded: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(ajet.ConfigError, match="cannot be imported by a name"):
        ajet.rejudge(recorded(steps=1), lambda task, output: 0.0, clean=tmp_path / "clean", progress=False)


@pytest.mark.whole
@pytest.mark.parametrize("version", ["x", None, 1e400, -3, float("nan")])
def test_versions_that_are_none_are_those_of_the_steps(
    recorded: MakeRun, tmp_path: Path, version: object
) -> None:
    folder, clean = recorded(steps=2), tmp_path / "clean"
    lines = live_lines(folder / "metrics.jsonl")
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({**line, "weight_version": version}) + "\n" for line in lines)
    )
    ajet.rejudge(folder, fixed, clean=clean, progress=False)
    assert json.loads((clean / "parent.json").read_text())["shared_version"] == 1
