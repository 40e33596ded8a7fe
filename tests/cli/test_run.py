"""`ajet run`: a file, flags and `--set` over each other; the dry run; the debug backbone end to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.cli.summary import describe_result
from ajet.interfaces.backbone import RunResult
from ajet.rollout.recorder import RunRecorder
from ajet.utils import breakpoints
from tests.patience import PATIENCE

from .conftest import Folder


def dry(folder: Folder, *arguments: str) -> tuple[dict[str, Any], list[str]]:
    """The resolved job and its comment lines."""
    outcome = folder.ajet("run", *arguments, "--dry-run")
    assert outcome.code == 0, outcome.err
    comments = [" ".join(line.split()) for line in outcome.out.splitlines() if line.startswith("#")]
    return yaml.safe_load(outcome.out), comments


def test_the_learning_rate_has_an_option(folder: Folder) -> None:
    out = folder.ajet("run", "job.yaml", "--learning-rate", "3e-4", "--dry-run").out
    assert re.search(r"train\.learning_rate +0\.0003 +--learning-rate", out)
    assert "--learning-rate" in folder.ajet("run", "job.yaml", "--learning-rate", "0").err


def test_a_dry_run_prints_the_whole_job_with_absolute_paths_and_runs_nothing(folder: Folder) -> None:
    job, comments = dry(folder, "job.yaml")
    assert comments[0] == "# 2 tasks, 0 validation tasks. Nothing was run."
    assert job["task"]["reader"] == {"type": "jsonl", "path": str(folder.path / "tasks.jsonl")}
    assert job["workflow"] == f"{folder.path / 'agent.py'}:run"
    assert job["backbone"]["debug"]["answers"]["path"] == str(folder.path / "script.yaml")
    assert job["rollout"]["timeout"] == 300.0
    assert not (folder.path / "runs").exists()


def test_a_dry_run_prints_a_job_file_that_runs_from_anywhere(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    printed = folder.ajet("run", "job.yaml", "--dry-run").out
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "copy.yaml").write_text(printed)
    monkeypatch.chdir(elsewhere)
    again, _ = dry(folder, "copy.yaml")
    assert again == yaml.safe_load(printed)


def test_set_beats_flags_and_flags_beat_the_file_each_with_its_source(folder: Folder) -> None:
    job, comments = dry(
        folder, "job.yaml", "--steps", "5", "--seed", "7", "--set", "run.seed=8", "--no-deterministic"
    )
    assert (job["train"]["steps"], job["run"]["seed"]) == (5, 8)
    assert "# train.steps 5 --steps" in comments
    assert "# run.seed 8 --set" in comments
    assert "# run.deterministic False --[no-]deterministic" in comments
    assert "# judge.type exact job.yaml" in comments


def test_tags_of_flags_replace_those_of_the_job(folder: Folder) -> None:
    folder.write(
        "named.yaml", "run: {name: one, tags: [a]}\ntask: {reader: tasks.jsonl}\nworkflow: agent.py:run\n"
    )
    kept, _ = dry(folder, "named.yaml")
    assert (kept["run"]["name"], kept["run"]["tags"]) == ("one", ["a"])
    job, comments = dry(folder, "named.yaml", "--name", "two", "--tag", "b", "--tag", "c")
    assert (job["run"]["name"], job["run"]["tags"]) == ("two", ["b", "c"])
    assert "# run.name two --name" in comments and any(line.endswith("--tag") for line in comments)


def test_flags_alone_make_a_job(folder: Folder) -> None:
    flags = ["--workflow", "agent.py:run", "--tasks", "tasks.jsonl", "--judge", "math", "--backbone", "debug"]
    job, _ = dry(folder, *flags, "--validation", "tasks.jsonl", "--model", "some/model")
    assert job["judge"] == {"type": "math"}
    assert job["model"] == "some/model"
    assert job["task"]["validation"]["path"] == str(folder.path / "tasks.jsonl")


def test_paths_in_a_file_are_relative_to_it_and_paths_in_flags_to_the_working_directory(
    folder: Folder,
) -> None:
    folder.write(
        "sub/job.yaml", "task: {reader: ../tasks.jsonl}\nworkflow: ../agent.py:run\nbackbone: debug\n"
    )
    folder.write("other.jsonl", '{"query": "1+1?"}\n')
    job, _ = dry(folder, "sub/job.yaml")
    assert job["task"]["reader"]["path"] == str(folder.path / "tasks.jsonl")
    job, comments = dry(folder, "sub/job.yaml", "--tasks", "other.jsonl")
    assert job["task"]["reader"]["path"] == str(folder.path / "other.jsonl")
    assert comments[0].startswith("# 1 tasks")


def test_a_judge_function_in_a_file_is_relative_to_the_job_file_in_both_forms(folder: Folder) -> None:
    folder.write("sub/judge.py", "def half(task, output):\n    return 0.5\n")
    for form in ("judge.py:half", "{type: judge.py:half}"):
        folder.write(
            "sub/job.yaml", f"task: {{reader: ../tasks.jsonl}}\nworkflow: ../agent.py:run\njudge: {form}\n"
        )
        job, _ = dry(folder, "sub/job.yaml", "--backbone", "debug")
        assert job["judge"]["type"] == f"{folder.path / 'sub' / 'judge.py'}:half"


def test_tasks_over_a_reader_of_files_keep_its_field_names(folder: Folder) -> None:
    folder.write("renamed.jsonl", '{"question": "1+1?"}\n')
    job, _ = dry(folder, "job.yaml", "--set", "task.reader.query=question", "--tasks", "renamed.jsonl")
    assert job["task"]["reader"]["query"] == "question"


def test_tasks_over_another_reader_replace_it(folder: Folder) -> None:
    folder.write(
        "random.yaml", "task: {reader: {type: random, seed: 3}}\nworkflow: agent.py:run\nbackbone: debug\n"
    )
    job, comments = dry(folder, "random.yaml", "--tasks", "tasks.jsonl")
    assert job["task"]["reader"] == {"type": "jsonl", "path": str(folder.path / "tasks.jsonl")}
    assert "# task.reader.type jsonl --tasks" in comments


def test_a_workflow_may_be_a_module_of_the_working_directory(folder: Folder) -> None:
    folder.write("here_only/agent.py", (folder.path / "agent.py").read_text())
    job, _ = dry(folder, "job.yaml", "--workflow", "here_only.agent:run")
    assert job["workflow"] == "here_only.agent:run"


def test_the_debug_backbone_runs_the_job_and_says_where_everything_is(folder: Folder) -> None:
    outcome = folder.ajet("run", "job.yaml")
    assert outcome.code == 0, outcome.err
    (run_dir,) = (folder.path / "runs").iterdir()
    assert f"ajet show {run_dir}" in outcome.out
    assert "pass  1." in outcome.err and "miss  1." in outcome.err
    assert "train.steps" in outcome.err  # the keys that had no effect


def test_break_stops_at_its_tag_only(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write(
        "agent.py",
        "import ajet\n"
        + (folder.path / "agent.py")
        .read_text()
        .replace("    async with", '    ajet.breakpoint("A")\n    ajet.breakpoint("B")\n    async with', 1),
    )
    hits: list[bool] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: hits.append(True))
    monkeypatch.setattr(breakpoints, "_enabled", set())
    outcome = folder.ajet("run", "job.yaml", "--break", "B")
    assert outcome.code == 0, outcome.err
    assert len(hits) == 2, "one for each of two episodes"


@pytest.mark.whole
def test_ctrl_c_ends_with_130_and_names_the_run_folder(folder: Folder) -> None:
    folder.write(
        "agent.py",
        "import asyncio\nasync def run(task):\n    open('started', 'w')\n    await asyncio.sleep(60)\n",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "ajet", "run", "job.yaml"],
        cwd=folder.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE
    while not (folder.path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    (run_dir,) = (folder.path / "runs").iterdir()
    assert process.returncode == 130
    assert f"interrupted. Run folder: {run_dir}; no checkpoint yet" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope.yaml"], "nope.yaml: no such job file."),
        (["job.yaml", "--set", "train.stepps=3"], "--set train.stepps: unknown key; did you mean 'steps'"),
        (["job.yaml", "--set", "train.lr=1"], "--set train.lr: unknown key; did you mean 'learning_rate'"),
        (["job.yaml", "--set", "learning_rate=1"], "unknown key; did you mean 'train.learning_rate'"),
        (["job.yaml", "--set", "temp=1"], "unknown key; did you mean 'rollout.sampling.temperature'"),
        (
            ["job.yaml", "--backbone", "local", "--model", "starterr"],
            "--model starterr: no such recipe or folder; did you mean 'starter'",
        ),
        (
            ["job.yaml", "--set", "backbone.type=debug"],
            "backbone.type: unknown key. backbone.name names the backbone",
        ),
        (["job.yaml", "--set", "backbone.tasks=2"], "its own settings are below backbone."),
        (["job.yaml", "--set", "trian.steps=3"], "unknown key; did you mean 'train'"),
        (["job.yaml", "--set", "train.steps"], "--set train.steps: write --set a.b.c=value."),
        (
            ["job.yaml", "--backbone", "debgu"],
            "--backbone: unknown backbone 'debgu'; did you mean 'debug'",
        ),
        (["job.yaml", "--judge", "matth"], "--judge: unknown judge 'matth'; did you mean 'math'"),
        (["job.yaml", "--set", "task.reader.type=jsnl"], "unknown reader 'jsnl'; did you mean 'jsonl'"),
        (["job.yaml", "--set", "task.reader.qery=x"], "task.reader.qery: unknown key; did you mean 'query'"),
        (["job.yaml", "--tasks", "nope.jsonl"], "nope.jsonl: no such file"),
        (["job.yaml", "--workflow", "agent.py:rum"], "agent.py has no 'rum'; did you mean 'run'"),
        (["job.yaml", "--workflow", "agent.py:not_callable"], "int is not callable"),
        (["job.yaml", "--workflow", "nope_nope:run"], "does not import: ModuleNotFoundError"),
        (["job.yaml", "--set", "rollout.sampling.min_p=1"], "rollout.sampling.min_p: "),
        (["--resume", "nowhere"], "--resume nowhere: no such folder."),
        (["--resume", "sub"], "--resume sub: it holds no job.yaml."),
    ],
)
def test_a_wrong_job_is_one_line_and_exit_code_2(folder: Folder, arguments: list[str], said: str) -> None:
    (folder.path / "sub").mkdir()
    outcome = folder.ajet("run", *arguments, "--dry-run")
    assert outcome.code == 2, outcome.out
    (line,) = outcome.err.splitlines()
    assert line.startswith("error: ") and said in line


def test_broken_yaml_is_named_with_its_line(folder: Folder) -> None:
    folder.write("bad.yaml", "model: x\ntrain: {steps: 3\n")
    outcome = folder.ajet("run", "bad.yaml")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "error: bad.yaml:" in outcome.err and "not YAML" in outcome.err


def test_broken_json_is_named_with_its_line(folder: Folder) -> None:
    folder.write("tasks.jsonl", '{"query": "1"}\n{"query": 2,}\n')
    assert "tasks.jsonl:2: not JSON" in folder.ajet("run", "job.yaml").err


def test_duplicate_tasks_are_named_with_file_lines_query_and_remedy(folder: Folder) -> None:
    twice = '{"id": "a", "query": "1 + 1?"}\n{"id": "b", "query": "2"}\n{"id": "a", "query": "3 + 3?"}\n'
    folder.write("tasks.jsonl", twice)
    outcome = folder.ajet("run", "job.yaml")
    file = folder.path / "tasks.jsonl"
    assert outcome.code == 2 and outcome.err == (
        f"error: job.yaml: task.reader: duplicate task id 'a': {file}:1 '1 + 1?' and {file}:3 '3 + 3?'. "
        "Rename or remove one, or set task.reader.drop_duplicates: true, which keeps the first.\n"
    )
    assert folder.ajet("run", "job.yaml", "--dry-run", "--set", "task.reader.drop_duplicates=true").code == 0


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        (
            "def judge(answer): ...",
            "must take (task, output) or (task, output, episode), but takes (answer).",
        ),
        ("def judge(output, task, /): ...", "must take (task, output) or (task, output, episode), but takes"),
        ("class judge: ...", "the class is not a subclass of ajet.Judge; name a function or a subclass"),
        (
            "import ajet\nclass judge(ajet.Judge):\n    async def judge(self, output): ...",
            "judge.judge must take (self, task, output, episode), but takes (self, output) (at ",
        ),
    ],
)
def test_a_judge_that_cannot_be_called_is_refused_before_anything_runs(
    folder: Folder, judge: str, message: str
) -> None:
    folder.write("mine.py", judge)
    outcome = folder.ajet("run", "job.yaml", "--judge", "mine.py:judge")
    assert (
        outcome.code == 2 and "mine.py:judge: " in outcome.err and outcome.err.startswith("error: --judge ")
    )
    assert message in outcome.err and "run folder" not in outcome.err


def test_a_judge_that_wants_the_output_gets_the_output_and_never_the_task(folder: Folder) -> None:
    folder.write("mine.py", "def judge(output): return output.response == '4'")
    outcome = folder.ajet("run", "job.yaml", "--judge", "mine.py:judge", "--steps", "1")
    assert outcome.code == 0 and "reward 1.000" in outcome.err


def test_a_job_file_and_resume_exclude_each_other(folder: Folder) -> None:
    outcome = folder.ajet("run", "job.yaml", "--resume", "runs/x")
    assert outcome.code == 2 and "remove job.yaml" in outcome.err


def test_a_run_in_which_everything_fails_ends_with_exit_code_1(folder: Folder) -> None:
    folder.write("agent.py", "def run(task):\n    raise KeyError('answer')\n")
    outcome = folder.ajet("run", "job.yaml")
    assert outcome.code == 1
    assert "all 2 episodes failed: 2 workflow:KeyError" in outcome.err.splitlines()[-1]


def test_resume_takes_the_job_of_the_run_folder_and_flags_lie_over_it(folder: Folder, tmp_path: Path) -> None:
    assert folder.ajet("run", "job.yaml").code == 0
    (run_dir,) = (tmp_path / "runs").iterdir()
    job, comments = dry(folder, "--resume", str(run_dir), "--steps", "9")
    assert job["task"]["reader"]["path"] == str(tmp_path / "tasks.jsonl")
    assert "# train.steps 9 --steps" in comments


def test_set_unsets_a_key_by_null(folder: Folder) -> None:
    folder.write("job.yaml", (folder.path / "job.yaml").read_text() + "rollout: {workdir: nowhere}\n")
    assert folder.ajet("run", "job.yaml", "--dry-run").code == 2
    assert folder.ajet("run", "job.yaml", "--dry-run", "--set", "rollout.workdir=null").code == 0


def test_the_seconds_of_a_resumed_run_are_those_of_all_its_steps(tmp_path: Path) -> None:
    recorder = RunRecorder(tmp_path)
    for step in (1, 2, 3):
        recorder.metrics("train", step, {"seconds_rollout": 1.0, "seconds_update": 2.0})
    recorder.close()
    said = describe_result(RunResult(run_dir=tmp_path, steps=3))
    assert "trained        3 steps, 9 s without validation" in said
