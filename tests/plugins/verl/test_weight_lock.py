"""Two runs on one machine send weights one after the other: verl's sockets of both have the same name."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ajet_verl import weight_lock
from ajet_verl.weight_lock import alone

HOLDER = """
import sys, time
from pathlib import Path
from ajet_verl.weight_lock import alone
with alone(Path(sys.argv[1]), print):
    print("in", flush=True)
    sys.stdin.readline()
"""


def held(file: Path) -> bool:
    """Whether a process is in the block."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def another_run(file: Path) -> Any:
    """A process in the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_run_waits_for_the_other_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_lock, "SAID_AFTER", 0.1)
    file, said = tmp_path / "lock", []
    with another_run(file) as other:

        def say(text: str) -> None:
            said.append(text)
            other.communicate("leave\n")

        with alone(file, say):
            assert other.returncode == 0, "both were in the block"
            assert held(file)
    assert len(said) == 1
    assert "another run on this machine" in said[0]
    assert not held(file)


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with another_run(file):
        assert held(file)
    with alone(file, pytest.fail):
        assert held(file)


def test_the_trainer_holds_the_lock_while_verl_sends_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_lock, "FOLDER", tmp_path)

    class Job:
        def get_job_id(self) -> str:
            return "01000000"

    class Remote:
        remote = print

    class Recorder:
        say = Remote

    monkeypatch.setattr(weight_lock.ray, "get_runtime_context", Job)
    monkeypatch.setattr(weight_lock, "recorder_of", lambda config: Recorder)
    sent = []

    class Verl:
        config = None

        def on_init_end(self) -> None:
            sent.append(held(tmp_path / "ajet-verl-weights-01000000.lock"))

        on_step_end = on_init_end

    class Trainer(weight_lock.WeightLock, Verl):
        pass

    trainer = Trainer()
    trainer.on_init_end()
    trainer.on_step_end()
    assert sent == [True, True]
    assert not held(tmp_path / "ajet-verl-weights-01000000.lock")
