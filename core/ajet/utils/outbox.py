"""A thread that sends what a run hands it, so that the run never waits for another program."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

Send = Callable[[], object]


class Outbox:
    """Calls functions in a thread of its own, one after the other, in their order. Each one sends a record.

    Args:
        who: what sends, as messages name it, such as ``logger wandb``.
        to: where it sends to.
        say: receives at most two lines: why the first record was not sent, and at the end how many were not.
        hint: what to check if sending fails, as a sentence.
        unit: what is counted, in the plural.
        first: called before any record is sent, and not counted, such as a function that connects.
        waiting: how many records may wait to be sent; further ones are left out.
    """

    def __init__(
        self,
        who: str,
        to: str,
        say: Callable[[str], None],
        *,
        first: Send | None = None,
        hint: str = "",
        unit: str = "records",
        waiting: int = 1000,
    ) -> None:
        self._who, self._to, self._say, self._hint, self._unit = who, to, say, hint, unit
        self._waiting: queue.Queue[Send | None] = queue.Queue(waiting)
        self._given = self._sent = 0
        self._reported = False
        self._first = first
        self._last: Send | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name=f"ajet {who}", daemon=True)
        self._thread.start()

    def put(self, send: Send) -> None:
        """Queue a record, or leave it out if too many wait. Returns at once."""
        self._given += 1
        with suppress(queue.Full):
            self._waiting.put_nowait(send)

    def close(self, seconds: float, last: Send | None = None) -> None:
        """Wait at most this long until all records are sent, then stop, and say how many were not sent. ``last`` is called
        after them, and is not counted."""
        deadline = time.monotonic() + seconds
        self._last = last
        with suppress(queue.Full):
            self._waiting.put(None, timeout=seconds)
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        self._stopped.set()
        if unsent := self._given - self._sent:
            self._say(f"{self._who}: {unsent} of {self._given} {self._unit} were not sent to {self._to}")

    def _send_all(self) -> None:
        if self._first is not None:
            self._attempt(self._first)
        while (send := self._waiting.get()) is not None and not self._stopped.is_set():
            self._sent += self._attempt(send)
        if self._last is not None and not self._stopped.is_set():
            self._attempt(self._last)

    def _attempt(self, send: Send) -> bool:
        try:
            send()
        except Exception as error:  # whatever it is, the run and the next records go on
            if not self._reported and not self._stopped.is_set():
                self._reported = True
                text = str(error).strip().split("\n")[0]
                cause = " ".join(f"{type(error).__name__}: {text}".split())
                hint = f" {self._hint}" if self._hint else ""
                self._say(f"{self._who}: sending to {self._to} failed ({cause}).{hint} The run continues.")
            return False
        return True
