"""One heap for all threads, so that memory which one of them freed serves the others."""

from __future__ import annotations

import ctypes
import sys

M_ARENA_MAX = -8
"""Of `mallopt` in glibc's malloc.h."""


def share_heap() -> None:
    """Let glibc's threads allocate from one arena; elsewhere nothing happens.

    By default up to eight threads a core have one each. Sampling and updates run in several threads, with
    tensors of ever new sizes: each arena keeps what one of them has ever needed, and a run grows by gigabytes.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
        if mallopt is not None:
            mallopt(M_ARENA_MAX, 1)
