"""`ajet plugin new`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ajet.cli import run_program
from ajet_projects.skeletons import KINDS, files

from .conftest import Folder

BY_ITSELF = ["-p", "no:cacheprovider", "--import-mode=importlib", "-c", "/dev/null"]


@dataclass(frozen=True)
class Begun:
    """A package of each kind, installed together in a folder of their own."""

    folder: Path
    environment: dict[str, str]

    def run(self, *words: str) -> str:
        """The output of ``python -m``, where all of them are installed."""
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of each kind."""
    folder = tmp_path_factory.mktemp("begun")
    for kind in KINDS:
        package = str(folder / f"ajet-my-own-{kind}")
        assert run_program(["plugin", "new", kind, f"my_own_{kind}", "--folder", package]) == 0
    return folder


@pytest.fixture(scope="module")
def begun(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    installed = tmp_path_factory.mktemp("installed")
    packages = map(str, written.iterdir())
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(installed), *packages], check=True, capture_output=True)
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    return Begun(written, {**os.environ, "PYTHONPATH": path})


def test_there_is_a_package_to_begin_with_for_loggers_and_the_other_small_kinds() -> None:
    assert {"logger", "filter", "algorithm", "service"} <= set(KINDS)


@pytest.mark.slow
def test_the_tests_of_what_it_writes_pass(begun: Begun) -> None:
    output = begun.run("pytest", "-v", *BY_ITSELF, "--rootdir", str(begun.folder), str(begun.folder))
    for kind in KINDS:
        assert f"ajet-my-own-{kind}/tests/test_my_own_{kind}.py::" in output
    assert " passed" in output and "skipped" not in output


@pytest.mark.slow
def test_what_it_writes_is_listed_with_its_distribution(begun: Begun) -> None:
    lines = [line.split() for line in begun.run("ajet", "plugins").splitlines()]
    for kind in KINDS:
        assert any(f"ajet-my-own-{kind}" in line and "0.1.0" in line for line in lines), kind
    shown = begun.run("ajet", "plugins", "show", "my_own_logger")
    assert "logger my_own_logger  (ajet-my-own-logger 0.1.0)" in shown


def test_what_it_writes_is_sound_code(written: Path) -> None:
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,B,UP,SIM", str(written)]
    done = subprocess.run(ruff, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_it_writes_imports_only_the_public_packages(kind: str) -> None:
    code = "\n".join(text for path, text in files(kind, "mine").items() if path.endswith(".py"))
    imported = re.findall(r"^\s*(?:from|import) (ajet(?:\.\w+)*)(?= |$)", code, re.MULTILINE)
    assert "ajet" in imported
    assert [name for name in imported if not re.match(r"ajet$|ajet\.(interfaces|testing)\b", name)] == []


def test_help_names_every_kind(folder: Folder) -> None:
    text = folder.ajet("plugin", "new", "--help").out
    assert all(kind in text for kind in KINDS)


@pytest.mark.whole
def test_a_new_workflow_runs(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.ajet("plugin", "new", "workflow", "ask", "--folder", "mine")
    code = (
        "import sys; sys.path.insert(0, 'mine')\n"
        "import ajet_ask\n"
        "from ajet import plugins\n"
        "plugins.load_plugins().register(ajet_ask, 'ajet-ask', '0.1')\n"
        "from ajet.cli import run_program\n"
        "given = ['--set', 'workflow={type: ask, words: Say}', '--steps', '1']\n"
        "sys.exit(run_program(['run', 'job.yaml', *given]))\n"
    )
    folder.write("script.yaml", "- {when: Say 2, say: '4'}\n- {say: '6'}\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder.path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "reward 1.000, failures: none" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("jugde", "x"),
            "jugde: no such kind of plugin; did you mean 'judge'. Known: judge, reader, workflow, logger, ",
        ),
        (
            ("judge", "My-Judge"),
            "My-Judge: a plugin's name has only lower-case letters, digits and underscores, such as my_judge.",
        ),
        (("judge", "class"), "class: a plugin's name"),
        (("judge", "x", "--folder", "."), ". already exists; name a new folder with --folder."),
        (
            ("judge", "x", "--folder", "job.yaml/x"),
            "--folder job.yaml/x cannot be written (Not a directory).",
        ),
    ],
)
def test_mistakes_are_named(folder: Folder, words: tuple[str, ...], message: str) -> None:
    outcome = folder.ajet("plugin", "new", *words)
    assert outcome.code == 2 and message in outcome.err
