"""uvicorn's HTTP protocol with one change: what is written in one turn of the loop is sent at once.

A reply is then one packet and one system call instead of two, of which the first would wake the client.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_BYTES = 1 << 16
"""Held back at most: beyond that a slow client is to be felt."""


class GatewayProtocol(HttpToolsProtocol):
    """Of one connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Together(transport, self.loop))  # type: ignore[arg-type]


class _Together:
    """A transport that joins writes."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > _MOST_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts, self._size = [], 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
