"""Translates requests of other HTTP clients into httpx2 requests: what the clients' files share."""

from __future__ import annotations

import functools
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx2


@dataclass(frozen=True, slots=True)
class Matcher:
    """Which requests capture answers."""

    path: Callable[[bytes], bool]
    """Whether a URL's path is that of an LLM call; only these are translated."""
    request: Callable[[httpx2.Request], bool]
    """Whether capture answers a request to such a path."""


_PATH = re.compile(r"[^/?#]*//[^/?#]*([^?#]*)")
_LONGEST_PATH = 1_000
"""How many characters at the end of a path decide whether capture answers it."""
_FRAMING = ("connection", "content-length", "expect", "keep-alive", "transfer-encoding")
"""Headers about one connection; the translation drops them."""


def translated(matcher: Matcher, method: str, url: str, headers: Mapping[Any, Any]) -> httpx2.Request | None:
    """The request without its body, as an httpx2 request; None if the client is to send it itself."""
    match = _PATH.match(url) if method.upper() == "POST" else None
    path = match[1].encode(errors="replace") if match else b""
    if not matcher.path(path):
        return None
    kept = [(_header(name), _header(value)) for name, value in headers.items()]
    request = httpx2.Request("POST", _url(url, path), headers=_without_framing(kept))
    return request if matcher.request(request) else None


def address_of(scheme: str, host: str, port: int | None) -> str:
    """``https://host:443`` or ``http://[::1]:80``."""
    if ":" in host:
        host = f"[{host.strip('[]')}]"
    return f"{scheme}://{host}:{port}" if port else f"{scheme}://{host}"


def seconds_of(timeout: Any) -> float | None:
    """A client's timeout in seconds: a number, None for no timeout, or a sentinel for the default of sockets."""
    return timeout if timeout is None or isinstance(timeout, int | float) else socket.getdefaulttimeout()


def with_body(request: httpx2.Request, body: bytes, seconds: float | None) -> httpx2.Request:
    """The complete request. ``seconds`` is how long the client waits for the start of the response, and for each
    part of it."""
    headers = _without_framing(request.headers.raw)
    timeout = {"timeout": {"read": seconds}}
    return httpx2.Request("POST", request.url, headers=headers, content=body, extensions=timeout)


def as_bytes(body: Any, encoding: str) -> bytes:
    """A body as clients take it: text, bytes, a file or an iterable of them."""
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode(encoding)
    if hasattr(body, "read"):
        return as_bytes(body.read(), encoding)
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    return b"".join(as_bytes(part, encoding) for part in body)


def send(request: httpx2.Request) -> httpx2.Response:
    """The response as soon as it begins. Raises what httpx2 raises, in particular ReadTimeout."""
    return _client().send(request, stream=True)


async def send_async(request: httpx2.Request) -> httpx2.Response:
    """As `send`."""
    return await _async_client().send(request, stream=True)


def on_the_wire(response: httpx2.Response) -> Iterator[bytes]:
    """The response as the bytes of HTTP/1.1."""
    yield head_of(response)
    for part in response.iter_bytes():
        yield framed(response, part)
    yield end_of(response)


async def on_the_wire_async(response: httpx2.Response) -> AsyncIterator[bytes]:
    """As `on_the_wire`."""
    yield head_of(response)
    async for part in response.aiter_bytes():
        yield framed(response, part)
    yield end_of(response)


def head_of(response: httpx2.Response) -> bytes:
    """Status line and headers. A body of unknown length comes in chunks."""
    lines: Iterable[tuple[str, str]] = (
        (name, value) for name, value in response.headers.multi_items() if name not in _FRAMING
    )
    length = response.headers.get("content-length")
    framing = ("transfer-encoding", "chunked") if length is None else ("content-length", length)
    text = "".join(f"{name}: {value}\r\n" for name, value in [*lines, framing])
    status = f"HTTP/1.1 {response.status_code} {response.reason_phrase}\r\n"
    return f"{status}{text}\r\n".encode("latin-1")


def framed(response: httpx2.Response, part: bytes) -> bytes:
    """A part of the body, encoded as a chunk if the body is chunked."""
    return part if "content-length" in response.headers else b"%x\r\n%b\r\n" % (len(part), part)


def end_of(response: httpx2.Response) -> bytes:
    """What follows the body."""
    return b"" if "content-length" in response.headers else b"0\r\n\r\n"


def _url(url: str, path: bytes) -> httpx2.URL:
    try:
        return httpx2.URL(url)
    except (httpx2.InvalidURL, UnicodeError):
        # A real server may listen there. Capture decides by the path, so it gets the call nevertheless.
        end = quote(path, safe="/:%")[-_LONGEST_PATH:]
        return httpx2.URL(f"http://address.invalid/{end.lstrip('/')}")


def _header(text: Any) -> bytes:
    """A name or a value as clients send it."""
    if isinstance(text, bytes):
        return text
    try:
        return str(text).encode("latin-1")
    except UnicodeEncodeError:
        return str(text).encode(errors="replace")


def _without_framing(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower().decode("latin-1") not in _FRAMING]


@functools.cache
def _client() -> httpx2.Client:
    return httpx2.Client(transport=httpx2.MockTransport(_not_answered), timeout=None)


@functools.cache
def _async_client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.MockTransport(_not_answered), timeout=None)


def _not_answered(request: httpx2.Request) -> httpx2.Response:
    """Reached only if capture has just ended; otherwise it answers before any transport is used."""
    raise httpx2.ConnectError("capture has ended, so this LLM call is not answered", request=request)
