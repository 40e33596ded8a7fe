"""Refused calls: what was asked, where, and why. A framework may swallow the error, so runs report them."""

from __future__ import annotations

import re
import threading
from collections import Counter
from dataclasses import dataclass

MOST_CAUSES = 100
"""Causes that are told apart, as messages may repeat what an agent sends; further ones of a line are one."""


@dataclass(slots=True)
class Refusal:
    """One refused call. The hook adds ``url`` and ``location``, which the engine's loop does not know."""

    code: str
    message: str
    url: str = ""
    """The URL without its query, which may contain a key."""
    location: str = ""
    """``agent.py:17``: the user's line; empty if no user code led to the call."""

    @property
    def where(self) -> str:
        """``https://api.example.com/v1/embeddings (agent.py:17)``, as far as it is known."""
        return " ".join(filter(None, (self.url, f"({self.location})" if self.location else "")))

    @property
    def line(self) -> str:
        """``unsupported_wire at https://… (agent.py:17): …``"""
        at = f" at {self.where}" if self.where else ""
        return f"{self.code}{at}: {self.message}"


@dataclass(frozen=True, slots=True)
class RefusedCalls:
    """Refused calls of one cause to one address from one line. Messages that differ in numbers only are one cause."""

    count: int
    code: str
    where: str
    """See `Refusal.where`."""
    message: str
    """The message of the first of them."""

    @property
    def line(self) -> str:
        """``4 LLM calls were refused: unsupported_wire, https://… (agent.py:17)``"""
        calls = "1 LLM call was" if self.count == 1 else f"{self.count} LLM calls were"
        return f"{calls} refused: {', '.join(filter(None, (self.code, self.where)))}"


class Refusals:
    """The refused calls inside and outside episodes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._messages: dict[tuple[str, str, str], str] = {}

    def add(self, refusal: Refusal) -> None:
        """Count a refused call."""
        key = (refusal.code, refusal.where, re.sub(r"\d+", "", refusal.message))
        with self._lock:
            if key not in self._counts and len(self._counts) >= MOST_CAUSES:
                key = (*key[:2], "")
            self._counts[key] += 1
            self._messages.setdefault(key, refusal.message)

    def found(self) -> list[RefusedCalls]:
        """What was refused, the most frequent first."""
        with self._lock:
            return [RefusedCalls(n, *key[:2], self._messages[key]) for key, n in self._counts.most_common()]
