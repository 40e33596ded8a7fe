"""What agents print while they run, kept with their episodes: hundreds of them at once would drown the run's own lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ajet.utils.breakpoints import under_debugger

MOST = 20_000
"""Characters that are kept of an episode, the last ones."""


class Printed:
    """What the workflow and the judge of one episode have printed to stdout."""

    def __init__(self, text: str = "") -> None:
        self._text = text
        self._dropped = 0

    def add(self, text: str) -> None:
        self._text += text
        if len(self._text) > 2 * MOST:
            self._dropped += len(self._text) - MOST
            self._text = self._text[-MOST:]

    @property
    def text(self) -> str:
        """The text, and how much of its beginning is missing."""
        dropped = self._dropped + max(0, len(self._text) - MOST)
        return f"[{dropped} characters dropped]\n{self._text[-MOST:]}" if dropped else self._text


printed_by_episode: ContextVar[Printed | None] = ContextVar("ajet_printed", default=None)
"""Set where an episode runs."""


@contextmanager
def prints_kept() -> Iterator[Stdout]:
    """A block in which what an episode prints is kept with it. A debugger keeps the terminal, and so do forked children."""
    terminal, ours = sys.stdout, Stdout(sys.stdout)
    sys.stdout = ours
    try:
        yield ours
    finally:
        if sys.stdout is ours:
            sys.stdout = terminal


class Stdout:
    """The terminal for everything but episodes."""

    def __init__(self, terminal: Any) -> None:
        self._terminal, self._process = terminal, os.getpid()
        self._kept = 0

    def lines(self) -> list[str]:
        """What to tell the user about the lines that are not on the terminal."""
        told = f"episodes printed {self._kept} lines, which are kept with them: ajet show RUN EPISODE"
        return [told] if self._kept else []

    def write(self, text: str) -> int:
        """Like that of a text file. Raises TypeError for anything but text."""
        printed = printed_by_episode.get()
        if printed is None or os.getpid() != self._process or under_debugger():
            return int(self._terminal.write(text))
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        printed.add(text)
        self._kept += text.count("\n")
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Like that of a text file."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)
