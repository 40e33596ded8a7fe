"""lm15, dspy's own HTTP client: patched at the `stream` of its two transports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import ModuleType
from typing import Any

import httpx2

from ajet.capture.clients.translated import Matcher, send, send_async, translated, with_body
from ajet.utils.patching import replaced


@contextmanager
def patched(module: ModuleType, matcher: Matcher) -> Iterator[None]:
    """LLM calls by dspy's own HTTP client are answered."""
    own, own_async = module.StdlibTransport.stream, module.StdlibAsyncTransport.stream

    def stream(transport: Any, request: Any) -> Any:
        asked = translated(matcher, request.method, request.url, dict(request.headers))
        return own(transport, request) if asked is None else _answered(module, asked, request)

    def stream_async(transport: Any, request: Any) -> Any:
        asked = translated(matcher, request.method, request.url, dict(request.headers))
        return own_async(transport, request) if asked is None else _answered_async(module, asked, request)

    with (
        replaced(module.StdlibTransport, stream=stream),
        replaced(module.StdlibAsyncTransport, stream=stream_async),
    ):
        yield


def _answered(module: ModuleType, asked: httpx2.Request, request: Any) -> Any:
    with _timeouts(module):
        response = send(with_body(asked, request.body, request.read_timeout))

    def chunks() -> Iterator[bytes]:
        with _timeouts(module):
            yield from response.iter_bytes()

    return module.TransportResponse(
        **_head(response), chunks=chunks(), release=lambda is_consumed: response.close()
    )


@asynccontextmanager
async def _answered_async(module: ModuleType, asked: httpx2.Request, request: Any) -> AsyncIterator[Any]:
    with _timeouts(module):
        response = await send_async(with_body(asked, request.body, request.read_timeout))

    async def chunks() -> AsyncIterator[bytes]:
        with _timeouts(module):
            async for part in response.aiter_bytes():
                yield part

    async def release(is_consumed: bool) -> None:
        await response.aclose()

    answered = module.AsyncTransportResponse(**_head(response), chunks=chunks(), release=release)
    try:
        yield answered
    finally:
        await answered.aclose()


@contextmanager
def _timeouts(module: ModuleType) -> Iterator[None]:
    try:
        yield
    except httpx2.ReadTimeout as error:
        raise module.ReadTimeout(str(error)) from None


def _head(response: httpx2.Response) -> dict[str, Any]:
    return {
        "status": response.status_code,
        "reason": response.reason_phrase,
        "headers": response.headers.multi_items(),
        "http_version": "1.1",
    }
