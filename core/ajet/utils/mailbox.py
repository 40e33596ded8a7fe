"""Callbacks for an event loop from other threads. Those that come while the loop is busy wake it once together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from weakref import WeakKeyDictionary


class Mailbox:
    """`asyncio.loop.call_soon_threadsafe` for many callers: that writes to a socket for every callback, which can cost more than the
    callback itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._posted: deque[tuple[Callable[[], object], Context]] = deque()
        self._woken = False

    def post(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` soon on the loop, in the caller's context and in the order of the posts. Raises RuntimeError if the loop is
        closed."""
        self._posted.append((callback, copy_context()))
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        self._woken = False  # first: what is posted from here on wakes the loop again
        while self._posted:
            callback, context = self._posted.popleft()
            self._loop.call_soon(callback, context=context)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = WeakKeyDictionary()


def own_mailbox() -> Mailbox:
    """The mailbox of the loop that runs in this thread."""
    loop = asyncio.get_running_loop()
    mailbox = _of_loops.get(loop)
    if mailbox is None:
        mailbox = _of_loops[loop] = Mailbox(loop)
    return mailbox
