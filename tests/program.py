"""The `ajet` program run in this process: a start of its own takes seconds, which is most of a short test."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ajet.cli import run_program


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Program:
    """Runs commands."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Outcome:
        """Run a command to its end, in the current folder."""
        self.capsys.readouterr()
        code = run_program(arguments)
        printed = self.capsys.readouterr()
        return Outcome(code, printed.out, printed.err)


@pytest.fixture
def ajet(capsys: pytest.CaptureFixture[str]) -> Program:
    """The program."""
    return Program(capsys)
