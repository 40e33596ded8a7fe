"""The tests of verl and Trinity run again only if something changed on which they depend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import pages

passed = pages.tool("passed")
FREE = ("docs/page.md", "plugins/tinker/c.py", "bench/d.py", "tests/chat/test_c.py")
NEEDED = (
    "core/ajet/a.py",
    "plugins/verl/b.py",
    "pyproject.toml",
    "docs/verl.md",
    "examples/math/agent.py",
    "tests/shared.py",
)
MAKEFILE = """
OF_VERL := local verl
test-verl: .venv-verl/.installed ## the backbone verl
	.venv-verl/bin/python -m pytest tests/plugins/verl -n 2
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {"Makefile": MAKEFILE, "tests/plugins/verl/test_a.py": "from tests import shared\n"}
    for name, text in {**dict.fromkeys((*FREE, *NEEDED), "1\n"), **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(passed, "ROOT", tmp_path)
    monkeypatch.delenv("CI_ALL", raising=False)
    return tmp_path


def have_passed(monkeypatch: pytest.MonkeyPatch, *options: str) -> bool:
    monkeypatch.setattr(sys, "argv", ["passed.py", "verl", *options])
    try:
        passed.main()
    except SystemExit as ended:
        return not ended.code
    return True


def test_they_run_until_they_have_passed_and_again_after_a_change_of_what_they_depend_on(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not have_passed(monkeypatch)
    have_passed(monkeypatch, "--record")
    assert have_passed(monkeypatch)
    for free in FREE:
        (repository / free).write_text("2\n")
        assert have_passed(monkeypatch)
    for needed in NEEDED:
        (repository / needed).write_text("2\n")
        assert not have_passed(monkeypatch)
        (repository / needed).write_text("1\n")
    assert have_passed(monkeypatch)
    monkeypatch.setenv("CI_ALL", "1")
    assert not have_passed(monkeypatch)
