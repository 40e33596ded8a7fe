"""aiohttp: patched at `BaseConnector.connect`, the coroutine that gets a connection for a request.

An LLM call gets a connection that leads to capture instead of a socket. aiohttp does everything else itself: it writes
the request, parses the response, and applies its timeouts and flow control.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import httptools
import httpx2

from ajet.capture.clients.translated import Matcher, on_the_wire_async, send_async, translated, with_body
from ajet.utils.patching import replaced


@contextmanager
def patched(module: ModuleType, matcher: Matcher) -> Iterator[None]:
    """LLM calls by aiohttp are answered."""
    own = module.BaseConnector.connect
    handler = importlib.import_module("aiohttp.client_proto").ResponseHandler
    connection = importlib.import_module("aiohttp.connector").Connection

    async def connect(connector: Any, req: Any, *rest: Any, **options: Any) -> Any:
        asked = translated(matcher, req.method, str(req.url), req.headers)
        if asked is None:
            return await own(connector, req, *rest, **options)
        loop = asyncio.get_running_loop()
        protocol = handler(loop)
        protocol.connection_made(_Line(asked, protocol, loop))
        # A separate connector takes the connection back and closes it: the session's would reuse it.
        taker = module.BaseConnector(force_close=True)
        return connection(taker, req.connection_key, protocol, loop)

    with replaced(module.BaseConnector, connect=connect):
        yield


class _Line(asyncio.Transport):
    """A transport that takes the request from a protocol and feeds it the response."""

    def __init__(
        self, asked: httpx2.Request, protocol: asyncio.Protocol, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__()
        self._asked = asked
        self._protocol = protocol
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._body = bytearray()
        self._answering: asyncio.Task[None] | None = None
        self._closing = False
        self._may_read = asyncio.Event()
        self._may_read.set()

    # ---------------------------------------------------------------- what the protocol does

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `asyncio.WriteTransport`. The call begins with the end of the request."""
        self._parser.feed_data(bytes(data))

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._closing

    def close(self) -> None:
        """See `asyncio.BaseTransport`. Stops the generation."""
        if self._closing:
            return
        self._closing = True
        if not self._loop.is_closed():
            if self._answering:
                self._answering.cancel()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        """See `asyncio.WriteTransport`."""
        self.close()

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._may_read.clear()

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._may_read.set()

    # ---------------------------------------------------------------- what the parser found

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the request. An ``Expect`` header is answered with 100 Continue in the loop's next iteration, when
        aiohttp has written the whole head and waits for the answer."""
        if name.lower() == b"expect":
            self._loop.call_soon(self._protocol.data_received, b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, part: bytes) -> None:
        """A part of the request's body."""
        self._body += part

    def on_message_complete(self) -> None:
        """The whole request is here."""
        self._answering = self._loop.create_task(self._answer())

    async def _answer(self) -> None:
        try:
            # aiohttp applies its timeouts itself.
            response = await send_async(with_body(self._asked, bytes(self._body), None))
            try:
                async for part in on_the_wire_async(response):
                    await self._may_read.wait()
                    self._protocol.data_received(part)
            finally:
                await response.aclose()
        except Exception as error:
            self._closing = True
            self._protocol.connection_lost(error if isinstance(error, OSError) else OSError(str(error)))
