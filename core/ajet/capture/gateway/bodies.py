"""Reads request bodies, with limits for each body, for all together, and in time."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from ajet.capture.gateway.encodings import check_encoding, decoded
from ajet.capture.off_loop import off_loop
from ajet.interfaces.wire import Refused

MOST_BYTES = 32 << 20
MOST_PAGE_BYTES = 64 << 10
"""Maximum bytes of the body of a request to a further page."""
MOST_HELD = 256 << 20
"""Maximum bytes of the bodies of all requests that are being read or answered. Each key may hold as many as are free, so there is
always room for another key. Attack ``half_sent`` of `bench/gateway_attack.py`."""
_SECONDS = 60.0
_MOST_DIGITS = 19
"""Python refuses to parse a number with thousands of digits."""

Receive = Callable[[], Awaitable[dict[str, Any]]]


class Gone(Exception):
    """The client has gone away."""


def announced(headers: Mapping[str, str]) -> float:
    """Length of a request's body in bytes, by its Content-Length header: 0 without one, infinite if it is not a plausible number."""
    length = headers.get("content-length", "0").strip()
    return int(length) if length.isdecimal() and len(length) <= _MOST_DIGITS else math.inf


class Bodies:
    """The request bodies of one server."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held = 0
        self._of: Counter[str] = Counter()
        """The same by key."""

    @asynccontextmanager
    async def read(
        self, key: str, headers: Mapping[str, str], receive: Receive, most: int | None = None
    ) -> AsyncIterator[bytes]:
        """A block with the body of a request, decompressed, which counts for ``key`` until the end. Raises Refused for one of more
        than ``most`` bytes (default: those of a call), that does not arrive in time, or in an encoding that is not known, and Gone
        if the client went away."""
        most = self._most_bytes if most is None else most
        if announced(headers) > most:
            raise _too_large(most)
        encoding = check_encoding(headers.get("content-encoding", ""))
        parts: list[bytes] = []
        size = 0
        try:
            try:
                async with asyncio.timeout(_SECONDS):
                    more = True
                    while more:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            raise Gone
                        part = message.get("body", b"")
                        parts.append(part)
                        size += self._hold(key, len(part))
                        if size > most:
                            raise _too_large(most)
                        self._refuse_much(key)
                        more = message.get("more_body", False)
            except TimeoutError:
                raise Refused(
                    f"the request's body did not arrive within {_SECONDS:g} s",
                    code="slow_request",
                    status=408,
                ) from None
            body = b"".join(parts)
            del parts
            if encoding:
                plain = await off_loop(decoded, body, encoding, most)
                if plain is None:
                    raise _too_large(most)
                size += self._hold(key, len(plain) - len(body))
                body = plain
                self._refuse_much(key)
            yield body
        finally:
            self._hold(key, -size)
            if not self._of[key]:
                del self._of[key]

    def _hold(self, key: str, size: int) -> int:
        self._held += size
        self._of[key] += size
        return size

    def _refuse_much(self, key: str) -> None:
        held = self._of[key]
        if held > MOST_HELD - self._held:
            raise Refused(
                f"the requests with this key that are being answered hold {held / 2**20:.1f} MiB already, and no more are free; try "
                "again later",
                code="busy",
                status=429,
            )


def _too_large(most: int) -> Refused:
    size = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
    return Refused(f"the request's body is larger than {size}", code="request_too_large", status=413)
