"""Reads request bodies, with limits for each body, for all together, and in time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ajet.capture.wires import Refused

MOST_BYTES = 32 << 20
MOST_HELD = 256 << 20
"""Maximum bytes of the bodies of all requests that are being read or answered. Attack ``half_sent`` of `bench/gateway_attack.py`."""
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

    async def read(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        """A request's body, which counts until it is released. Raises Refused for one that is too large or does
        not arrive in time, Gone if the client went away."""
        if announced(headers) > self._most_bytes:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_SECONDS):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    part = message.get("body", b"")
                    parts.append(part)
                    size += len(part)
                    self._held += len(part)
                    self._refuse_much(size)
                    more = message.get("more_body", False)
        except BaseException as error:
            self._held -= size
            if isinstance(error, TimeoutError):
                raise Refused(
                    f"the request's body did not arrive within {_SECONDS:g} s",
                    code="slow_request",
                    status=408,
                ) from None
            raise
        return b"".join(parts)

    def release(self, body: bytes) -> None:
        """The request with this body has been answered."""
        self._held -= len(body)

    def _refuse_much(self, size: int) -> None:
        if size > self._most_bytes:
            raise self._too_large()
        if self._held > MOST_HELD:
            raise Refused(
                f"the requests that are being answered hold {MOST_HELD >> 20} MiB already; try again later",
                code="busy",
                status=429,
            )

    def _too_large(self) -> Refused:
        return Refused(
            f"the request's body is larger than {self._most_bytes >> 20} MiB",
            code="request_too_large",
            status=413,
        )
