"""examples/agentscope_tuner: AgentScope's tuner tutorial, in the form for the installed AgentScope."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ajet.cli import run_program
from ajet.interfaces.workflow import load_object
from tests.plugins.programs import require

require("agentscope", "torch", "datasets")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "agentscope_tuner"
IS_1 = importlib.metadata.version("agentscope").startswith("1.")


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return load_object(f"{EXAMPLE}/{'math_agent_1' if IS_1 else 'math_agent'}.py:main", "main")


def test_its_questions_are_as_the_script_writes_them_and_those_of_the_test_are_held_out() -> None:
    records = load_object(f"{EXAMPLE}/make_data.py:records", "records")
    questions = {}
    for name, held_out in (("train", False), ("test", True)):
        lines = (EXAMPLE / "data" / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == records(held_out)
        questions[name] = {json.loads(line)["question"] for line in lines}
        assert len(questions[name]) == len(lines)
    assert not questions["train"] & questions["test"]


@pytest.mark.whole
@pytest.mark.models("starter")
def test_it_runs_from_the_preview_to_the_checkpoint(main: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = main(steps=2)
    assert '"question": "What is 0 - 0?"' in capsys.readouterr().out
    assert (tuned.experiment / "global_step_2" / "config.json").is_file()
    assert run_program(["audit", str(tuned.dir)]) == 0
    assert tuned.before["episodes"] == tuned.after["episodes"] == 60
    assert all(0 < m["reward"] < 1 and m["episodes_failed"] == 0 for m in tuned.metrics)


@pytest.mark.slow
@pytest.mark.models("starter")
def test_the_agent_learns(main: Any) -> None:
    tuned = main()
    before, after = tuned.before, tuned.after
    error = ((before["reward_std"] ** 2 + after["reward_std"] ** 2) / after["episodes"]) ** 0.5
    assert after.reward - before.reward >= max(0.2, 3 * error)
