"""http.client, and so urllib.request: patched at `HTTPConnection.request` and `getresponse`."""

from __future__ import annotations

import http.client
import io
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import httpx2

from ajet.capture.clients.translated import (
    Matcher,
    address_of,
    as_bytes,
    on_the_wire,
    seconds_of,
    send,
    translated,
    with_body,
)
from ajet.utils.patching import replaced


@contextmanager
def patched(module: ModuleType, matcher: Matcher) -> Iterator[None]:
    """LLM calls by http.client are answered."""
    own_request = module.HTTPConnection.request
    own_getresponse = module.HTTPConnection.getresponse
    waiting: weakref.WeakKeyDictionary[Any, httpx2.Request] = weakref.WeakKeyDictionary()

    def request(
        connection: Any,
        method: str,
        url: str,
        body: Any = None,
        headers: Mapping[str, Any] | None = None,
        *,
        encode_chunked: bool = False,
    ) -> None:
        headers = headers or {}
        asked = translated(matcher, method, _url(connection, url, headers), headers)
        if asked is None:
            waiting.pop(connection, None)
            own_request(connection, method, url, body, headers, encode_chunked=encode_chunked)
            return
        waiting[connection] = with_body(asked, as_bytes(body, "latin-1"), seconds_of(connection.timeout))

    def getresponse(connection: Any) -> Any:
        asked = waiting.pop(connection, None)
        if asked is None:
            return own_getresponse(connection)
        try:
            return response_of(send(asked))
        except httpx2.ReadTimeout:
            raise TimeoutError("timed out") from None

    with replaced(module.HTTPConnection, request=request, getresponse=getresponse):
        yield


def response_of(response: httpx2.Response) -> http.client.HTTPResponse:
    """The response as http.client gives it, its head read."""
    answered = http.client.HTTPResponse(_Connected(response), method="POST")  # type: ignore[arg-type]
    answered.begin()
    return answered


def _url(connection: Any, target: str, headers: Mapping[str, Any]) -> str:
    if target.startswith(("http://", "https://")):  # through a proxy
        return target
    scheme = "https" if connection.default_port == http.client.HTTPS_PORT else "http"
    named = next((str(value) for name, value in headers.items() if name.lower() == "host"), None)
    address = f"{scheme}://{named}" if named else address_of(scheme, connection.host, connection.port)
    return f"{address}{target}"


class _Connected:
    """Replaces the socket from which http.client reads a response."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    def makefile(self, mode: str) -> io.BufferedReader:
        """The only method that http.client calls."""
        return io.BufferedReader(_Received(self._response))


class _Received(io.RawIOBase):
    """The bytes of a response, as they come. Closing it stops the generation."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__()
        self._response = response
        self._parts = on_the_wire(response)
        self._part = b""

    def readable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`. Raises TimeoutError, as a socket does."""
        view = memoryview(buffer)
        try:
            while not self._part:
                part = next(self._parts, None)
                if part is None:
                    return 0
                self._part = part
        except httpx2.ReadTimeout:
            raise TimeoutError("timed out") from None
        size = min(len(view), len(self._part))
        view[:size], self._part = self._part[:size], self._part[size:]
        return size

    def close(self) -> None:
        """See `io.IOBase`."""
        if not self.closed:
            self._response.close()
        super().close()
