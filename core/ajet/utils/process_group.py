"""Which process an id means, and signals to a whole process group."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path


def process_begun(pid: int) -> str:
    """The start time of a running process, as text that distinguishes it from a later process with the same id;
    empty if there is none."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
    asked = ["ps", "-o", "lstart=", "-p", str(pid)]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def signal_group(group: int, number: int) -> None:
    """Send a signal to each process of a group; a group that has already ended is ignored."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
