"""How many connections a server holds, and how long they may stay silent.

It stops the attack ``half_open`` of `bench/gateway_attack.py`: opening a connection and sending nothing costs a client
nothing. Honest clients that open hundreds at once also do so for a while, so nothing is closed before there are too many
connections in all. Then the server closes the oldest one without a complete request head, as long as there are more than
`MOST_HALF_OPEN` of them; else the oldest idle one.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Protocol

MOST_HALF_OPEN = 256
"""Connections without a complete request head that stay open when the server has to close some."""
MOST_HEAD_BYTES = 1 << 15
LEAST_HEAD_BYTES = 1 << 11
MOST_HEADS_BYTES = 1 << 24
"""Bytes of all incomplete heads, about: each may have its share."""
HEAD_SECONDS = 10.0
"""Seconds in which a request's head must arrive, from the connection or its first byte on."""
_GIVEN_UP_AT_ONCE = 64
"""Late connections that are answered per iteration of the loop: the other clients wait until it ends."""
_MOST = 8_192
_FILES_LEFT = 256
"""File descriptors that are left to the rest of the process."""


class Held(Protocol):
    """A connection, as the server uses it."""

    def give_up(self, status: int, reason: str) -> None:
        """Answer with an error and close."""
        ...

    def drop(self) -> None:
        """Close at once, without an answer: there are too many, so each must cost little."""
        ...


class Connections:
    """The connections of one server, by state; the oldest of each state first. Used only on the server's loop."""

    def __init__(self, most: int | None = None) -> None:
        self.most = _most_files() if most is None else most
        self._half_open: dict[Held, float] = {}
        """Each with the time at which its head began."""
        self._idle: dict[Held, None] = {}
        self._open: set[Held] = set()
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def most_head_bytes(self) -> int:
        """How many bytes of a head may come before it is complete: fewer if many are incomplete."""
        share = MOST_HEADS_BYTES // max(len(self._half_open), 1)
        return min(max(share, LEAST_HEAD_BYTES), MOST_HEAD_BYTES)

    def opened(self, connection: Held) -> None:
        """A new connection."""
        self._open.add(connection)
        self.begins_head(connection)
        if len(self._open) > self.most:
            self._make_room()

    def begins_head(self, connection: Held) -> None:
        """A request's head has begun or is expected, and is not complete yet."""
        self._idle.pop(connection, None)
        loop = asyncio.get_running_loop()
        self._half_open.setdefault(connection, loop.time())
        if self._sweep is None:
            self._sweep = loop.call_later(1.0, self._give_up_slow_ones, loop)

    def asks(self, connection: Held) -> None:
        """A request's head is complete."""
        self._half_open.pop(connection, None)
        self._idle.pop(connection, None)

    def rests(self, connection: Held) -> None:
        """The request is answered; another may follow."""
        if connection in self._open:
            self._idle[connection] = None

    def closed(self, connection: Held) -> None:
        """The connection is gone."""
        self._open.discard(connection)
        self.asks(connection)

    def _make_room(self) -> None:
        resting = self._idle if len(self._half_open) <= MOST_HALF_OPEN else ()
        connection = next(itertools.chain(resting, self._half_open))
        self.closed(connection)
        connection.drop()

    def _give_up_slow_ones(self, loop: asyncio.AbstractEventLoop) -> None:
        begun_before = loop.time() - HEAD_SECONDS
        oldest = itertools.islice(self._half_open.items(), _GIVEN_UP_AT_ONCE)
        slow = [connection for connection, since in oldest if since < begun_before]
        for connection in slow:
            self.closed(connection)
            connection.give_up(408, f"the request's head did not arrive within {HEAD_SECONDS:g} s")
        wait = 0.0 if len(slow) == _GIVEN_UP_AT_ONCE else 1.0
        self._sweep = loop.call_later(wait, self._give_up_slow_ones, loop) if self._half_open else None


def _most_files() -> int:
    """The number of connections that the limit of open files allows."""
    try:
        import resource
    except ImportError:  # not on POSIX
        return _MOST
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return _MOST
    return min(_MOST, max(files - _FILES_LEFT, files // 2))
