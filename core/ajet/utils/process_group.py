"""Signals to a whole process group."""

from __future__ import annotations

import contextlib
import os


def signal_group(group: int, number: int) -> None:
    """Send a signal to each process of a group; a group that has already ended is ignored."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
