"""Bad input gets one clear line and a non-zero exit, and nothing that was done before is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.e2e


def error_of(project, *arguments: str, code: int = 2) -> str:
    """The last line of a failing `ajet`, which must be its one error line."""
    return last_line(project.ajet(*arguments, code=code))


def last_line(output: str) -> str:
    assert "Traceback" not in output, output
    line = output.strip().splitlines()[-1]
    assert line.startswith("error: "), output
    return line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", "absent.jsonl"], ["absent.jsonl", "no such file"]),
        (["--workflow", "absent.py:run"], ["absent.py", "no such file"]),
        (["--workflow", "agent.py:rum"], ["agent.py", "'rum'", "did you mean 'run'"]),
        (["--workflow", "agent.py:client"], ["client", "not callable"]),
        (["--workflow", "broken.py:run"], ["broken.py", "ModuleNotFoundError", "broken.py:1"]),
        (["--backbone", "locale"], ["backbone", "'locale'", "did you mean 'local'", "debug"]),
        (["--judge", "maths"], ["judge", "'maths'", "did you mean 'math'"]),
        (["--set", "task.reader.type=jsonll"], ["task.reader", "'jsonll'", "did you mean 'jsonl'"]),
        (["--set", "train.algorithm=grop"], ["algorithm", "'grop'", "did you mean 'grpo'"]),
        (["--set", "train.learning_rat=1"], ["train.learning_rat", "did you mean 'learning_rate'"]),
        (
            ["--set", "backbone.local.max_batches=1"],
            ["backbone.local.max_batches", "did you mean 'max_batch'"],
        ),
        (["--set", "task.reader.pth=x"], ["task.reader.pth", "did you mean 'path'"]),
        (["--set", "rollout.sampling.top_p=0"], ["rollout.sampling.top_p", "0"]),
        (["--set", "rollout.timeout=soon"], ["rollout.timeout", "300s"]),
        (["--set", "targets.critic.agents=[critic]", "--set", "train.targets=[x]"], ["train.targets", "'x'"]),
        (
            [
                "--set",
                "targets.critic.agents=[critic]",
                "--set",
                "targets.solver.agents=['*']",
                "--set",
                "train.targets=[solver]",
            ],
            ["targets.critic", "neither trained nor has a frozen_model"],
        ),
        (
            ["--set", "targets={a: {}, b: {train: false}}", "--set", "train.targets=[a, b]"],
            ["train.targets", "'b' has train: false"],
        ),
        (
            ["--set", "targets={a: {}, b: {train: false, lora: {rank: 2}}}"],
            ["targets.b", "its lora would never be trained"],
        ),
        (["--set", "targets={a: {train: false}}"], ["targets", "none is trained"]),
        (
            ["--set", "targets={a.b: {lora: {rank: 2}}}"],
            ["targets.a.b: its lora is a folder", "letters, digits"],
        ),
        (
            ["--set", "targets={solver: {lora: {modules: [query]}}}"],
            ["targets.solver.lora.modules", "'query'", "q_proj"],
        ),
        (
            ["--backbone", "verl", "--memory-limit", "2GiB"],
            ["--memory-limit", "only the backbone local", "verl"],
        ),
        (["--memory-limit", "much"], ["backbone.local.memory_limit", "write it like 2GiB"]),
        (["--memory-limit", "50MiB"], ["the job needs about", "there are 50 MiB (memory_limit)", "weights"]),
        (["--resume", "nowhere"], ["nowhere"]),
    ],
)
def test_a_wrong_job_is_refused_before_anything_starts(project, arguments, said) -> None:
    (project.folder / "broken.py").write_text("import no_such_module\n")
    job = [] if "--resume" in arguments else ["job.yaml"]
    line = error_of(project, "run", *job, *arguments)
    assert all(words in line for words in said), line
    assert not (project.folder / "runs").exists()


def test_a_missing_job_file_is_named(project) -> None:
    assert "absent.yaml" in error_of(project, "run", "absent.yaml")


def test_a_job_file_that_is_no_yaml_is_named_with_its_line(project) -> None:
    (project.folder / "bad.yaml").write_text("task:\n  reader: [\n")
    assert "bad.yaml:3" in error_of(project, "run", "bad.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run:\n  loggers: &a [*a]\n", "bad.yaml:2: *a contains itself"),
        ("run:\n  loggers: " + "[" * 20_000, "bad.yaml:2: nested deeper than 100 levels"),
        (
            "a: &a [x]\n" + "".join(f"{n}: &{n} [*{m}{f', *{m}' * 9}]\n" for m, n in pairwise("abcdefghi")),
            "more than 1,000,000 values",
        ),
    ],
)
def test_a_hostile_job_file_is_one_line_with_its_place(project, text, said) -> None:
    (project.folder / "bad.yaml").write_text(text)
    assert said in error_of(project, "run", "bad.yaml")


def test_half_of_a_surrogate_pair_is_named_or_skipped(project) -> None:
    good = (project.folder / "tasks.jsonl").read_text()
    (project.folder / "tasks.jsonl").write_text(good + '{"query": "half \\ud800"}\n')
    reader = ["--set", "task.reader={type: jsonl, path: tasks.jsonl}"]
    line = error_of(project, "run", "job.yaml", "--dry-run", *reader)
    number = len(good.splitlines()) + 1
    assert f"tasks.jsonl:{number}: \\ud800 is half of a surrogate pair" in line and "on_error: skip" in line
    project.ajet("run", "job.yaml", "--dry-run", *reader, "--set", "task.reader.on_error=skip")


def test_broken_json_is_named_with_file_and_line(project) -> None:
    (project.folder / "tasks.jsonl").write_text('{"id": "a", "query": "x"}\n{"id": "b", }\n')
    assert "tasks.jsonl:2" in error_of(project, "run", "job.yaml")


def test_duplicate_task_ids_are_named(project) -> None:
    (project.folder / "tasks.jsonl").write_text('{"id": "a", "query": "x"}\n' * 2)
    line = error_of(project, "run", "job.yaml")
    assert "duplicate task id 'a'" in line


def test_a_model_folder_without_tokenizer_is_refused_with_the_remedy(project, tiny_model) -> None:
    bare = project.folder / "bare"
    shutil.copytree(tiny_model, bare, ignore=shutil.ignore_patterns("tokenizer*", "chat_template*"))
    line = error_of(project, "run", "job.yaml", "--model", "bare", code=1)
    assert "no tokenizer" in line and "save_pretrained" in line


def test_a_model_folder_that_is_not_there_is_refused(project) -> None:
    assert "nowhere" in error_of(project, "run", "job.yaml", "--model", "./nowhere")


@pytest.mark.slow
def test_a_judge_that_always_raises_ends_the_run_with_its_cause(project) -> None:
    (project.folder / "judges.py").write_text("def judge(task, output):\n    raise KeyError('answer')\n")
    line = error_of(project, "run", "job.yaml", "--judge", "judges.py:judge", code=1)
    assert "all 6 episodes failed" in line and "judge:KeyError" in line


@pytest.mark.whole
def test_a_prompt_longer_than_the_context_is_counted_and_named(project) -> None:
    (project.folder / "tasks.jsonl").write_text(json.dumps({"id": "long", "query": "word " * 400}) + "\n")
    line = error_of(project, "run", "job.yaml", code=1)
    assert "context_overflow" in line


@pytest.mark.whole
def test_a_failing_run_loses_nothing_of_an_earlier_one(project) -> None:
    project.ajet("run", "job.yaml", "--steps", "1")
    (run_dir,) = project.runs("runs")
    before = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}
    error_of(project, "run", "--resume", str(run_dir), "--judge", "absent.py:judge")
    assert {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()} == before


@pytest.mark.whole
def test_a_plugin_of_a_taken_name_is_an_error_that_names_both(project, tmp_path_factory) -> None:
    site = tmp_path_factory.mktemp("site")
    fake_distribution(site, "other-judges", "other_judges", PLUGIN.replace("NAME", "math"))
    done = subprocess.run(
        [sys.executable, "-m", "ajet", "run", "job.yaml"],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    line = last_line(done.stdout)
    assert done.returncode == 2
    assert "judge 'math'" in line and "other-judges" in line and "ajet-plugin-judges" in line


PLUGIN = """
import ajet
class Mine(ajet.Judge):
    name = "NAME"
    async def judge(self, task, output, episode):
        return ajet.JudgeOutput(1.0)
@ajet.hookimpl
def ajet_plugins():
    return [Mine]
"""


def fake_distribution(site: Path, distribution: str, module: str, code: str) -> None:
    """A distribution as pip would leave it in a folder of the path."""
    (site / f"{module}.py").write_text(code)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ajet]\nx = {module}\n")
