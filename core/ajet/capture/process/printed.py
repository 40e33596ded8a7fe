"""What agents print while they run, kept with their episodes: hundreds of them at once would drown the run's own lines."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from typing import Any

from ajet.utils.breakpoints import under_debugger

MOST = 20_000
"""Characters that are kept of an episode, the last ones."""


class Printed:
    """What the workflow and the judge of one episode have printed; ``text`` is that of an episode that was read again."""

    def __init__(self, text: str = "") -> None:
        self._read = text
        self._text = ""
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
        added = f"[{dropped} characters dropped]\n{self._text[-MOST:]}" if dropped else self._text
        return self._read + added


printed_by_episode: ContextVar[Printed | None] = ContextVar("ajet_printed", default=None)
"""Set where an episode runs."""


class KeptLines:
    """Counts the lines that episodes print and the terminal does not show."""

    def __init__(self) -> None:
        self.count = 0

    def lines(self) -> list[str]:
        """What to tell the user."""
        told = f"episodes printed {self.count} lines, which are kept with them: ajet show RUN EPISODE"
        return [told] if self.count else []


@contextmanager
def prints_kept() -> Iterator[KeptLines]:
    """A block in which what an episode writes to stdout and stderr is kept with it. Under a debugger and in forked children it
    goes to the terminal, and so do the warnings of AgentJet."""
    kept, log = KeptLines(), logging.getLogger("ajet")
    with ExitStack() as undo:
        if not log.hasHandlers():
            warnings = logging.StreamHandler(sys.stderr)
            warnings.setLevel(logging.WARNING)
            log.addHandler(warnings)
            undo.callback(log.removeHandler, warnings)
        undo.enter_context(redirect_stdout(_Terminal(sys.stdout, kept)))
        undo.enter_context(redirect_stderr(_Terminal(sys.stderr, kept)))
        yield kept


class _Terminal:
    """A stream for everything but episodes."""

    def __init__(self, stream: Any, kept: KeptLines) -> None:
        self._stream, self._kept, self._process = stream, kept, os.getpid()

    def write(self, text: str) -> int:
        """Like that of a text file. Raises TypeError for anything but text."""
        printed = printed_by_episode.get()
        if printed is None or os.getpid() != self._process or under_debugger():
            return int(self._stream.write(text))
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        printed.add(text)
        self._kept.count += text.count("\n")
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Like that of a text file."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
