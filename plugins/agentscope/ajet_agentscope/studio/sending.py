"""A thread that sends a run to Studio, one episode after the other, and never holds up the run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ajet import EpisodeEnd

if TYPE_CHECKING:
    from httpx2 import Client

TIMEOUT = 10.0
"""Seconds that Studio may take to answer a request."""
FLUSHING = 5.0
"""Seconds that the end of a run waits for episodes that are not sent yet."""


class Sender:
    """Registers a run, then sends the episodes that it is given, in their order.

    ``run`` is Studio's record of the run without its status. ``encode`` returns the bodies of an episode's OTLP requests; it
    is called in the thread. ``say`` receives at most two lines: that Studio cannot be reached, and at the end how many
    episodes were not sent.
    """

    def __init__(
        self,
        url: str,
        run: Mapping[str, Any],
        encode: Callable[[EpisodeEnd], Iterable[bytes]],
        waiting: int,
        say: Callable[[str], None],
    ) -> None:
        self._url, self._run, self._encode, self._say = url.rstrip("/"), run, encode, say
        self._waiting: queue.Queue[EpisodeEnd | None] = queue.Queue(waiting)
        self._given = self._sent = 0
        self._registered = self._reported = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="ajet-agentscope-studio", daemon=True)
        self._thread.start()

    def give(self, event: EpisodeEnd) -> None:
        """Queue an episode; it is left out if too many wait. Returns at once."""
        self._given += 1
        with suppress(queue.Full):
            self._waiting.put_nowait(event)

    def close(self) -> None:
        """Wait at most ``FLUSHING`` seconds until all episodes are sent, then stop; say how many were not."""
        deadline = time.monotonic() + FLUSHING
        with suppress(queue.Full):
            self._waiting.put(None, timeout=FLUSHING)
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        self._stopped.set()
        if unsent := self._given - self._sent:
            self._say(
                f"logger agentscope_studio: {unsent} of {self._given} episodes were not sent to {self._url}"
            )

    def _send_all(self) -> None:
        from httpx2 import Client

        with Client(base_url=self._url, timeout=TIMEOUT) as client:
            self._attempt(partial(self._register, client))
            while (event := self._waiting.get()) is not None and not self._stopped.is_set():
                self._attempt(partial(self._send, client, event))
            self._attempt(partial(self._register, client, "done"))

    def _attempt(self, send: Callable[[], None]) -> None:
        try:
            send()
        except Exception as error:  # whatever it is, the run and the next episodes go on
            if not self._reported and not self._stopped.is_set():
                self._reported = True
                cause = " ".join(f"{type(error).__name__}: {error}".split("\n")[0].split())
                self._say(
                    f"logger agentscope_studio: sending to {self._url} failed ({cause}). Is AgentScope Studio running there? "
                    "The run continues."
                )

    def _register(self, client: Client, status: str = "running") -> None:
        client.post("/trpc/registerRun", json={**self._run, "status": status}).raise_for_status()
        self._registered = True

    def _send(self, client: Client, event: EpisodeEnd) -> None:
        if not self._registered:
            self._register(client)
        for body in self._encode(event):
            headers = {"content-type": "application/x-protobuf"}
            client.post("/v1/traces", content=body, headers=headers).raise_for_status()
        self._sent += 1
