"""A run is ended after `backbone.verl.patience` seconds without progress, or with an error that another process reports."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.interfaces.progress import Silent
from ajet.learning.alarms import Alarms
from ajet.rollout.watchdog import Board, watch
from ajet.types import AjetError
from ajet_verl import launch, runner
from ajet_verl.recorder import Recorder

PATIENCE = 2.0


class Here:
    """An actor's handle, and Ray, in this process."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._actor, name))


@pytest.fixture
def verl_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A verl that runs until this event is set."""
    ends = threading.Event()
    monkeypatch.setattr(launch, "run_verl", lambda config: ends.wait(60))
    yield ends
    ends.set()


def run_of(folder: Path, recorder: Recorder, polled: Callable[[], None]) -> Any:
    """A run of verl without Ray, in which `polled` is called at every look at the recorder."""

    def get(value: Any, **_: Any) -> Any:
        polled()
        return value

    run: Any = object.__new__(launch._VerlRun)
    run._ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=OSError))
    run._config, run._failed, run._recorder = None, "", Here(recorder)
    run._settings, run._run_dir = SimpleNamespace(patience=PATIENCE), folder
    train = SimpleNamespace(steps=1, learning_rate=1000.0)
    run._job = SimpleNamespace(progress=Silent(), config=SimpleNamespace(train=train))
    run._alarms, run._seconds = Alarms(), 0.0
    run.listeners = SimpleNamespace(step_end=lambda *_: None)
    run._last_progress, run._logs = time.monotonic(), lambda: "Logs."
    return run


def recorder_in(folder: Path) -> Recorder:
    return Recorder(str(folder), (), (), 1, False)


def test_an_update_or_an_episode_that_goes_on_is_progress(tmp_path: Path, verl_ends: threading.Event) -> None:
    recorder, began = recorder_in(tmp_path), time.monotonic()

    def polled() -> None:
        recorder.alive()
        if time.monotonic() - began > 2 * PATIENCE:
            verl_ends.set()

    run_of(tmp_path, recorder, polled).execute()
    assert time.monotonic() - began > 2 * PATIENCE


def test_a_message_that_there_is_no_progress_is_none(tmp_path: Path, verl_ends: threading.Event) -> None:
    recorder = recorder_in(tmp_path)
    run = run_of(tmp_path, recorder, lambda: recorder.say("no progress for 60 s: 1 wait for the engine"))
    with pytest.raises(AjetError, match=r"no progress for 2 s \(backbone.verl.patience\)"):
        run.execute()


def test_a_runner_reports_progress_only_while_its_episodes_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "PULSE_SECONDS", 0.05)
    beats: list[str] = []
    board = Board()

    async def main() -> None:
        with suppress(TimeoutError):  # an episode that waits, and a warning about it
            async with asyncio.timeout(0.3), asyncio.TaskGroup() as tasks:
                pulse: Any = SimpleNamespace(beat=lambda: beats.append("while it waits"))
                tasks.create_task(runner._report(board, pulse))
                tasks.create_task(watch(board, 0.05, lambda text: None))
        assert not beats
        reporter = asyncio.create_task(
            runner._report(board, SimpleNamespace(beat=lambda: beats.append("goes on")))  # type: ignore[arg-type]
        )
        async with asyncio.timeout(60):
            while not beats:
                board.set("e", "the engine")
                await asyncio.sleep(0.01)
        reporter.cancel()

    board.set("e", "the engine")
    asyncio.run(main())
    assert set(beats) == {"goes on"}


def test_an_error_of_another_process_ends_the_run_at_once(tmp_path: Path, verl_ends: threading.Event) -> None:
    recorder = recorder_in(tmp_path)
    run = run_of(tmp_path, recorder, lambda: recorder.fail("no inference server is left. 10.0.0.1: died"))
    run._settings.patience = 60.0
    with pytest.raises(AjetError, match=r"backbone verl: no inference server is left. 10.0.0.1: died"):
        run.execute()
