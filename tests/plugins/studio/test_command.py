"""The program `ajet studio`, as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.patience import PATIENCE

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


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_an_address_that_opens_and_ends_cleanly(tmp_path: Path, signal_: signal.Signals) -> None:
    runs.append(tmp_path / "runs" / "a", runs.line("1.0/t/0"))
    with started("--port", "0", folder=tmp_path) as (process, url):
        with httpx.Client(follow_redirects=True) as browser:
            assert browser.get(url).status_code == 200
            base = url.partition("/?")[0]
            assert [row["run"] for row in browser.get(f"{base}/api/runs").json()["runs"]] == ["a"]
            assert browser.get(f"{base}/api/episodes", params={"run": "a"}).json()["total"] == 1
        process.send_signal(signal_)
        out, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode in (130, 143)
    assert (out, errors) == ("", "interrupted\n")


def test_each_start_has_another_token(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with (
        started("--port", "0", folder=tmp_path) as (_, one),
        started("--port", "0", folder=tmp_path) as (_, two),
    ):
        assert one.partition("token=")[2] != two.partition("token=")[2]


def test_a_folder_that_does_not_exist_is_an_error_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ajet", "studio", "nowhere"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.strip().splitlines() == [
        "error: nowhere: no such folder. Name the folder of a run, such as runs/20250131-120000, or of runs."
    ]


def test_a_port_that_is_taken_is_an_error_in_one_line(tmp_path: Path) -> None:
    with started("--port", "0", str(tmp_path), folder=tmp_path) as (_, url):
        port = re.search(r":(\d+)/", url)
        assert port
        command = [sys.executable, "-m", "ajet", "studio", str(tmp_path), "--port", port[1]]
        ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "the studio cannot listen on 127.0.0.1" in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
