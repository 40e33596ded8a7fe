"""Whether a run is still running, and when it began."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from ajet.rollout.recorder import JOURNAL, METRICS
from ajet.runs.run_dir import RUNNING

_STAMP = re.compile(r"\d{8}-\d{6}")
_WRITTEN = ("job.yaml", JOURNAL, METRICS)
_QUIET = 600.0
"""Seconds without a change after which a run on another machine no longer counts as live."""


def state_of(run_dir: Path, steps: int, wanted: int) -> str:
    """The state of a run that has done ``steps`` of ``wanted`` (0 if it trains nothing): live; finished; failed, if its
    process was killed or crashed; interrupted, if it was ended before its last step."""
    try:
        who = json.loads((run_dir / RUNNING).read_text())
        pid, host = int(who["pid"]), who["host"]
    except FileNotFoundError:
        return "finished" if steps >= wanted else "interrupted"
    except (OSError, ValueError, LookupError, TypeError):
        return "failed"
    if host == socket.gethostname():
        return "live" if _runs(pid) else "failed"
    return "live" if time.time() - changed(run_dir) < _QUIET else "failed"


def started(run_dir: Path) -> float:
    """When a run began, in seconds since 1970: from the name of its folder, else from its oldest file."""
    if stamp := _STAMP.search(run_dir.resolve().name):
        with suppress(ValueError):
            return datetime.strptime(stamp[0], "%Y%m%d-%H%M%S").timestamp()
    return min(filter(None, (_time(run_dir / name) for name in _WRITTEN)), default=0.0)


def changed(run_dir: Path) -> float:
    """When something was last written into a run folder."""
    return max(_time(run_dir / name) for name in _WRITTEN)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


def _time(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
