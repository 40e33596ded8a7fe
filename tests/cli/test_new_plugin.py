"""`ajet plugin new`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Folder


@pytest.mark.parametrize("kind", ["judge", "reader", "workflow", "engine", "backbone"])
def test_what_it_writes_installs_is_listed_and_passes_its_test(
    folder: Folder, kind: str, tmp_path: Path
) -> None:
    outcome = folder.ajet("plugin", "new", kind, f"my_own_{kind}")
    assert outcome.code == 0, outcome.err
    package = folder.path / f"ajet-my-own-{kind}"
    installed = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(installed)]
    subprocess.run([*install, str(package)], check=True, capture_output=True)
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=package, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert " passed" in run("pytest", "-q", "-p", "no:cacheprovider", "tests")
    if kind == "workflow":
        assert "ajet-my-own-workflow" in run("ajet", "plugins")
    else:
        assert f"{kind} my_own_{kind}  (ajet-my-own-{kind} 0.1.0)" in run(
            "ajet", "plugins", "show", f"my_own_{kind}"
        )
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,B,UP,SIM", str(package)]
    assert subprocess.run(ruff, capture_output=True).returncode == 0


def test_a_new_workflow_runs(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.ajet("plugin", "new", "workflow", "ask", "--folder", "mine")
    code = (
        "import sys; sys.path.insert(0, 'mine')\n"
        "import ajet_ask\n"
        "from ajet import plugins\n"
        "plugins.load_plugins().manager.register(ajet_ask, 'ajet-ask:ajet_ask')\n"
        "from ajet.cli import run_program\n"
        "sys.exit(run_program(['run', 'job.yaml', '--workflow', 'ask: Say', '--steps', '1']))\n"
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
            "jugde: no kind to begin with; did you mean 'judge'. Known: judge, reader, workflow, engine, backbone.",
        ),
        (
            ("judge", "My-Judge"),
            "My-Judge: a plugin's name is lower case letters, digits and underscores: my_judge.",
        ),
        (("judge", "class"), "class: a plugin's name"),
        (("judge", "x", "--folder", "."), ".: exists already; name a new folder with --folder."),
        (
            ("judge", "x", "--folder", "job.yaml/x"),
            "--folder job.yaml/x: cannot be written (Not a directory).",
        ),
    ],
)
def test_mistakes_are_named(folder: Folder, words: tuple[str, ...], message: str) -> None:
    outcome = folder.ajet("plugin", "new", *words)
    assert outcome.code == 2 and message in outcome.err
