"""How servers stop: Ctrl-C or SIGTERM asks once; whatever does not stop in time is killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SECONDS_TO_END = 4.0
"""Seconds from the signal to the end of the process."""
_GRACE = 0.5
"""After this, the kernel ends what Python's threads cannot: a call that holds the interpreter, or its teardown."""


@contextmanager
def stopped(drain: float = 0.0) -> Iterator[threading.Event]:
    """A block with an event that Ctrl-C and SIGTERM set. From then on the process, including the rest of the program,
    has ``drain`` and `SECONDS_TO_END` to end: a computing thread or a hanging engine does not keep it alive. Outside the main
    thread, which alone receives signals, the event is never set."""
    stop = threading.Event()
    seconds = drain + SECONDS_TO_END
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def told(number: int, frame: FrameType | None) -> None:
        if not stop.is_set():
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE)
            insisting = threading.Thread(
                target=_insist, args=(number, seconds), name="ajet-stopping", daemon=True
            )
            insisting.start()
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, told) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _insist(number: int, seconds: float) -> None:
    time.sleep(seconds)
    name = signal.Signals(number).name
    sys.stderr.write(f"ajet: still busy {seconds:g} s after {name}: stopped without waiting any longer\n")
    sys.stderr.flush()
    os._exit(128 + number)
