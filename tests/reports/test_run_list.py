"""The list of runs: what a line says, which runs are shown."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

import ajet
from ajet.cli import run_program
from ajet.reports.run_list import RunLine, run_line
from ajet.runs.run_state import note_end
from ajet.types import AjetError
from tests.patience import PATIENCE


def write(folder: Path, name: str, run: dict[str, Any] | None = None, backbone: str = "local") -> Path:
    """A run folder of two steps."""
    run_dir = folder / name
    run_dir.mkdir()
    job = {
        "model": f"models/{name[-1]}",
        "backbone": {"name": backbone},
        "train": {"steps": 4, "learning_rate": 1e-4, "algorithm": {"type": "grpo"}},
        "run": run or {},
    }
    (run_dir / "job.yaml").write_text(yaml.safe_dump(job))
    lines = [{"type": "train", "step": n, "reward": n / 4} for n in (1, 2)]
    lines.append({"type": "validation", "step": 2, "accuracy": 0.5})
    (run_dir / "episodes.jsonl").write_text("")
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run_dir


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    failed = write(tmp_path, "20250101-000000-a", {"name": "first try", "tags": ["sweep"]})
    note_end(failed, AjetError("no space left"))
    write(tmp_path, "20250102-000000-b", {"tags": ["sweep", "short"]})
    write(tmp_path, "20250103-000000-check", backbone="debug")
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_a_line_has_the_state_the_figures_and_the_settings_of_a_run(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_program(["list", str(runs)]) == 0
    head, second, first, why = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "run",
        "state",
        "steps",
        "reward",
        "validation",
        "model",
        "algorithm",
        "learning",
        "rate",
        "tags",
    ]
    assert first.split() == (
        f"{runs}/20250101-000000-a failed 2 / 4 0.250 → 0.500 0.500 a grpo 0.0001 sweep".split()
    )
    assert second.split()[1] == "interrupted" and second.endswith("sweep, short")
    assert why == "20250101-000000-a failed: no space left"


def test_runs_are_filtered_by_name_and_tags_and_checks_are_listed_on_request(runs: Path) -> None:
    def listed(**filters: Any) -> list[str]:
        return [run.dir.name[-1] for run in ajet.list_runs(runs, **filters)]

    assert listed() == ["b", "a"], "the newest first"
    assert listed(name="first") == listed(name="000-a") == ["a"]
    assert listed(tags=["sweep"]) == ["b", "a"] and listed(tags=["sweep", "short"]) == ["b"]
    assert listed(all=True) == ["k", "b", "a"]
    with pytest.raises(ajet.ConfigError, match=r"no such folder\. `ajet run` makes the folder runs"):
        listed_in = ajet.list_runs(runs / "nowhere")
        del listed_in


def test_a_list_is_a_sequence_of_runs_and_a_table_in_a_notebook(runs: Path) -> None:
    found = ajet.list_runs(runs)
    assert (found[1].name, found[1].tags, found[1].state) == ("first try", ("sweep",), "failed")
    assert len(found[:1]) == 1 and "20250102" in repr(found)
    assert "<td>sweep, short</td>" in found._repr_html_()
    assert repr(ajet.list_runs(runs, name="?")) == "<Runs: none>"


def test_a_run_draws_its_rewards_or_any_metric(runs: Path) -> None:
    run = ajet.load_run(runs / "20250101-000000-a")
    assert repr(run.plot()) == "<Plot training reward>", "one validation is no curve"
    drawn = run.plot("reward", "validation/accuracy")._repr_html_()
    assert drawn.startswith("<iframe") and drawn.count("&lt;figure&gt;") == 2 and "&gt;0.3&lt;/text" in drawn
    with pytest.raises(ajet.ConfigError, match=r"^rewrd: no such metric; did you mean 'reward'"):
        run.plot("rewrd")


def test_a_run_that_cannot_be_read_is_listed_as_such(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "20250102-000000-b" / "job.yaml").write_text("a: [\n")
    assert run_program(["list", str(runs), "--json"]) == 0
    (line,) = [line for line in json.loads(capsys.readouterr().out) if line["run"].endswith("b")]
    assert line["state"] == "unreadable" and "job.yaml:2: not YAML" in line["why"]


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "episodes.jsonl", "running.json", "ended.json", "job.yaml"]
)
def test_a_pipe_in_the_place_of_a_file_hangs_no_list(runs: Path, name: str) -> None:
    file = runs / "20250102-000000-b" / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    reader = threading.Thread(target=lambda: lines.append(run_line(file.parent)), daemon=True)
    lines: list[RunLine] = []
    reader.start()
    reader.join(PATIENCE)
    assert lines and (name in ("episodes.jsonl", "job.yaml") or "is not a plain file" in lines[0].why)
