"""Processes that end with the one that started them, even if that is killed: the system closes its end of a pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

VARIABLE = "AJET_ONLINE_LIFELINE"
"""The environment variable with the number of the pipe's reading end."""


@contextmanager
def lifeline() -> Iterator[int]:
    """A block whose end, or the end of this process, tells the processes that `start` has started with this pipe."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(writing)
        os.close(reading)


def start(command: Sequence[str], line: int, environment: dict[str, str]) -> subprocess.Popen[Any]:
    """A process on a lifeline, in a session of its own, so that Ctrl-C reaches it through this process alone."""
    return subprocess.Popen(
        command,
        env={**environment, VARIABLE: str(line)},
        pass_fds=[line],
        start_new_session=True,
    )


def hold_on() -> None:
    """Send SIGTERM to this process when the one that started it has ended; does nothing if it is on no lifeline."""
    line = os.environ.pop(VARIABLE, None)
    if line is None:
        return

    def wait() -> None:
        os.read(int(line), 1)  # nothing is ever written
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="ajet-lifeline", daemon=True).start()
