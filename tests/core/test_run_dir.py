"""The run folder: one process at a time, and a deterministic run goes on with the tasks that it began with."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ajet.job.config import Layers
from ajet.job.job import Job
from ajet.job.layers import resumed_layers
from ajet.job.prepare import prepare
from ajet.reports.run_list import list_runs, run_line, run_table
from ajet.runs.run_dir import held, keep_same_tasks, new_run_dir, tell_changes
from ajet.types import AjetError, ConfigError
from tests.patience import PATIENCE

HOLD = """
import os, sys
from pathlib import Path
from ajet.reports.run_list import list_runs, run_line, run_table
from ajet.runs.run_dir import held
with held(Path(sys.argv[1]), lambda text: print(text, flush=True)):
    print("held", flush=True)
    sys.stdin.readline()
    {end}
"""


def holder(run_dir: Path, end: str = "") -> subprocess.Popen[str]:
    """Another process that holds a run folder until it reads a line."""
    command = [sys.executable, "-c", HOLD.format(end=end), str(run_dir)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


@pytest.mark.whole
def test_a_run_folder_that_another_process_holds_is_refused_by_its_number(tmp_path: Path) -> None:
    process = holder(tmp_path)
    with (
        pytest.raises(AjetError, match=rf"process {process.pid} on .* is running it.* then resume\.$"),
        held(tmp_path, print),
    ):
        pass
    process.communicate("\n", timeout=PATIENCE)
    said: list[str] = []
    with held(tmp_path, said.append), held(tmp_path, said.append):
        assert (tmp_path / "running.json").exists()
    assert said == [] and not (tmp_path / "running.json").exists()


@pytest.mark.whole
@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_process_that_did_not_shut_down_is_told_of(tmp_path: Path, end: str) -> None:
    process = holder(tmp_path, end)
    process.communicate("\n", timeout=PATIENCE)
    said: list[str] = []
    with held(tmp_path, said.append):
        pass
    assert len(said) == 1 and f"process {process.pid} on " in said[0]
    assert "os._exit" in said[0] and "cmd:" in said[0], "names causes and the remedy"
    with held(tmp_path, said.append):
        assert len(said) == 1, "told once"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_torn_note_on_who_holds_a_run_folder_is_no_obstacle(tmp_path: Path, content: str) -> None:
    (tmp_path / "running.json").write_text(content)
    said: list[str] = []
    with held(tmp_path, said.append):
        pass
    assert "another process did not shut down" in said[0]


@pytest.mark.parametrize(
    ("name", "end"),
    [("baseline", "-baseline"), ("lr 1e-4 / 学習", "-lr-1e-4-学習"), ("..", ""), ("x" * 150, f"-{'x' * 60}")],
)
def test_a_run_folder_ends_in_the_name_of_the_run(job: Job, tmp_path: Path, name: str, end: str) -> None:
    run = job.config.run.model_copy(update={"dir": str(tmp_path / "runs"), "name": name})
    named = dataclasses.replace(job, config=job.config.model_copy(update={"run": run}))
    assert re.fullmatch(rf"\d{{8}}-\d{{6}}{re.escape(end)}", new_run_dir(named).name)
    assert new_run_dir(named, "check").name.endswith(f"{end}-check")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "agent.py").write_text("def run(task):\n    return 1.0\n")
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"id": "q{n}", "query": "?"}}\n' for n in range(6)))
    layers = Layers()
    values = {
        "task": {"reader": "tasks.jsonl"},
        "workflow": "agent.py:run",
        "backbone": "local",
        "run": {"deterministic": True},
    }
    layers.add(values, "test", tmp_path)
    return prepare(layers)


def with_tasks(job: Job, *numbers: int) -> Job:
    return dataclasses.replace(job, tasks=[job.tasks[n] for n in numbers])


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((0, 1, 2, 3), "began with 6 tasks, and now there are 4: number 5 was 'q4' and is none"),
        ((0, 1, 2, 3, 5), "now there are 5: number 5 was 'q4' and is 'q5'"),
        ((1, 0, 2, 3, 4, 5), "now there are 6: number 1 was 'q0' and is 'q1'"),
    ],
)
def test_a_deterministic_run_is_not_resumed_with_other_tasks(
    tmp_path: Path, job: Job, numbers: tuple[int, ...], said: str
) -> None:
    keep_same_tasks(tmp_path, job)
    keep_same_tasks(tmp_path, job)
    with pytest.raises(ConfigError, match=f"{said}.*--no-deterministic"):
        keep_same_tasks(tmp_path, with_tasks(job, *numbers))


@pytest.mark.parametrize("content", ["", "[", "{}"])
def test_a_damaged_list_of_tasks_is_named_with_the_remedy(tmp_path: Path, job: Job, content: str) -> None:
    (tmp_path / "tasks.json").write_text(content)
    with pytest.raises(AjetError, match=r"tasks\.json: cannot be read .*--no-deterministic"):
        keep_same_tasks(tmp_path, job)


def test_the_list_of_tasks_appears_whole_or_not_at_all(
    tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        keep_same_tasks(tmp_path, job)
    monkeypatch.undo()
    assert not (tmp_path / "tasks.json").exists()
    keep_same_tasks(tmp_path, job)
    assert [name for name, _ in json.loads((tmp_path / "tasks.json").read_text())] == [
        f"q{n}" for n in range(6)
    ]


def test_a_deterministic_run_is_not_resumed_with_other_content_under_the_same_ids(
    tmp_path: Path, job: Job
) -> None:
    keep_same_tasks(tmp_path, job)
    tasks = [
        dataclasses.replace(task, metadata={"answer": "42"}) if task.id == "q3" else task
        for task in job.tasks
    ]
    with pytest.raises(ConfigError, match="number 4 is still 'q3', but has another content"):
        keep_same_tasks(tmp_path, dataclasses.replace(job, tasks=tasks))


def test_a_run_of_an_earlier_release_kept_only_the_ids_of_its_tasks(tmp_path: Path, job: Job) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([f"q{n}" for n in range(6)]))
    keep_same_tasks(tmp_path, job)
    with pytest.raises(ConfigError, match="number 1 was 'q0' and is 'q1'"):
        keep_same_tasks(tmp_path, with_tasks(job, 1, 0, 2, 3, 4, 5))


def test_a_run_that_is_not_deterministic_takes_whatever_tasks_there_are(tmp_path: Path, job: Job) -> None:
    keep_same_tasks(tmp_path, job)
    run = job.config.run.model_copy(update={"deterministic": False})
    config = job.config.model_copy(update={"run": run})
    keep_same_tasks(tmp_path, dataclasses.replace(with_tasks(job, 3), config=config))


def test_a_run_that_goes_on_tells_once_which_settings_are_others(job: Job, tmp_path: Path) -> None:
    run_dir, said = new_run_dir(with_settings(job, run={"dir": str(tmp_path)})), list[str]()
    same = prepare(resumed_layers(run_dir), resume=run_dir)
    tell_changes(run_dir, same, said.append)
    assert not said
    other = with_settings(same, train={"learning_rate": 0.5}, rollout={"group_size": 3})
    tell_changes(run_dir, other, said.append)
    tell_changes(run_dir, other, said.append)
    (line,) = said
    assert f"{run_dir} goes on with other settings: " in line
    assert f"train.learning_rate 0.5 (was {job.config.train.learning_rate})" in line
    assert f"rollout.group_size 3 (was {job.config.rollout.group_size})" in line
    assert line.endswith("A deterministic run repeats only under the same settings")


def test_a_run_that_went_on_with_more_steps_keeps_that_goal(job: Job, tmp_path: Path) -> None:
    run_dir, said = new_run_dir(with_settings(job, run={"dir": str(tmp_path)})), list[str]()
    tell_changes(run_dir, with_settings(job, train={"steps": 4545}), said.append)
    again = prepare(resumed_layers(run_dir), resume=run_dir)
    assert again.config.train.steps == 4545
    tell_changes(run_dir, again, said.append)
    assert len(said) == 1, "the second --resume needs no other arguments"
    assert run_line(run_dir).steps_wanted == 4545


def test_a_forecast_is_listed_among_checks_and_not_as_an_interrupted_run(job: Job, tmp_path: Path) -> None:
    job = with_settings(job, run={"dir": str(tmp_path), "name": "my-forecast"}, backbone={"name": "local"})
    run, forecast = (run_line(new_run_dir(job, what)) for what in ("", "forecast"))
    assert (run.kind, run.state) == ("", "interrupted")
    assert (forecast.kind, forecast.state) == ("forecast", "finished")
    assert [line.run for line in list_runs(tmp_path)] == [run.run]
    rows = run_table(list_runs(tmp_path, everything=True))
    assert [dict(zip(rows[0], row, strict=True))["algorithm"] for row in rows[1:]] == ["forecast", "grpo"]


def test_a_run_that_goes_on_tells_that_its_tasks_are_others(job: Job, tmp_path: Path) -> None:
    run_dir, said = new_run_dir(with_settings(job, run={"dir": str(tmp_path)})), list[str]()
    same = prepare(resumed_layers(run_dir), resume=run_dir)
    tell_changes(run_dir, with_tasks(same, *range(len(same.tasks))), said.append)
    assert not said
    answers = [dataclasses.replace(task, metadata={"answer": "99"}) for task in same.tasks]
    for tasks in (same.tasks[1:], [*same.tasks[1:], same.tasks[0]], answers):
        tell_changes(run_dir, dataclasses.replace(same, tasks=tasks), said.append)
    assert len(said) == 3 and all("tasks read.training" in line for line in said)


def test_other_tasks_of_a_deterministic_run_which_are_refused_later_do_not_become_its_own(
    job: Job, tmp_path: Path
) -> None:
    run_dir = new_run_dir(with_settings(job, run={"dir": str(tmp_path)}))
    wanted = (run_dir / "job.yaml").read_text()
    other = with_settings(with_tasks(job, 1, 2), train={"steps": 4545})
    tell_changes(run_dir, other, print)
    assert (run_dir / "job.yaml").read_text() == wanted


def test_a_torn_note_of_the_settings_is_no_obstacle(job: Job, tmp_path: Path) -> None:
    run_dir, said = new_run_dir(with_settings(job, run={"dir": str(tmp_path)})), list[str]()
    for content in ("", "[]", '{"train": '):
        (run_dir / "settings.json").write_text(content)
        tell_changes(run_dir, job, said.append)
    assert not said


def with_settings(job: Job, **sections: dict[str, Any]) -> Job:
    """The job with some keys changed."""
    new = {name: getattr(job.config, name).model_copy(update=values) for name, values in sections.items()}
    return dataclasses.replace(job, config=job.config.model_copy(update=new))
