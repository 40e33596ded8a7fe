"""Whether a run is going on and, if not, how it ended."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ajet.rollout.recorder import JOURNAL, METRICS
from ajet.runs.run_dir import RUNNING
from ajet.types import AjetError
from ajet.utils.files import plain, write_whole
from ajet.utils.process_group import process_begun

ENDED = "ended.json"
"""How a run that trains has ended, since it was last started."""
_ENDINGS = ("finished", "interrupted", "failed")
_QUIET = 600.0
"""Seconds without a change after which a run on another machine no longer counts as live."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run, and why it has that; empty if nothing is to be said."""

    name: str
    """live; finished; interrupted, if it was stopped before its end; failed, also if its process was killed or crashed."""
    why: str = ""


def note_begin(run_dir: Path) -> None:
    """Note that a run goes on."""
    (run_dir / ENDED).unlink(missing_ok=True)


def note_end(run_dir: Path, error: BaseException | None, said: str = "") -> None:
    """Write into the run folder how a run has ended: finished if there is no ``error``, with what is to be ``said`` of it, else
    interrupted, or failed and why. If the file cannot be written, `state_of` tells from the steps whether the run has finished."""
    if error is None:
        state = RunState("finished", said)
    elif isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        state = RunState("interrupted")
    else:
        named = "" if isinstance(error, AjetError) else f"{type(error).__name__}: "
        state = RunState("failed", f"{named}{' '.join(str(error).split())}")
    with suppress(AjetError):  # of a full disk, which may be the error
        write_whole(run_dir / ENDED, json.dumps(asdict(state)))


def state_of(run_dir: Path, steps: int, wanted: int) -> RunState:
    """The state of a run that has done ``steps`` of ``wanted`` (0 if it trains nothing)."""
    try:
        who = json.loads(plain(run_dir / RUNNING).read_text())
        pid, host, since = int(who["pid"]), who["host"], str(who.get("begun", ""))
    except FileNotFoundError:
        return _ended(run_dir) or RunState("finished" if steps >= wanted else "interrupted")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return RunState("failed")
    runs = _goes_on(pid, since) if host == socket.gethostname() else time.time() - _changed(run_dir) < _QUIET
    return RunState("live") if runs else RunState("failed", f"process {pid} on {host} was killed or crashed")


def _ended(run_dir: Path) -> RunState | None:
    """The state that was noted; None in folders of earlier releases, and if nothing was trained."""
    try:
        noted = json.loads(plain(run_dir / ENDED).read_text(encoding="utf-8"))
        return RunState(str(noted["name"]), str(noted["why"])) if noted["name"] in _ENDINGS else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _changed(run_dir: Path) -> float:
    """When an episode or a step was last written, in seconds since 1970."""
    files = [run_dir / name for name in (JOURNAL, METRICS)]
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def _goes_on(pid: int, since: str) -> bool:
    """Whether a process that began at a time still runs; ``since`` is empty where earlier releases did not note it."""
    if now := process_begun(pid):
        return since in ("", now)
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # of another user, whose processes the system hides
    return False
