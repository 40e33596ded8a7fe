"""Commands on the examples, in this process: a process of its own takes longer than most of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.program import Program

MODULES = {path.stem for path in Path(__file__).parents[2].glob("examples/*/*.py")}


@pytest.fixture
def command(ajet: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Run a command in an empty folder; what it prints. Many examples have an `agent`, so each imports its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in MODULES & set(sys.modules):
        monkeypatch.delitem(sys.modules, name)

    def run(*arguments: str) -> str:
        outcome = ajet(*arguments)
        assert outcome.code == 0, outcome.out + outcome.err
        return outcome.out + outcome.err

    yield run
    for name in MODULES & set(sys.modules):
        del sys.modules[name]
