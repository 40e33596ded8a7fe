"""The program `ajet studio`, as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.patience import PATIENCE
from tests.program import Program

from . import runs

pytestmark = pytest.mark.e2e


@contextmanager
def started(*arguments: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program and the address that it prints."""
    environment = {**os.environ, "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    command = [sys.executable, "-m", "ajet", "studio", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment
    ) as process:
        assert process.stdout
        try:
            printed = re.search(r"http://\S+", process.stdout.readline())
            assert printed
            yield process, printed[0]
        finally:
            process.kill()


@pytest.mark.whole
def test_it_prints_an_address_that_opens_with_a_token_of_its_own_and_ends_cleanly(tmp_path: Path) -> None:
    runs.append(tmp_path / "runs" / "a", runs.line("1.0/t/0"))
    start = ("--port", "0")
    with started(*start, folder=tmp_path) as (one, url), started(*start, folder=tmp_path) as (other, second):
        assert url.partition("token=")[2] != second.partition("token=")[2]
        with httpx.Client(follow_redirects=True) as browser:
            assert browser.get(url).status_code == 200
            base = url.partition("/?")[0]
            assert [row["run"] for row in browser.get(f"{base}/api/runs").json()["runs"]] == ["a"]
            assert browser.get(f"{base}/api/episodes", params={"run": "a"}).json()["total"] == 1
        for process, how in ((one, signal.SIGINT), (other, signal.SIGTERM)):
            process.send_signal(how)
            assert process.communicate(timeout=PATIENCE) == ("", "interrupted\n")
            assert process.returncode == 128 + how


def test_a_folder_that_does_not_exist_is_an_error_in_one_line(
    ajet: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = ajet("studio", "nowhere")
    assert ran.code == 2
    assert ran.err.strip().splitlines() == [
        "error: nowhere: no such folder. Name the folder of a run, such as runs/20250131-120000, or of runs."
    ]


def test_a_port_that_is_taken_is_an_error_in_one_line(ajet: Program, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = ajet("studio", str(tmp_path), "--port", str(taken.getsockname()[1]))
    assert ran.code == 1
    assert "the studio cannot listen on 127.0.0.1" in ran.err
    assert len(ran.err.strip().splitlines()) == 1
