"""Recordings in docs/own-agent.md, run as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from ajet.testing.recordings import RecordingFile, ReplayedEpisode
from tests.pages import blocks, files, page
from tests.program import Program

PAGE = page("docs/own-agent.md").partition("\n## Recordings\n")[2].partition("\n## ")[0]
SHOWN = [code.partition("\n") for code in blocks(PAGE, "") if code.startswith("$ ajet ")]


@pytest.fixture
def example(tmp_path: Path, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's files, beside a model that says what the page's does."""
    (said,) = re.findall(r"The model says `(.*?)`", PAGE)
    message = {"role": "assistant", "content": said}
    httpserver.expect_request("/v1/chat/completions").respond_with_json({"choices": [{"message": message}]})
    for name, content in files(PAGE).items():
        text = content.replace("http://localhost:8001", httpserver.url_for("").rstrip("/"))
        (tmp_path / name).write_text(text, encoding="utf-8")
    (test,) = [code for code in blocks(PAGE, "python") if code.startswith("def test_")]
    (tmp_path / "test_agent.py").write_text(test, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    forget_agent(tmp_path)


def forget_agent(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == str(folder / "agent.py"):
            del sys.modules[name]


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:langsmith_plugin",
        "test_agent.py",
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def edit(folder: Path, old: str, new: str) -> None:
    agent = folder / "agent.py"
    text = agent.read_text(encoding="utf-8")
    assert old in text
    agent.write_text(text.replace(old, new), encoding="utf-8")
    forget_agent(folder)


@pytest.mark.whole
def test_the_commands_print_what_the_page_shows_and_the_test_fails_until_the_agent_is_fixed(
    example: Path, ajet: Program
) -> None:
    assert [command.split()[4] for command, _, _ in SHOWN] == ["--record", "--replay"]
    for command, _, shown in SHOWN:
        done = ajet(*shlex.split(command)[2:])
        assert done.code == 0, done.err
        for line in shown.splitlines():
            assert line in (done.out + done.err).splitlines(), line
    before = run_pytest(example)
    assert before.returncode == 1 and "reward 0" in before.stdout, before.stdout
    (broken, fixed) = (f".split(){end}" for end in ("[-1]", '[-1].rstrip(".")'))
    assert f"`{fixed}`" in PAGE
    edit(example, broken, fixed)
    after = run_pytest(example)
    assert after.returncode == 0, after.stdout


@pytest.mark.whole
def test_another_request_prints_what_the_page_shows(example: Path, ajet: Program) -> None:
    assert ajet("run", "job.yaml", "--record", "failing.json").code == 0
    edit(example, "task.query", 'task.query + " Be brief."')
    done = ajet("run", "job.yaml", "--replay", "failing.json")
    (shown,) = [code for code in blocks(PAGE, "") if code.startswith("differs")]
    assert done.code == 1 and done.out == shown


def test_one_episode_of_the_finished_run_is_the_same_recording(example: Path, ajet: Program) -> None:
    assert ajet("run", "job.yaml", "--record", "failing.json").code == 0
    (command,) = re.findall(r"`ajet (show .*? --record) failing.json`", PAGE)
    assert ajet(*command.split(), "one.json").code == 0
    whole = (example / "failing.json").read_text()
    assert (example / "one.json").read_text() == whole
    (example / "failing.json").unlink()
    (code,) = re.findall(r"`(ajet\.load_run[^`]*)`", PAGE)
    exec(f"import ajet\n{code}")
    assert (example / "failing.json").read_text() == whole


def test_the_table_names_everything_of_the_fixture() -> None:
    for name in ("replay", "replay_all", "episodes"):
        assert f"`.{name}" in PAGE and hasattr(RecordingFile, name)
    for name in ReplayedEpisode.__dataclass_fields__:
        assert f"`{name}`" in PAGE, name
