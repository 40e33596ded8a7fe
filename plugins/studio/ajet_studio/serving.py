"""Runs the web server until Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import uvicorn

from ajet_studio.library import Library
from ajet_studio.server import studio_app


class StudioServer:
    """The studio on a socket that listens. Also runs in a thread of a test."""

    def __init__(self, library: Library, listening: socket.socket, token: str, hosts: frozenset[str]) -> None:
        self._socket = listening
        self._ending = asyncio.Event()
        config = uvicorn.Config(
            studio_app(library, token, self._ending, hosts),
            ws="none",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config, self._ending.set)

    def run(self) -> None:
        """Serve until Ctrl-C or `stop`."""
        self._server.run([self._socket])

    @property
    def started(self) -> bool:
        """Whether it answers."""
        return self._server.started

    def stop(self) -> None:
        """Let `run` return soon. May be called in any thread."""
        self._server.should_exit = True


def warm_up() -> None:
    """Load in a thread what the first episode needs: the plugins, for advantages, and the tokenizers."""

    def load() -> None:
        import tokenizers  # noqa: F401

        from ajet.plugins import load_plugins

        load_plugins()

    threading.Thread(target=load, name="ajet-studio-warm-up", daemon=True).start()


class _Server(uvicorn.Server):
    """Ends the streams of events first: uvicorn waits for open answers."""

    def __init__(self, config: uvicorn.Config, on_end: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_end = on_end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_end()
        await super().shutdown(sockets)
