"""`ajet show` as it is typed: a run, an episode, HTML, JSON; and what it says when there is nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

from .conftest import Folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is empty until the first run."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def ran(folder: Folder, kept: Path) -> Folder:
    """A folder in which a job was run by the debug backbone: once, then it is copied."""
    if not (kept / "runs").exists():
        outcome = folder.ajet("run", "job.yaml")
        assert outcome.code == 0, outcome.err
        shutil.copytree(folder.path / "runs", kept / "runs")
    shutil.copytree(kept / "runs", folder.path / "runs", dirs_exist_ok=True)
    return folder


def test_a_folder_of_runs_shows_its_newest_at_a_glance(ran: Folder) -> None:
    outcome = ran.ajet("show", "runs")
    assert outcome.code == 0, outcome.err
    (run_dir,) = (ran.path / "runs").iterdir()
    labels = dict(line.split("  ", 1) for line in outcome.out.split("\n\n")[0].splitlines())
    assert labels["run"].strip() == str(run_dir.relative_to(ran.path))
    assert "agent.py:run, grpo on debug" in labels["job"]
    assert labels["episodes"].strip() == "2 debug"
    assert "nothing is trained" in labels["state"]
    assert f"ajet show runs/{run_dir.name} 1." in outcome.out


def test_the_commands_that_it_names_work(ran: Folder) -> None:
    named = [line.split() for line in ran.ajet("show", "runs").out.splitlines() if "ajet show" in line]
    for words in named:
        outcome = ran.ajet(*words[1:4])
        assert outcome.code == 0 and ["episode", words[3]] == outcome.out.split()[:2]


@pytest.mark.parametrize("name", ["\x1b[2J", "", "$content/x"])
def test_calls_of_a_target_of_any_name_are_shown(ran: Folder, name: str) -> None:
    (run_dir,) = (ran.path / "runs").iterdir()
    journal = run_dir / "episodes.jsonl"
    written = journal.read_text()
    journal.write_text(written.replace('"target": "policy"', f'"target": {json.dumps(name)}'))
    assert journal.read_text() != written
    outcome = ran.ajet("show", "runs", "--html", "run.html", "--all")
    assert outcome.code == 0, outcome.err
    assert "\x1b" not in (ran.path / "run.html").read_text()


def test_an_episode_is_shown_by_a_part_of_its_id_with_its_chat(ran: Folder) -> None:
    outcome = ran.ajet("show", "runs", "/a/")
    assert outcome.code == 0, outcome.err
    assert "reward    1 (success)" in outcome.out
    assert "1  user\n     2+2?" in outcome.out and "2  assistant · call 0" in outcome.out
    assert "a chat model answered, so there are no tokens" in outcome.out
    assert "\x1b" not in outcome.out, "no colours where there is no terminal"


def test_json_has_the_same_facts(ran: Folder) -> None:
    run = json.loads(ran.ajet("show", "runs", "--json").out)
    assert run["episodes"] == {"debug": 2} and len(run["picks"]) >= 2
    episode = json.loads(ran.ajet("show", "runs", "/a/", "--json").out)
    assert episode["header"]["reward"] == 1.0
    assert [line["content"] for line in episode["conversations"][0]["chat"]] == ["2+2?", "4"]


def test_an_episode_is_printed_as_a_trajectory(ran: Folder) -> None:
    outcome = ran.ajet("show", "runs", "/a/", "--atif")
    assert outcome.code == 0, outcome.err
    trajectory = json.loads(outcome.out)
    assert [(step["source"], step["message"]) for step in trajectory["steps"]] == [
        ("user", "2+2?"),
        ("agent", "4"),
    ]
    assert trajectory["extra"]["reward"] == 1 and trajectory["extra"]["task"]["metadata"] == {"answer": "4"}
    assert trajectory["session_id"].startswith(next((ran.path / "runs").iterdir()).name)


def test_html_is_written_into_one_file(ran: Folder) -> None:
    outcome = ran.ajet("show", "runs", "--html", "run.html")
    assert outcome.code == 0 and outcome.out == "written: run.html, with 2 of 2 episodes\n"
    assert (ran.path / "run.html").read_text().count("<article") == 2
    assert ran.ajet("show", "runs", "/b/", "--html", "one.html").code == 0
    assert (ran.path / "one.html").read_text().count("<article") == 1


def test_html_says_which_episodes_it_holds_and_all_writes_every_one(folder: Folder) -> None:
    folder.write("tasks.jsonl", "".join(f'{{"query": "{n}?", "answer": "4"}}\n' for n in range(9)))
    assert folder.ajet("run", "job.yaml", "--set", "backbone.debug.tasks=9").code == 0
    some = folder.ajet("show", "runs", "--html", "some.html").out
    count = (folder.path / "some.html").read_text().count("<article")
    assert count < 9 and some == f"written: some.html, with {count} of 9 episodes; --all includes every one\n"
    page = (folder.path / "some.html").read_text()
    assert f"On this page: {count} of 9 episodes." in page
    every = folder.ajet("show", "runs", "--html", "every.html", "--all").out
    page = (folder.path / "every.html").read_text()
    assert every == "written: every.html, with 9 of 9 episodes\n" and page.count("<article") == 9
    assert "On this page" not in page and "all 9 episodes" in page
    words = " ".join(folder.ajet("show", "--help").out.split())
    assert "some of its episodes" in words and "all of it" not in words


def test_html_into_a_folder_that_is_not_there_is_one_line(ran: Folder) -> None:
    outcome = ran.ajet("show", "runs", "--html", "no/where.html")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert outcome.err.startswith("error: --html no/where.html cannot be written")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "error: nope: no such folder. Name the folder of a run"),
        (
            ["."],
            "error: .: not a run folder or a folder of runs: neither it nor a folder in it has an episodes.jsonl.",
        ),
        (["runs", "1.9/a/0"], "no such episode in runs/"),
        (["runs", "1."], "2 episodes of runs/"),
        (["runs", "--tokens"], "error: --tokens needs an episode; name one after runs."),
        (["runs", "--all"], "error: --all needs an episode; name one after runs."),
        (["runs", "--atif"], "error: --atif needs an episode; name one after runs."),
        (["runs", "/a/", "--atif", "--json"], "error: --atif and --json exclude each other"),
        (["runs", "--record", "x.json", "--atif"], "error: --record and --atif exclude each other"),
        (["runs", "--json", "--html", "x.html"], "error: --json and --html exclude each other"),
    ],
)
def test_what_is_not_there_is_one_clear_line(ran: Folder, arguments: list[str], said: str) -> None:
    outcome = ran.ajet("show", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1 and said in outcome.err


def test_a_run_that_is_still_going_or_was_killed_is_shown_up_to_its_last_whole_line(ran: Folder) -> None:
    (journal,) = ran.path.glob("runs/*/episodes.jsonl")
    journal.write_bytes(journal.read_bytes()[:-20])
    assert "1 debug" in ran.ajet("show", "runs").out


def test_it_needs_neither_the_workflow_nor_its_tasks(ran: Folder) -> None:
    for name in ("agent.py", "tasks.jsonl", "script.yaml"):
        (ran.path / name).unlink()
    assert ran.ajet("show", "runs").code == 0
    assert ran.ajet("show", "runs", "/a/").code == 0


@pytest.mark.whole
def test_a_reader_that_closes_the_pipe_early_sees_no_traceback(ran: Folder, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m ajet show runs /a/ | head -n 1"],
        cwd=ran.path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout.startswith("episode") and "Traceback" not in done.stderr


@pytest.mark.whole
def test_a_terminal_of_few_characters_gets_escapes(ran: Folder) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ajet", "show", "runs", "/a/"],
        cwd=ran.path,
        capture_output=True,
        timeout=PATIENCE,
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert b"assistant \\xb7 call 0" in done.stdout


@pytest.mark.whole
def test_it_imports_nothing_heavy(ran: Folder) -> None:
    code = "import sys; from ajet.cli import run_program; run_program(['show', 'runs', '/a/'])\n"
    code += (
        "print('heavy:', [m for m in ('torch', 'transformers', 'openai', 'renderers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ran.path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.splitlines()[-1] == "heavy: []", done.stderr
