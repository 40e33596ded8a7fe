"""Ends a program that exceeds a limit."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, Protocol

from ajet_sandbox.usage import Use

MiB = 1 << 20
LOOK = 0.01
"""Seconds between two measurements."""


class Meter(Protocol):
    """Measures what a program and its children use."""

    @property
    def mechanism(self) -> str:
        """How it measures, in a few words for people."""

    def enter(self) -> None:
        """Called in the program's process before its first line: start to measure it and its children."""

    def look(self) -> Use:
        """What is used now."""

    def out_of_memory(self) -> bool:
        """Whether the kernel ended the program at its memory limit."""


def watch(job: dict[str, Any], program: int, meter: Meter, lifeline: int | None = None) -> dict[str, Any]:
    """Wait until the program ends, exceeds a limit, or ``lifeline`` ends; return the result. The caller ends the
    processes that are left."""
    started = time.monotonic()
    peak = 0
    while True:
        status = _ended(program)
        using = meter.look()
        peak = max(peak, using.memory)
        measured: dict[str, Any] = {"memory": peak, "mechanism": meter.mechanism}
        if status is not None:
            return measured | _outcome(status, job, using, meter)
        if using.cpu > job["cpu_seconds"]:
            # A child that has just ended may have been counted twice, also with its parent.
            using = meter.look()
        for cause, value, limit in (
            ("memory", using.memory, job["memory"] * MiB),
            ("processes", using.processes, job["processes"]),
            ("cpu", using.cpu, job["cpu_seconds"]),
            ("time", time.monotonic() - started, job["seconds"]),
        ):
            if value > limit:
                return measured | {"cause": cause}
        if lifeline is None:
            time.sleep(LOOK)
        elif select.select([lifeline], [], [], LOOK)[0] and not os.read(lifeline, 1):
            return measured | {"cause": "stopped"}


def _ended(program: int) -> int | None:
    """The program's wait status if it has ended; other children are reaped. -1 if it is no longer a child of this process."""
    try:
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            if child[0] == program:
                return child[1]
    except ChildProcessError:
        return -1
    return None


def _outcome(status: int, job: dict[str, Any], using: Use, meter: Meter) -> dict[str, Any]:
    if status == -1:
        return {"cause": "killed"}
    code, cause = os.waitstatus_to_exitcode(status), None
    if meter.out_of_memory():
        cause = "memory"
    elif -code == signal.SIGXFSZ:
        cause = "files"
    elif -code in (signal.SIGXCPU, signal.SIGKILL) and using.cpu >= job["cpu_seconds"]:
        cause = "cpu"
    return {"code": code, "cause": cause}
