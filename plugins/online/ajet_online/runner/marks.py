"""``mark("label")``: the agent says that its request is worth training on."""

from __future__ import annotations

import logging
import threading
from contextvars import ContextVar
from typing import Any

from ajet_online.runner.shadow import in_shadow_run

log = logging.getLogger("ajet.online.runner")


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

    def read(self) -> tuple[bool, tuple[str, ...], dict[str, Any]]:
        """Whether the request is marked, its labels and its metadata."""
        with self._lock:
            return self.marked, tuple(self._labels), dict(self._metadata)


marks_of_request: ContextVar[Marks | None] = ContextVar("ajet_online_marks", default=None)
_warned = False


def mark(*labels: str, **metadata: Any) -> None:
    """Mark the request that is being answered, for `ExplicitMarking` and for the reward calculator.

    It works in the agent, and in tasks and threads that have a copy of its context. It does nothing in a shadow run. Outside
    a request it does nothing either, and the first such call logs a warning.
    """
    global _warned
    marks = marks_of_request.get()
    if marks is not None:
        marks.add(labels, metadata)
    elif not in_shadow_run() and not _warned:
        _warned = True
        log.warning("mark() was called outside Runner.run() and Runner.arun(), where it does nothing")
