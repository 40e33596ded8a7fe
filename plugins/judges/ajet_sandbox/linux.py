"""Calls of the C library that Python's standard library does not wrap."""

from __future__ import annotations

import ctypes
import os
from typing import Any

PDEATHSIG, DUMPABLE, SECCOMP, NO_NEW_PRIVS, SUBREAPER = 1, 4, 22, 38, 36
"""Options of prctl."""


class NoWalls(Exception):
    """This machine cannot build the walls."""


def libc() -> Any:
    """The C library; its calls keep errno for `failure`."""
    return ctypes.CDLL(None, use_errno=True)


def failure(call: str) -> str:
    """The call that has just failed, and the reason."""
    return f"{call}: {os.strerror(ctypes.get_errno())}"
