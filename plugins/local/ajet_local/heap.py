"""One malloc arena for all threads, so that each can reuse memory that another has freed."""

from __future__ import annotations

import ctypes
import sys

M_ARENA_MAX = -8
"""A parameter of `mallopt`, from glibc's malloc.h."""


def share_heap() -> None:
    """Make glibc allocate from one arena; does nothing with other C libraries.

    By default there are up to eight arenas per core. Sampling and updates run in several threads, with tensors of
    ever new sizes; each arena keeps its maximum, and a run's memory grows by gigabytes.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent in other C libraries
        if mallopt is not None:
            mallopt(M_ARENA_MAX, 1)
