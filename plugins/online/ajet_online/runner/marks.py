"""The marks of requests, which `mark` and `marked` set."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any


class Marks:
    """The marks of one request. The agent's tasks and threads share it, because copies of a context share its values."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.marked = False
        self._labels: dict[str, None] = {}
        self._metadata: dict[str, Any] = {}

    def add(self, labels: tuple[str, ...], metadata: dict[str, Any]) -> None:
        """Add labels, each once, and metadata, of which the latest value counts."""
        with self._lock:
            self.marked = True
            self._labels.update(dict.fromkeys(labels))
            self._metadata.update(metadata)

    def clear(self) -> None:
        """Remove all of them."""
        with self._lock:
            self.marked = False
            self._labels.clear()
            self._metadata.clear()

    def read(self) -> tuple[bool, tuple[str, ...], dict[str, Any]]:
        """Whether the request is marked, its labels and its metadata."""
        with self._lock:
            return self.marked, tuple(self._labels), dict(self._metadata)


marks_of_request: ContextVar[Marks | None] = ContextVar("ajet_online_marks", default=None)
"""Those of the watched call that is in progress."""
marks_around: ContextVar[tuple[Marks, ...]] = ContextVar("ajet_online_marked", default=())
"""Those of the blocks around it. They are cleared when their block ends, as a task that was started in it may go on."""


def new_marks() -> Marks:
    """The marks of a call that begins: those of the blocks around it."""
    marks = Marks()
    for is_marked, labels, metadata in (block.read() for block in marks_around.get()):
        if is_marked:
            marks.add(labels, metadata)
    return marks
