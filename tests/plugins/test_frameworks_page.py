"""docs/frameworks.md and the frameworks' examples, run as they stand there."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ajet.cli import run_program
from tests.pages import files, page
from tests.tiers import fast

from .programs import require

ROOT = Path(__file__).resolve().parents[2]
PAGE = page("docs/frameworks.md")
MODULES = {
    "openai_sdk": "openai",
    "langgraph": "langchain",
    "agentscope": "agentscope.credential",
    "openai_agents": "agents",
    "autogen": "autogen_agentchat",
}


@dataclass(frozen=True)
class Section:
    """What the page shows for one framework."""

    install: str
    agent: str
    command: str


def sections() -> dict[str, Section]:
    """By plugin."""
    found = {}
    for text in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        install = re.search(r'^pip install "ajet\[local,([\w-]+)\]".*$', text, re.MULTILINE)
        command = re.search(r"(?<=^\$ )(?:\w+=\w+ )?ajet .*$", text, re.MULTILINE)
        if install and command:
            found[{"openai": "openai_sdk"}.get(install[1], install[1].replace("-", "_"))] = Section(
                install[0], files(text)["agent.py"], command[0]
            )
    return found


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_sockets: None
) -> Iterator[tuple[Path, pytest.MonkeyPatch]]:
    """A user's folder as the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    yield tmp_path, monkeypatch


def ajet(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run ``ajet …`` in this process; its output."""
    capsys.readouterr()
    code = run_program(shlex.split(command)[1:])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out


def test_every_framework_with_a_plugin_has_its_section() -> None:
    assert set(sections()) == set(MODULES)


@pytest.mark.whole
@pytest.mark.parametrize("name", fast({0, 1}, list(MODULES)))
def test_the_unchanged_agent_runs_by_the_command_shown(
    name: str, here: tuple[Path, pytest.MonkeyPatch], capsys: pytest.CaptureFixture[str]
) -> None:
    require(MODULES[name])
    folder, _ = here
    section = sections()[name]
    for file, text in {**files(PAGE), "agent.py": section.agent}.items():
        (folder / file).write_text(text, encoding="utf-8")
    out = ajet(re.sub(r"^\w+=\w+ ", "", section.command), capsys)
    agent = "agent" if name == "openai_sdk" else "solver"
    assert re.search(rf"calls captured +16, 2.0 an episode; by agent: {agent} 16$", out, re.MULTILINE), out
    assert re.search(r"reward +1.00 ", out), out
    assert re.search(r"timelines +1.0 an episode, at most 1$", out, re.MULTILINE), out
    assert "breaks: none" in out
    assert "ajet" not in section.agent, "the agent is unchanged"


@pytest.mark.parametrize("name", MODULES)
def test_the_install_line_names_what_is_there(name: str) -> None:
    require(MODULES[name])
    known = importlib.metadata.metadata("ajet").get_all("Provides-Extra") or ()
    ours, *others = shlex.split(sections()[name].install)[2:]
    assert ours.startswith("ajet[") and set(ours[5:-1].split(",")) <= set(known)
    for distribution in others:
        importlib.metadata.version(distribution)


@pytest.mark.whole
@pytest.mark.parametrize("name", fast({0}, [name for name in MODULES if name != "openai_sdk"]))
def test_the_example_is_checked_as_its_readme_says(
    name: str, here: tuple[Path, pytest.MonkeyPatch], capsys: pytest.CaptureFixture[str]
) -> None:
    require(MODULES[name])
    folder, monkeypatch = here
    shutil.copytree(ROOT / "examples" / name, folder / name)
    monkeypatch.chdir(folder / name)
    command = "ajet check job.yaml --answers answers.yaml"
    assert command in (folder / name / "README.md").read_text(encoding="utf-8")
    out = ajet(command, capsys)
    assert re.search(r"calls captured +32, 2.0 an episode; by agent: solver 32$", out, re.MULTILINE), out
    assert re.search(r"reward +0.75 ", out), out
    assert "breaks: none" in out
    assert "ajet" not in (folder / name / "agent.py").read_text(encoding="utf-8").lower()
