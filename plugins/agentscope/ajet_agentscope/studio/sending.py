"""What Studio is sent: the record of a run, then its episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ajet.interfaces.events import EpisodeEnd
from ajet.interfaces.helpers import Outbox

if TYPE_CHECKING:
    from httpx2 import Client

TIMEOUT = 10.0
"""Seconds that Studio may take to answer a request."""
FLUSHING = 5.0
"""Seconds that the end of a run waits for episodes that are not sent yet."""


class Sender:
    """Registers a run, then sends the episodes that it is given, in their order, and never holds up the run.

    ``run`` is Studio's record of the run without its status. ``encode`` returns the bodies of an episode's OTLP requests; it
    is called in the thread that sends. ``waiting`` and ``say`` are those of `Outbox`.
    """

    def __init__(
        self,
        url: str,
        run: Mapping[str, Any],
        encode: Callable[[EpisodeEnd], Iterable[bytes]],
        waiting: int,
        say: Callable[[str], None],
    ) -> None:
        self._url, self._run, self._encode = url.rstrip("/"), run, encode
        self._client: Client | None = None
        self._registered = False
        self._outbox = Outbox(
            "logger agentscope_studio",
            self._url,
            say,
            first=self._register,
            hint="Is AgentScope Studio running there?",
            unit="episodes",
            waiting=waiting,
        )

    def give(self, event: EpisodeEnd) -> None:
        """Queue an episode; it is left out if too many wait. Returns at once."""
        self._outbox.put(partial(self._send, event))

    def close(self) -> None:
        """Wait at most ``FLUSHING`` seconds until all episodes are sent, then stop; say how many were not."""
        self._outbox.close(FLUSHING, last=self._done)

    def _register(self, status: str = "running") -> None:
        self._post("/trpc/registerRun", json={**self._run, "status": status})
        self._registered = True

    def _send(self, event: EpisodeEnd) -> None:
        if not self._registered:
            self._register()
        for body in self._encode(event):
            self._post("/v1/traces", content=body, headers={"content-type": "application/x-protobuf"})

    def _done(self) -> None:
        self._register("done")
        assert self._client is not None
        self._client.close()

    def _post(self, path: str, **body: Any) -> None:
        if self._client is None:
            from httpx2 import Client

            self._client = Client(base_url=self._url, timeout=TIMEOUT)
        self._client.post(path, **body).raise_for_status()
