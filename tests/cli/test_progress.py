"""Plain progress lines, and the bars."""

from __future__ import annotations

import io
import os
import re
import threading
import time
from pathlib import Path

import pytest

from ajet.reports.progress import Bars, Cell, Lines, Pace, make_progress

STEP = {
    "reward": 0.52, "groups_zero_advantage": 0.25, "tokens_per_second": 2310.4,
    "seconds_rollout": 1.2, "seconds_update": 0.7,
}  # fmt: skip


def lines_of(progress: Lines) -> list[str]:
    assert isinstance(progress._out, io.StringIO)
    return progress._out.getvalue().splitlines()


@pytest.fixture
def progress() -> Lines:
    return Lines(io.StringIO())


def test_a_training_step_is_one_line(progress: Lines) -> None:
    progress.step(3, 30, STEP)
    assert lines_of(progress) == [
        "step 3/30  reward 0.52  zero-adv groups 25 %  2,310 tok/s  1.9 s  eta 0:51"
    ]


@pytest.mark.parametrize("kind", [Lines, Cell, Bars])
def test_what_a_run_says_is_kept_in_its_folder(kind: type[Lines], tmp_path: Path) -> None:
    progress = {Lines: lambda: Lines(io.StringIO()), Cell: lambda: Cell(lambda text: None), Bars: Bars}[
        kind
    ]()
    with progress:
        progress.say("the model is built once")
        progress.started(tmp_path)
        progress.step(1, 2, {"reward": 0.5})
        progress.say("warning: \x1b[31mred\nin two lines")
        progress.started(tmp_path)  # a run that goes on
        progress.step(2, 2, {"reward": 0.75})
    text = (tmp_path / "run.log").read_text()
    assert re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", "", text, flags=re.MULTILINE).splitlines() == [
        "the model is built once",
        f"run folder: {tmp_path}",
        "step 1/2  reward 0.50",
        "warning: \\x1b[31mred",
        "in two lines",
        f"run folder: {tmp_path}",
        "step 2/2  reward 0.75",
    ]


@pytest.mark.parametrize("kind", ["link", "pipe", "no folder"])
def test_what_cannot_be_kept_does_not_end_a_run(progress: Lines, tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    if kind != "no folder":
        run.mkdir()
        (tmp_path / "other").write_text("as it was")
        (run / "run.log").symlink_to(tmp_path / "other") if kind == "link" else os.mkfifo(run / "run.log")
    progress.started(run)
    progress.say("hello")
    assert lines_of(progress) == [f"run folder: {run}", "hello"]
    assert kind == "no folder" or (tmp_path / "other").read_text() == "as it was"


@pytest.mark.parametrize(
    ("causes", "told"),
    [
        ({}, "3 failed"),
        ({"judge:KeyError": 3}, "3 failed (judge:KeyError)"),
        ({"timeout": 1, "judge:KeyError": 2}, "3 failed (2 judge:KeyError, 1 timeout)"),
    ],
)
def test_a_step_tells_why_episodes_failed(progress: Lines, causes: dict[str, float], told: str) -> None:
    progress.step(1, 1, {"episodes_failed": 3, **{f"failed/{cause}": n for cause, n in causes.items()}})
    assert lines_of(progress) == [f"step 1/1  {told}"]


def test_a_step_tells_of_forks_that_were_discarded(progress: Lines) -> None:
    for diverged in (0, 2):
        progress.step(1, 1, {"reward": 0.5, "forks": 8, "forks_diverged": diverged})
    assert lines_of(progress) == ["step 1/1  reward 0.50", "step 1/1  reward 0.50  2 of 8 forks diverged"]


def test_a_stage_is_told_when_it_begins_and_ends_and_now_and_then_with_the_time_that_is_left(
    progress: Lines,
) -> None:
    for i in range(200, 1001):
        progress._last_line -= 11 * (i == 700)
        progress._stages |= {"starter": (time.monotonic() - 50, 0.2)} if i == 700 else {}
        progress.stage("starter", i / 1000, {"loss": 1.5})
    assert lines_of(progress) == [
        "starter 20%  loss 1.5",
        "starter 70%  loss 1.5  eta 0:30",
        "starter 100%  loss 1.5",
    ]


def test_a_stage_may_run_again(progress: Lines) -> None:
    for fraction in (0.5, 1.0, 0.5, 1.0):
        progress.stage("generating", fraction, {})
    assert lines_of(progress) == ["generating 50%", "generating 100%"] * 2


def test_the_run_folder_is_remembered(progress: Lines) -> None:
    progress.started(Path("/runs/x"))
    assert progress.run_dir == Path("/runs/x")


def test_episodes_are_a_sign_of_life_only_after_a_while(progress: Lines) -> None:
    progress.episodes("validation", 1, 9)
    assert lines_of(progress) == []
    progress._last_line -= 11
    progress.episodes("validation", 2, 9)
    progress.episodes("validation", 3, 9)
    assert lines_of(progress) == ["validation: 2/9 episodes"]


def test_lines_of_many_threads_stay_whole(progress: Lines) -> None:
    threads = [
        threading.Thread(target=lambda: [progress.say("x" * 50) for _ in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lines_of(progress) == ["x" * 50] * 800


def test_the_eta_follows_the_last_steps() -> None:
    pace = Pace()
    assert pace.eta(1, 100, {}) == ""
    for step in range(1, 6):
        pace.eta(step, 100, {"seconds_rollout": 500.0})
    for step in range(6, 11):
        eta = pace.eta(step, 100, {"seconds_rollout": 50.0})
    assert eta == "1:15:00"
    assert pace.eta(100, 100, {}) == ""


def test_without_a_terminal_there_are_lines() -> None:
    assert type(make_progress()) is Lines


def test_bars_show_steps_and_give_the_terminal_back_when_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    with pytest.raises(KeyboardInterrupt), Bars() as bars:
        bars.stage("starter", 0.5, {})
        bars.stage("starter", 1.0, {})
        bars.episodes("validation", 3, 8)
        bars.episodes("validation", 8, 8)
        bars.say("a line [not markup]")
        bars.step(3, 30, STEP)
        raise KeyboardInterrupt
    shown = capsys.readouterr().err
    assert "a line [not markup]" in shown
    assert "3/30" in shown and "eta 0:51" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is back


def cell_showing() -> tuple[Cell, list[str]]:
    """A cell, and all texts that its output has had."""
    shown: list[str] = []
    return Cell(shown.append), shown


def test_a_notebook_shows_what_was_said_and_one_line_that_updates() -> None:
    cell, shown = cell_showing()
    with cell:
        cell.started(Path("/runs/x"))
        cell.episodes("train", 64, 64)
        cell.step(1, 2, {"reward": 0.5})
        cell._written = 0.0
        cell.episodes("train", 1, 64)
        assert shown[-1] == "run folder: /runs/x\nstep 1/2  reward 0.50  |  train: 1/64 episodes"
        before = len(shown)
        cell.episodes("train", 2, 64)
        assert len(shown) == before, "not as often as episodes end"
        cell.say("one line to read")
        cell.step(2, 2, {"reward": 1.0})
    assert shown[-1] == "run folder: /runs/x\none line to read\nstep 2/2  reward 1.00"


def test_a_stage_in_a_notebook_is_gone_when_it_is_complete() -> None:
    cell, shown = cell_showing()
    with cell:
        cell.stage("starter", 0.5, {"loss": 1.5})
        assert shown == ["starter 50%  loss 1.5"]
        cell.stage("starter", 1.0, {})
        cell.say("built")
        cell.episodes("check", 4, 4)
    assert shown[-1] == "built\ncheck: 4/4 episodes"
