"""What an agent has left running when a command is over, and Python would wait for: threads, and child processes of
`multiprocessing`."""

from __future__ import annotations

import sys
import threading
from typing import Any


def unfinished() -> list[str]:
    """Each of them, with the line of the user's code where a thread is."""
    main = threading.main_thread()
    threads = [t for t in threading.enumerate() if t is not main and not t.daemon]
    return [*map(_described, threads), *(f"process {child.pid} ({child.name})" for child in _children())]


def end_children() -> None:
    """Send SIGTERM to the child processes."""
    for child in _children():
        child.terminate()


def _children() -> list[Any]:
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing.active_children() if multiprocessing else []


def _described(thread: threading.Thread) -> str:
    from ajet.capture.process.uncaptured import location_on_stack

    frame = sys._current_frames().get(thread.ident or 0)
    at = location_on_stack(frame, through_loops=True)
    return f"thread {thread.name}{f' at {at}' if at else ''}"
