"""uvicorn's HTTP protocol with limits, each of which stops an attack of `bench/gateway_attack.py`.

uvicorn's protocol starts with the first complete head (`_FirstHead`), so connections without a request cost little
(``half_open``). The parser has no limits of its own, so this module limits the bytes of a head (the request line and all
headers; ``header``, ``headers``) and the seconds until it is complete. All bytes outside bodies count, including trailers and
chunk headers. uvicorn's other parser, h11, limits heads itself, but ``chunks`` blocks the loop for a third of a second with it.
"""

from __future__ import annotations

import asyncio
import http
import logging
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ajet.capture.gateway.connections import MOST_HEAD_BYTES, Connections

BACKLOG = 64
"""Connections that are accepted per iteration of the loop."""


_log = logging.getLogger("ajet.http")
# uvicorn warns of each malformed request, which anyone may send as often as they like.
_log.setLevel(logging.ERROR)


def make_protocol(most_connections: int | None = None) -> type[asyncio.Protocol]:
    """The protocol of one server, for `uvicorn.Config(http=…)`."""
    held = {"held": Connections(most_connections)}
    return type("FirstHead", (_FirstHead,), {**held, "then": type("Limited", (_LimitedProtocol,), held)})


class _FirstHead(asyncio.Protocol):
    """A new connection until its first request's head is whole; `_LimitedProtocol` takes it over from there.

    A client that never sends a request costs as little as possible, because other clients wait while the loop accepts
    a flood of such connections.
    """

    held: ClassVar[Connections]
    then: ClassVar[type[_LimitedProtocol]]

    def __init__(self, *args: Any, **options: Any) -> None:
        self._made_with = args, options
        self._head = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.held.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.held.closed(self)

    def data_received(self, data: bytes) -> None:
        self._head += data
        whole = (
            b"\r\n\r\n" in self._head or b"\n\n" in self._head or len(self._head) > self.held.most_head_bytes
        )
        # What does not begin with a letter is not HTTP (TLS, for example): the parser refuses it at once.
        if whole or not self._head[:1].isalpha():
            args, options = self._made_with
            protocol = self.then(*args, **options)
            self.held.closed(self)
            self._transport.set_protocol(protocol)
            protocol.connection_made(self._transport)
            protocol.data_received(self._head)

    def give_up(self, status: int, reason: str) -> None:
        """Answer with an error and close."""
        self._transport.write(_refusal(status, reason))
        self._transport.close()

    def drop(self) -> None:
        """Close at once."""
        self._transport.abort()


class _LimitedProtocol(HttpToolsProtocol):
    """The protocol of one connection, with limits."""

    held: ClassVar[Connections]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _log
        self._beside = 0
        """Bytes received since the last complete request head or piece of a body."""
        self._in_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.held.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.held.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        most, at = self.held.most_head_bytes, 0
        # Not all at once: a head may come in one piece that is too large.
        while at < len(data) and self._beside < MOST_HEAD_BYTES and not self.transport.is_closing():
            piece = data[at : at + MOST_HEAD_BYTES - self._beside]
            at += len(piece)
            self._beside += len(piece)
            super().data_received(piece)
        if self.transport.is_closing():
            return
        if at < len(data) or self._beside > most:
            self.give_up(431, f"a request's head may have at most {most >> 10} KiB")
        elif self._in_head:
            self.held.begins_head(self)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._beside = 0
        self.held.asks(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._beside = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self._in_head:
            self.held.rests(self)

    def give_up(self, status: int, reason: str) -> None:
        """Answer with an error and close, unless an answer has begun."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_refusal(status, reason))
        self.transport.close()

    def drop(self) -> None:
        """Close at once."""
        self.transport.abort()


def _refusal(status: int, reason: str) -> bytes:
    head = (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
        f"content-length: {len(reason)}\r\nconnection: close\r\n\r\n{reason}"
    )
    return head.encode()
