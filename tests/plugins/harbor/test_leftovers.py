"""What a killed process has left is removed, however many trials it has had."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_harbor.trials import remove_leftovers


def test_the_trials_of_a_long_job_are_not_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    # That a program gets so many arguments is up to the system, whatever the program.
    program = tmp_path / "bin/podman"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    names = [f"ajet-a-task-with-a-long-name-{number:08x}\n" for number in range(60_000)]
    (tmp_path / "killed.podman").write_text("".join(names))
    remove_leftovers(tmp_path)
    assert not list(tmp_path.glob("killed.*"))
