"""What this machine has."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def total_memory() -> int:
    """Bytes of this machine's memory, or of the container's if that has a limit of its own; 0 if unknown."""
    total = 0
    with contextlib.suppress(OSError, ValueError, AttributeError):  # names that this system does not have
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # "max" means none
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total
