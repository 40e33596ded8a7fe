"""Interrupt the main thread from another thread, as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable


def interrupt_main_thread(ended: threading.Event, waits: Iterable[float]) -> bool:
    """Send SIGINT to the main thread and wait for ``ended``, once for each number of seconds in ``waits``. Returns
    whether the event was set in time.

    Pass one number more than the interruptions that the main thread needs. Python calls a signal's handler between two
    instructions or when the signal interrupts a system call. A signal that arrives between the two, as the main thread
    begins to wait, is noticed only with the next one, and both count as one.
    """
    main = threading.main_thread().ident
    assert main is not None
    for seconds in waits:
        signal.pthread_kill(main, signal.SIGINT)
        if ended.wait(seconds):
            return True
    return False
