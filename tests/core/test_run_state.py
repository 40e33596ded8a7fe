"""Whether a run is going on, and how it ended."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.runs.run_dir import held
from ajet.runs.run_state import RunState, note_begin, note_end, state_of
from ajet.types import AjetError


def test_what_is_said_of_a_finished_run_stays(tmp_path: Path) -> None:
    note_end(tmp_path, None, "the reward has collapsed")
    assert state_of(tmp_path, 5, 5) == RunState("finished", "the reward has collapsed")


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, RunState("finished")),
        (KeyboardInterrupt(), RunState("interrupted")),
        (asyncio.CancelledError(), RunState("interrupted")),
        (AjetError("no disk\nspace"), RunState("failed", "no disk space")),
        (ValueError("2"), RunState("failed", "ValueError: 2")),
    ],
)
def test_a_run_is_as_it_ended_whatever_number_of_steps_it_has_done(
    tmp_path: Path, error: BaseException | None, state: RunState
) -> None:
    note_end(tmp_path, error)
    assert state_of(tmp_path, 5, 100) == state
    note_begin(tmp_path)
    with held(tmp_path, print):
        assert state_of(tmp_path, 5, 100) == RunState("live")


def test_an_end_that_cannot_be_written_hides_no_error(tmp_path: Path) -> None:
    (tmp_path / ".ended.json").mkdir()
    note_end(tmp_path, AjetError("the disk is full"))
    assert state_of(tmp_path, 5, 100) == RunState("interrupted")


def test_a_folder_of_an_earlier_release_is_finished_if_it_has_all_its_steps(tmp_path: Path) -> None:
    assert state_of(tmp_path, 100, 100) == state_of(tmp_path, 0, 0) == RunState("finished")
    assert state_of(tmp_path, 99, 100) == RunState("interrupted")


def test_a_run_whose_process_is_gone_has_failed(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    host = socket.gethostname()
    (tmp_path / "running.json").write_text(json.dumps({"pid": child, "host": host}))
    assert state_of(tmp_path, 5, 100) == RunState(
        "failed", f"process {child} on {host} was killed or crashed"
    )
    (tmp_path / "running.json").write_text("{")
    assert state_of(tmp_path, 5, 100).name == "failed"


def test_a_process_that_has_the_id_of_a_killed_one_is_not_its_run(tmp_path: Path) -> None:
    with held(tmp_path, print):
        noted = json.loads((tmp_path / "running.json").read_text())
        assert state_of(tmp_path, 5, 100).name == "live"
    (tmp_path / "running.json").write_text(json.dumps({**noted, "begun": "1"}))
    assert state_of(tmp_path, 5, 100).name == "failed"


def test_a_process_that_nobody_has_waited_for_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.read()  # it has ended, or is about to
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        (tmp_path / "running.json").write_text(json.dumps({"pid": child.pid, "host": socket.gethostname()}))
        assert state_of(tmp_path, 5, 100).name == "failed"


def test_a_run_on_another_machine_is_live_while_it_writes(tmp_path: Path) -> None:
    (tmp_path / "running.json").write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    (tmp_path / "episodes.jsonl").write_text("")
    assert state_of(tmp_path, 5, 100) == RunState("live")
    os.utime(tmp_path / "episodes.jsonl", (0, 0))
    assert state_of(tmp_path, 5, 100).name == "failed"
