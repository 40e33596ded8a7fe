"""How many connections a server holds, and for how long those may say nothing.

A connection without a whole request head costs the client nothing, so there are few of them: when one too many comes,
the oldest goes. Of those that wait for a next request the oldest goes when there are too many connections at all.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

MOST_HALF_OPEN = 256
"""Connections without a whole request head."""
HEAD_SECONDS = 10.0
"""How long a request's head may take, from the connection or its first byte on."""
_MOST = 8_192
_FILES_LEFT = 256
"""Files that the rest of the process may open."""


class Held(Protocol):
    """A connection, as its server sees it."""

    def give_up(self, status: int, reason: str) -> None:
        """Answer with an error and close."""
        ...

    def drop(self) -> None:
        """Close at once, without a word: there are too many, so each must cost little."""
        ...


class Connections:
    """Those of one server, by state; each state's oldest first. For the server's loop alone."""

    def __init__(self, most: int | None = None) -> None:
        self.most = _most_files() if most is None else most
        self._half_open: dict[Held, float] = {}
        """With the time at which the head was begun."""
        self._idle: dict[Held, None] = {}
        self._open: set[Held] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def opened(self, connection: Held) -> None:
        """A new connection."""
        self._open.add(connection)
        self.begins_head(connection)
        if len(self._open) > self.most:
            self._drop(next(iter(self._idle), None) or next(iter(self._half_open)))

    def begins_head(self, connection: Held) -> None:
        """A request's head has begun, or is waited for, and is not whole yet."""
        self._idle.pop(connection, None)
        loop = asyncio.get_running_loop()
        self._half_open.setdefault(connection, loop.time())
        if self._sweep is None:
            self._sweep = loop.call_later(1.0, self._give_up_slow_ones, loop)
        if len(self._half_open) > MOST_HALF_OPEN:
            self._drop(next(iter(self._half_open)))

    def asks(self, connection: Held) -> None:
        """A request's head is whole."""
        self._half_open.pop(connection, None)
        self._idle.pop(connection, None)

    def rests(self, connection: Held) -> None:
        """The request is answered; there may come another."""
        if connection in self._open:
            self._idle[connection] = None

    def closed(self, connection: Held) -> None:
        """The connection is gone."""
        self._open.discard(connection)
        self.asks(connection)

    def _drop(self, connection: Held) -> None:
        self.closed(connection)
        connection.drop()

    def _give_up_slow_ones(self, loop: asyncio.AbstractEventLoop) -> None:
        slow = [c for c, since in self._half_open.items() if loop.time() - since > HEAD_SECONDS]
        for connection in slow:
            self.closed(connection)
            connection.give_up(408, f"the request's head did not come within {HEAD_SECONDS:g} s")
        self._sweep = loop.call_later(1.0, self._give_up_slow_ones, loop) if self._half_open else None


def _most_files() -> int:
    """What the limit of open files leaves."""
    try:
        import resource
    except ImportError:  # not on POSIX
        return _MOST
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return _MOST
    return min(_MOST, max(files - _FILES_LEFT, files // 2))
