"""``mark("label")``: the agent says that its request is worth training on."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any

from ajet_online.runner.shadow import in_shadow_run


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
"""Those of the watched call that is in progress."""
_before: ContextVar[Marks | None] = ContextVar("ajet_online_marks_before", default=None)
"""Those of the next one."""


def new_marks() -> Marks:
    """The marks of a call that begins: with those that were set before it."""
    marks = _before.get() or Marks()
    _before.set(None)
    return marks


def mark(*labels: str, **metadata: Any) -> None:
    """Mark a request, for `ExplicitMarking` and for the reward calculator: the watched call that is in progress, or else the next
    one in this context.

    It works in the agent, and in tasks and threads that have a copy of its context. It does nothing in a shadow run.
    """
    if in_shadow_run():
        return
    marks = marks_of_request.get() or _before.get()
    if marks is None:
        _before.set(marks := Marks())
    marks.add(labels, metadata)
